"""What every backend promises, with real commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import ConfigError, SandboxError
from operator_core.sandbox import Limits, Policy, Sandbox, open_sandbox
from operator_core.sandbox.options import Options
from tests.support import processes_of, wait_until, wait_until_async

# Landlock does not hold root; test_sandbox_landlock.py runs all this as an ordinary user.
BACKENDS = ("none", "bubblewrap", "docker", *(["landlock"] if os.geteuid() else []))

# Seconds to sleep that no other run of these tests uses, so that leftovers are ours.
RUN = f"{random.randrange(10**9):09d}"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


Make = Callable[..., Any]


def require(request: pytest.FixtureRequest, backend: str) -> str | None:
    """Skip what cannot run here; the image for a backend that needs one."""
    if backend in ("bubblewrap", "landlock"):
        request.getfixturevalue(f"require_{backend}")
    return str(request.getfixturevalue("docker_image")) if backend == "docker" else None


@pytest.fixture(params=BACKENDS)
async def make(request: pytest.FixtureRequest, tmp_path: Path, workspace: Path) -> AsyncIterator[Make]:
    image = require(request, request.param)
    opened: list[Sandbox] = []

    async def start(*, redact: Any = None, name: str = "session", **policy: Any) -> Sandbox:
        sandbox = open_sandbox(
            request.param,
            Policy(workspace, **policy),
            session_dir=tmp_path / name,
            redact=redact,
            options=Options(docker_image=image),
        )
        opened.append(sandbox)
        await sandbox.start()
        return sandbox

    yield start
    for sandbox in opened:
        await sandbox.close()


@pytest.fixture
async def sandbox(make: Make) -> Sandbox:
    started: Sandbox = await make()
    return started


async def out(sandbox: Sandbox, command: str, **options: Any) -> str:
    result = await sandbox.exec(command, **options)
    assert result.exit_code == 0, result.stderr.text()
    return result.stdout.text().strip()


async def test_a_command_and_its_result(sandbox: Sandbox, workspace: Path) -> None:
    assert isinstance(sandbox, Sandbox)
    result = await sandbox.exec("echo out; echo err >&2; touch made; exit 3")
    assert (result.exit_code, result.signal, result.reason, result.timed_out) == (3, None, "exited", False)
    assert (result.stdout.text(), result.stderr.text()) == ("out\n", "err\n")
    assert (workspace / "made").exists()
    assert result.cwd == str(workspace)


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [("false", 1, None), ("kill -9 $$", 137, 9), ("sh -c 'kill -SEGV $$'", 139, 11), ("set -e; false; echo", 1, None),
     ("echo 'open", 2, None), ("no-such-program", 127, None), ("", 0, None), ("# only a comment", 0, None),
     ("trap 'echo own' EXIT; exit 4", 4, None), ("exec true", 0, None), ("set -u; echo $nope", 127, None)],
)  # fmt: skip
async def test_exit_codes(sandbox: Sandbox, command: str, code: int, number: int | None) -> None:
    result = await sandbox.exec(command)
    assert (result.exit_code, result.signal) == (code, number)


async def test_messages_name_the_line_of_the_command(sandbox: Sandbox) -> None:
    result = await sandbox.exec("true\ntrue\nno-such-program")
    assert "line 3: no-such-program: command not found" in result.stderr.text()


async def test_the_shell_is_clean(sandbox: Sandbox) -> None:
    assert await out(sandbox, 'echo "$#:$0:${__c-unset}"; cat') == "0:bash:unset"
    result = await sandbox.exec("set -x; cd /; exit 0")
    assert result.stderr.text() == "++ cd /\n++ exit 0\n"


async def test_the_environment_has_nothing_of_ours(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TEST_CANARY", "canary-5f1e")
    sandbox = await make(env={"FROM_POLICY": "1"})
    env = dict(line.split("=", 1) for line in (await out(sandbox, "env", env={"FROM_CALL": "2"})).splitlines())
    assert "canary-5f1e" not in env.values()
    assert (env["FROM_POLICY"], env["FROM_CALL"], env["PAGER"], env["TERM"]) == ("1", "2", "cat", "dumb")
    assert "FROM_CALL" not in await out(sandbox, "env")
    with pytest.raises(ConfigError, match="A B"):
        await sandbox.exec("true", env={"A B": "1"})


async def test_python_of_the_product_can_be_used(sandbox: Sandbox) -> None:
    assert await out(sandbox, "python3 -c 'import sys, ssl, sqlite3; print(sys.version_info[0])'") == "3"


async def test_the_directory_persists(sandbox: Sandbox, workspace: Path, tmp_path: Path) -> None:
    result = await sandbox.exec("mkdir -p 'a b/c'; cd 'a b'; exit 1")
    assert result.cwd == f"{workspace}/a b"
    assert await out(sandbox, "pwd") == f"{workspace}/a b"
    assert await out(sandbox, "pwd", cwd="c") == f"{workspace}/a b/c"
    assert await out(sandbox, "pwd; cd /", cwd=str(workspace)) == str(workspace)
    assert await out(sandbox, "pwd") == f"{workspace}/a b"
    result = await sandbox.exec("pwd", cwd="/no/such/place")
    assert result.stdout.text() == f"{workspace}\n"
    assert "/no/such/place" in result.notice


async def test_a_directory_that_is_gone(sandbox: Sandbox, workspace: Path) -> None:
    result = await sandbox.exec("mkdir gone; cd gone; rmdir ../gone")
    assert result.exit_code == 0
    await sandbox.exec("mkdir gone; cd gone")
    (workspace / "gone").rmdir()
    result = await sandbox.exec("pwd")
    assert result.stdout.text() == f"{workspace}\n"
    assert "gone" in result.notice
    assert (await sandbox.exec("pwd")).notice == ""


async def test_a_session_goes_on_in_its_directory_after_a_crash(make: Make, workspace: Path) -> None:
    first = await make()
    await first.exec("mkdir d; cd d")
    second = await make()
    assert await out(second, "pwd") == f"{workspace}/d"


async def test_tmp_and_home_are_of_the_session(make: Make) -> None:
    sandbox = await make()
    await sandbox.exec('echo kept >"$TMPDIR/x"; echo kept >~/y')
    assert await out(sandbox, 'cat "$TMPDIR/x" ~/y') == "kept\nkept"
    other = await make(name="other")
    assert (await other.exec('cat "$TMPDIR/x"')).exit_code == 1


@pytest.mark.parametrize("size", [90_000, 131_072, 300_000])
async def test_commands_of_any_length(sandbox: Sandbox, size: int) -> None:
    text = "x€" * (size // 2)
    assert await out(sandbox, f"v='{text}'; echo ${{#v}}") == str(len(text))
    result = await sandbox.exec(f"cat >long <<'EOF'\n{text}\nEOF\nfalse")
    assert result.exit_code == 1
    assert (await sandbox.read_file("long")).data.decode() == text + "\n"


async def test_what_no_shell_can_run_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="NUL"):
        await sandbox.exec("echo a\0b")
    with pytest.raises(SandboxError, match="timeout"):
        await sandbox.exec("true", timeout=0)


async def test_a_timeout(make: Make) -> None:
    sandbox = await make(limits=Limits(grace_s=0.3))
    started = time.monotonic()
    result = await sandbox.exec(
        f"echo before; trap '' TERM; (setsid sleep 71.{RUN} &); sleep 71.{RUN}; sleep 71.{RUN}", timeout=1.5
    )
    assert time.monotonic() - started < 60
    assert result.timed_out
    assert result.stdout.text() == "before\n"
    if sandbox.name != "none":
        assert not processes_of(f"71.{RUN}")
    else:
        wait_until(lambda: len(processes_of(f"71.{RUN}")) <= 1)
        for pid in processes_of(f"71.{RUN}"):
            os.kill(pid, 9)
    assert await out(sandbox, "echo alive") == "alive"


async def test_sigterm_reaches_the_command(sandbox: Sandbox) -> None:
    command = "trap 'echo cleaned; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    result = await sandbox.exec(command, timeout=2.0)
    assert (result.stdout.text(), result.exit_code, result.reason) == ("ready\ncleaned\n", 7, "timeout")


async def test_sigterm_leaves_programs_and_traps_their_time(sandbox: Sandbox) -> None:
    """The shell ends by it too, but not before the program it waits for."""
    program = "trap 'sleep 0.2; echo program; exit' TERM; echo ready; while :; do sleep 0.05; done"
    result = await sandbox.exec(f'trap "echo own" EXIT; bash -c "{program}"; echo not reached', timeout=2.0)
    assert (result.stdout.text(), result.exit_code, result.reason) == ("ready\nprogram\nown\n", 143, "timeout")


@pytest.mark.parametrize("name", ["TERM", "USR1"])
async def test_a_program_killed_as_it_starts_is_dead_and_says_nothing(
    sandbox: Sandbox, workspace: Path, name: str
) -> None:
    """It is still a copy of the shell then, which must neither swallow the signal nor speak for the shell."""
    code = 128 + getattr(signal, f"SIG{name}")
    kill = f"sleep 5 & wait_a_moment $n; kill -{name} $!; wait $!; [ $? = {code} ] || lost=$((lost + 1))"
    moment = "wait_a_moment() { for ((k = 0; k < $1 % 60; k++)); do :; done; }"
    command = f"{moment}; cd {name}; lost=0; for ((n = 0; n < 1500; n++)); do {kill}; done 2>/dev/null; echo $lost lost"
    (workspace / name).mkdir()
    result = await sandbox.exec(command, timeout=100)
    assert (result.stdout.text(), result.stderr.text(), result.exit_code) == ("0 lost\n", "", 0)
    assert result.cwd == f"{workspace}/{name}"
    assert await out(sandbox, "basename $PWD") == name


async def test_a_timeout_has_a_maximum(make: Make) -> None:
    sandbox = await make(limits=Limits(max_timeout_s=0.3, grace_s=0.1))
    assert (await sandbox.exec(f"sleep 72.{RUN}", timeout=60)).timed_out


async def test_background_processes_end_with_their_call(sandbox: Sandbox) -> None:
    started = time.monotonic()
    result = await sandbox.exec(f"sleep 73.{RUN} & echo hi")
    assert time.monotonic() - started < 60
    assert (result.stdout.text(), result.background) == ("hi\n", 1)
    wait_until(lambda: not processes_of(f"73.{RUN}"))


async def test_much_output_goes_to_a_file(sandbox: Sandbox, tmp_path: Path) -> None:
    result = await sandbox.exec("seq 1 20000; echo last >&2")
    assert result.stdout.spill is not None
    assert result.stdout.spill.read_text().splitlines()[-1] == "20000"
    assert result.stderr.spill is None
    view = await sandbox.read_file(str(result.stdout.spill), offset=2, limit=2)
    assert (view.data, view.complete) == (b"2\n", False)
    assert await out(sandbox, f"tail -n 1 '{result.stdout.spill}'") == "20000"
    result = await sandbox.exec("seq 1 20000 >&2", spool=tmp_path / "spool")
    assert result.stderr.spill == tmp_path / "spool" / "stderr"


async def test_output_limit(make: Make) -> None:
    sandbox = await make(limits=Limits(output_kill=3 << 20, grace_s=0.1))
    result = await sandbox.exec("yes")
    assert result.reason == "output_limit"
    assert result.exit_code != 0


async def test_parallel_commands_do_not_disturb_each_other(sandbox: Sandbox, workspace: Path) -> None:
    await sandbox.exec("mkdir " + " ".join(f"d{n}" for n in range(10)))
    meet = 'echo >here; until [ "$(ls ../d*/here | wc -l)" = 10 ]; do sleep 0.02; done'
    results = await asyncio.gather(
        *(sandbox.exec(f"cd d{n}; {meet}; echo {n} >f; seq 1 9000; pwd; exit {n}", timeout=60) for n in range(10))
    )
    for n, result in enumerate(results):
        assert result.exit_code == n
        assert result.stdout.tail.endswith(f"9000\n{workspace}/d{n}\n".encode())
        assert (workspace / f"d{n}" / "f").read_text() == f"{n}\n"
    assert len({result.stdout.spill for result in results}) == 10
    assert (await sandbox.exec("pwd")).stdout.text().startswith(f"{workspace}/d")


async def test_cancelling_leaves_nothing(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.exec(f"trap '' TERM; (sleep 74.{RUN} &) ; sleep 74.{RUN}"))
    await wait_until_async(lambda: processes_of(f"74.{RUN}"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if sandbox.name != "none":
        assert not processes_of(f"74.{RUN}")
    wait_until(lambda: not processes_of(f"74.{RUN}"))
    assert await out(sandbox, "echo alive") == "alive"


async def test_a_storm_of_cancellations(sandbox: Sandbox) -> None:
    if sandbox.name == "none":
        pytest.skip("without a sandbox a daemon survives its call; the report says so")
    command = f"(setsid sleep 77.{RUN} &); sleep 77.{RUN} & sleep 77.{RUN}"
    for _ in range(10):
        tasks = [asyncio.create_task(sandbox.exec(command)) for _ in range(6)]
        await asyncio.sleep(random.random() * 0.04)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
    wait_until(lambda: not processes_of(f"77.{RUN}"), 60)
    assert await out(sandbox, "echo alive") == "alive"


FLOOD = """
import asyncio, json, sys
from pathlib import Path
from operator_core.sandbox import Policy, open_sandbox
from operator_core.sandbox.options import Options
async def main():
    backend, image, base = sys.argv[1], sys.argv[2] or None, Path(sys.argv[3])
    sandbox = open_sandbox(backend, Policy(base / "ws"), session_dir=base / "s", options=Options(docker_image=image))
    await sandbox.start()
    done = await sandbox.exec(f"head -c {(1 << 30) - 5} /dev/zero")
    await sandbox.close()
    memory = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    print(json.dumps([done.exit_code, done.reason, done.stdout.total, int(memory) >> 10]))
asyncio.run(main())
"""


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_flood_of_output_takes_no_memory(
    request: pytest.FixtureRequest, backend: str, tmp_path: Path, workspace: Path
) -> None:
    image = require(request, backend)
    done = subprocess.run(
        [sys.executable, "-c", FLOOD, backend, image or "", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code, reason, total, memory_mib = json.loads(done.stdout)
    assert (code, reason, total) == (0, "exited", (1 << 30) - 5)
    assert memory_mib <= 64


async def test_jobs(make: Make) -> None:
    sandbox = await make(limits=Limits(jobs=2, grace_s=0.3))
    job = await sandbox.spawn("echo one; echo two >&2; trap 'echo bye; exit 6' TERM; while :; do sleep 0.05; done")
    await wait_until_async(lambda: b"two" in job.output())
    assert job.status().running
    assert job.output(4) == b"two\n"
    short = await sandbox.spawn("exit 4", name="short")
    assert (await short.wait(10)).exit_code == 4
    second = await sandbox.spawn(f"sleep 75.{RUN}")
    with pytest.raises(SandboxError, match="2 background jobs"):
        await sandbox.spawn("true")
    status = await job.kill()
    assert (status.running, status.exit_code, status.reason) == (False, 6, "cancelled")
    assert job.output().endswith(b"bye\n")
    assert await job.kill() == status
    await wait_until_async(lambda: processes_of(f"75.{RUN}"))
    await sandbox.close()
    assert not second.status().running
    wait_until(lambda: not processes_of(f"75.{RUN}"))


async def test_close_ends_everything_and_removes_the_directory(make: Make, tmp_path: Path) -> None:
    sandbox = await make()
    call = asyncio.create_task(sandbox.exec(f"mkdir ~/locked; touch ~/locked/x; chmod 000 ~/locked; sleep 76.{RUN}"))
    await wait_until_async(lambda: processes_of(f"76.{RUN}"))
    await sandbox.close()
    assert (await call).exit_code != 0
    wait_until(lambda: not processes_of(f"76.{RUN}"))
    assert not (tmp_path / "session").exists()
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec("true")


async def test_close_keeps_what_it_did_not_make(make: Make, tmp_path: Path) -> None:
    sandbox = await make()
    (tmp_path / "session" / "journal").write_text("mine")
    await sandbox.close()
    assert os.listdir(tmp_path / "session") == ["journal"]


async def test_before_the_start_nothing_runs(workspace: Path, tmp_path: Path) -> None:
    for backend in BACKENDS:
        sandbox = open_sandbox(backend, Policy(workspace), session_dir=tmp_path / "s")
        with pytest.raises(SandboxError, match="started"):
            await sandbox.exec("true")
        await sandbox.close()
        assert not (tmp_path / "s").exists()


async def test_nothing_leaks(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.exec("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await sandbox.exec("echo x; sleep 0.01 & true")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not os.listdir(tmp_path / "session" / "state")


class Stars:
    def feed(self, data: bytes) -> bytes:
        return data.replace(b"hunter2", b"*******")

    def flush(self) -> bytes:
        return b""


async def test_secrets_do_not_reach_the_disk(make: Make, tmp_path: Path) -> None:
    sandbox = await make(redact=Stars, limits=Limits(head=4, tail=4))
    result = await sandbox.exec("echo 'the word is hunter2, again: hunter2'")
    assert result.stdout.spill is not None
    assert result.stdout.spill.read_bytes() == b"the word is *******, again: *******\n"
    job = await sandbox.spawn("echo hunter2")
    await job.wait(10)
    assert job.output() == b"*******\n"


class TestFiles:
    async def test_round_trip(self, sandbox: Sandbox, workspace: Path) -> None:
        await sandbox.write_file("new/deep/file", b"abc\x00def")
        assert (workspace / "new/deep/file").read_bytes() == b"abc\x00def"
        assert await out(sandbox, "cat new/deep/file | wc -c") == "7"
        view = await sandbox.read_file(str(workspace / "new/../new/deep/file"), offset=1, limit=3)
        assert (view.data, view.offset, view.size, view.complete) == (b"bc\x00", 1, 7, False)
        await sandbox.exec("cd new")
        assert (await sandbox.read_file("deep/file")).complete

    async def test_the_same_tmp_and_home_as_commands(self, sandbox: Sandbox) -> None:
        place = await out(sandbox, 'echo from-shell >"$TMPDIR/t"; echo "$TMPDIR"')
        assert (await sandbox.read_file(f"{place}/t")).data == b"from-shell\n"
        home = await out(sandbox, "echo ~")
        await sandbox.write_file(f"{home}/h", b"x")
        assert await out(sandbox, "cat ~/h") == "x"

    async def test_mode_and_other_names_are_kept(self, sandbox: Sandbox, workspace: Path, tmp_path: Path) -> None:
        (tmp_path / "outside").write_text("old")
        (tmp_path / "outside").chmod(0o750)
        os.link(tmp_path / "outside", workspace / "linked")
        await sandbox.write_file("linked", b"new")
        assert (tmp_path / "outside").read_text() == "old"
        assert (workspace / "linked").stat().st_mode & 0o7777 == 0o750
        assert os.listdir(workspace) == ["linked"]

    @pytest.mark.parametrize(
        "path", ["/etc/passwd", "../outside", "link", "dir/file", "inside", "fifo", "d", "a\0b", "no/such", "circle"]
    )
    async def test_a_file_is_read_as_a_command_reads_it(
        self, sandbox: Sandbox, workspace: Path, tmp_path: Path, path: str
    ) -> None:
        (tmp_path / "outside").write_text("secret")
        (workspace / "link").symlink_to(tmp_path / "outside")
        (workspace / "dir").symlink_to(tmp_path)
        (tmp_path / "file").write_text("secret")
        (workspace / "d").mkdir()
        (workspace / "d" / "f").write_text("mine")
        (workspace / "inside").symlink_to(workspace / "d" / "f")
        (workspace / "circle").symlink_to("circle")
        os.mkfifo(workspace / "fifo")
        command = f"test -f '{path}' && cat -- '{path}'" if "\0" not in path else "false"
        by_command = await sandbox.exec(command)
        if path == "/etc/passwd" and sandbox.name not in ("bubblewrap", "none"):
            return  # where the system's files are not this machine's, only commands see them
        if by_command.exit_code == 0:
            assert (await sandbox.read_file(path)).data == by_command.stdout.text().encode()
        else:
            assert path not in ("inside", "/etc/passwd")
            with pytest.raises(SandboxError):
                await sandbox.read_file(path)

    @pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "link", "dir/file", "fifo", "d", "a\0b"])
    async def test_nothing_outside_is_written(
        self, sandbox: Sandbox, workspace: Path, tmp_path: Path, path: str
    ) -> None:
        before = Path("/etc/passwd").read_bytes()
        (tmp_path / "outside").write_text("secret")
        (workspace / "link").symlink_to(tmp_path / "outside")
        (workspace / "dir").symlink_to(tmp_path)
        (tmp_path / "file").write_text("secret")
        (workspace / "d").mkdir()
        os.mkfifo(workspace / "fifo")
        # The /tmp of a session is its own: a link that leads there may be written through.
        with contextlib.suppress(SandboxError):
            await sandbox.write_file(path, before if path == "/etc/passwd" else b"x")
            assert path in ("../outside", "link", "dir/file")
        assert (tmp_path / "outside").read_text() == "secret"
        assert (tmp_path / "file").read_text() == "secret"
        assert Path("/etc/passwd").read_bytes() == before

    async def test_protected_and_masked(self, make: Make, workspace: Path, tmp_path: Path) -> None:
        (workspace / "keep").write_text("kept")
        (workspace / ".env").write_text("secret")
        shown = tmp_path / "shown"
        shown.mkdir()
        (shown / "r").write_text("r")
        sandbox = await make(protected=("keep",), masked=(".env",), readable=(shown,))
        assert (await sandbox.read_file("keep")).data == b"kept"
        assert (await sandbox.read_file(f"{shown}/r")).data == b"r"
        for path in ("keep", "keep/below", ".env", f"{shown}/r", f"{shown}/new"):
            with pytest.raises(SandboxError):
                await sandbox.write_file(path, b"x")
        with pytest.raises(SandboxError, match="hidden"):
            await sandbox.read_file(".env")
