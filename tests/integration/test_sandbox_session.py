"""What the commands of one bubblewrap session share: a network, a user who is not root, limits; and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import SandboxError, SandboxUnavailable
from operator_core.sandbox import Limits, Policy, Sandbox, open_sandbox
from operator_core.sandbox.linux import namespaces as namespaces_module
from operator_core.sandbox.linux.cgroups import Group
from operator_core.sandbox.options import Decision, Options
from operator_core.sandbox.process import descendants
from tests.support import Unprivileged, free_port, processes_of, wait_until

RUN = f"{random.randrange(10**9):09d}"

pytestmark = pytest.mark.usefixtures("require_bubblewrap")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

Make = Callable[..., Any]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
async def make(tmp_path: Path, workspace: Path) -> AsyncIterator[Make]:
    opened: list[Sandbox] = []

    async def start(options: Options = Options(), **policy: Any) -> Sandbox:
        folder = tmp_path / f"session{len(opened)}"
        sandbox = open_sandbox("bubblewrap", Policy(workspace, **policy), session_dir=folder, options=options)
        opened.append(sandbox)
        await sandbox.start()
        return sandbox

    yield start
    for sandbox in opened:
        await sandbox.close()


async def out(sandbox: Sandbox, command: str, **options: Any) -> str:
    result = await sandbox.exec(command, **options)
    return result.stdout.text().strip()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"you said " + await reader.readline())
    with contextlib.suppress(OSError):
        await writer.drain()
    writer.close()


SAY = "exec 3<>/dev/tcp/127.0.0.1/{port} && echo hello >&3 && cat <&3"
SERVER = "import http.server as h; h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler).serve_forever()"
GET = (
    "for n in {1..200}; do (: </dev/tcp/127.0.0.1/8123) 2>/dev/null && break; sleep 0.02; done; "
    "curl -sm5 127.0.0.1:8123/f"
)


class TestNetwork:
    async def test_a_server_in_a_job_answers_the_next_command_and_nobody_else(
        self, make: Make, workspace: Path
    ) -> None:
        (workspace / "f").write_text("served")
        sandbox, other = await make(), await make()
        job = await sandbox.spawn(f'python3 -c "{SERVER}"')
        assert await out(sandbox, GET) == "served"
        assert (await other.exec("curl -sm2 127.0.0.1:8123/f")).exit_code == 7
        with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", 8123), 2):
            pass
        await job.kill()
        assert (await sandbox.exec("curl -sm2 127.0.0.1:8123/f")).exit_code == 7

    async def test_listen(self, make: Make) -> None:
        sandbox, other = await make(), await make()
        sock = await sandbox.listen()
        port = sock.getsockname()[1]
        assert not sock.getblocking()
        server = await asyncio.start_server(ask, sock=sock)
        async with server:
            assert await out(sandbox, SAY.format(port=port)) == "you said hello"
            assert (await other.exec(SAY.format(port=port))).exit_code != 0
            with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), 2):
                pass

    async def test_listen_on_a_port_that_is_taken_and_after_the_end(self, make: Make) -> None:
        sandbox = await make()
        first = await sandbox.listen(3128)
        assert first.getsockname() == ("127.0.0.1", 3128)
        with pytest.raises(SandboxError, match=r"3128.*in use"):
            await sandbox.listen(3128)
        await sandbox.close()
        assert first.fileno() == -1
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.listen(3128)

    async def test_listen_with_the_network_of_the_host(self, make: Make) -> None:
        sandbox = await make(network="host")
        sock = await sandbox.listen(free_port())
        async with await asyncio.start_server(ask, sock=sock):
            assert await out(sandbox, SAY.format(port=sock.getsockname()[1])) == "you said hello"

    async def test_without_nsenter_each_command_has_a_network_of_its_own(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = shutil.which
        monkeypatch.setattr(namespaces_module.shutil, "which", lambda n, **o: None if n == "nsenter" else real(n, **o))
        sandbox = await make()
        report = sandbox.report()
        assert report.level == "isolated"
        assert report.controls["network"].state == "verified"
        assert "user" not in report.controls or report.controls["user"].state == "partial"
        assert "for each command" in report.controls["network"].how
        with pytest.raises(SandboxError, match="nsenter"):
            await sandbox.listen()
        with pytest.raises(SandboxUnavailable, match="nsenter"):
            await make(network="allowlist")
        with pytest.raises(SandboxUnavailable, match="run_as") if os.geteuid() == 0 else contextlib.nullcontext():
            await make(run_as=61999)

    async def test_the_allowlist(self, make: Make) -> None:
        decisions: list[Decision] = []

        async def note(decision: Decision) -> None:
            decisions.append(decision)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nallowed\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            sandbox = await make(
                Options(on_egress=note), network="allowlist", allow_hosts=(f"127.0.0.1:{port}", "listed.example")
            )
            report = sandbox.report()
            assert (report.level, report.controls["network"].state) == ("isolated", "verified")
            assert "proxy" in report.controls["network"].how
            assert decisions == []  # those of the self-test are not the agent's
            assert await out(sandbox, f"curl -sm5 http://127.0.0.1:{port}/") == "allowed"
            assert (await sandbox.exec(f"curl -sm5 --noproxy '*' http://127.0.0.1:{port}/")).exit_code == 7
            refused = await out(sandbox, "curl -sm5 -w '%{http_code}' http://other.example/")
            assert refused.endswith("403")
            assert [(item.host, item.allowed) for item in decisions] == [("127.0.0.1", True), ("other.example", False)]


@as_root
class TestUser:
    async def test_commands_are_another_user_and_files_keep_their_owner(
        self, make: Make, workspace: Path, tmp_path: Path
    ) -> None:
        (workspace / "mine").write_text("private")
        (workspace / "mine").chmod(0o600)
        (workspace / "other").write_text("x")
        (workspace / "other").chmod(0o600)
        os.chown(workspace / "other", 4242, 4242)
        sandbox = await make()
        command = f"cat mine; echo more >>mine; mkdir -p made/d; touch ~/h /tmp/t; sleep 85.{RUN}"
        task = asyncio.create_task(sandbox.exec(command))
        await asyncio.to_thread(wait_until, lambda: processes_of(f"85.{RUN}"))
        users = {_users(pid) for pid in processes_of(f"85.{RUN}")}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(users) == 1
        (ids,) = users
        assert len(set(ids)) == 1
        assert 61184 <= int(ids[0]) < 65520
        assert (workspace / "mine").read_text() == "privatemore\n"
        for path in (workspace / "made", workspace / "made" / "d", *tmp_path.glob("session0/*/[ht]")):
            assert (path.stat().st_uid, path.stat().st_gid) == (0, 0), path
        assert await out(sandbox, "cat mine; stat -c %U mine; cat other; stat -c %u other; touch other") == (
            "privatemore\nagent\n65534"
        )

    async def test_a_workspace_of_somebody_else(self, make: Make, workspace: Path) -> None:
        """As kernel uid 0 without capabilities this was not writable at all."""
        (workspace / "f").write_text("x")
        for path in (workspace, workspace / "f"):
            os.chown(path, 4242, 4243)
        sandbox = await make()
        assert await out(sandbox, "echo y >>f; touch new; stat -c %U f new") == "agent\nagent"
        for name in ("f", "new"):
            assert ((workspace / name).stat().st_uid, (workspace / name).stat().st_gid) == (4242, 4243)

    async def test_the_user_that_was_asked_for(self, make: Make, workspace: Path) -> None:
        os.chown(workspace, 61777, 61777)
        sandbox = await make(run_as=61777)
        assert "61777" in sandbox.report().controls["user"].how
        await sandbox.exec("touch made")
        assert (workspace / "made").stat().st_uid == 61777

    async def test_two_sessions_are_two_users(self, make: Make) -> None:
        reports = [(await make()).report() for _ in range(4)]
        assert len({report.controls["user"].how for report in reports}) == 4

    async def test_a_folder_that_was_replaced_is_seen_again(self, make: Make, workspace: Path) -> None:
        sandbox = await make()
        (workspace / "old").touch()
        workspace.rename(workspace.with_name("moved"))
        workspace.mkdir()
        (workspace / "new").touch()
        results = await asyncio.gather(*(out(sandbox, "ls") for _ in range(3)))
        assert results == ["new"] * 3
        await sandbox.write_file("written", b"x")
        assert await out(sandbox, "ls; touch here") == "new\nwritten"
        assert (workspace / "here").exists()

    async def test_readable_files_and_closed_folders_above(self, make: Make, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        (closed / "tool").mkdir(parents=True)
        (closed / "tool" / "run").write_text("#!/bin/sh\necho ran\n")
        (closed / "tool" / "run").chmod(0o700)
        (closed / "one").write_text("one")
        (closed / "one").chmod(0o600)
        closed.chmod(0o700)
        sandbox = await make(readable=(closed / "tool", closed / "one"))
        assert await out(sandbox, f"{closed}/tool/run; cat {closed}/one; echo x >>{closed}/one; ls {closed}") == (
            "ran\noneone\ntool"
        )

    async def test_the_open_files_of_a_command_are_its_own(self, make: Make) -> None:
        sandbox = await make()
        result = await sandbox.exec("echo a >/dev/stdout; echo b >/proc/self/fd/1; echo c >/dev/stderr")
        assert (result.stdout.text(), result.stderr.text()) == ("a\nb\n", "c\n")

    async def test_root_that_may_not_mount_stays_root_and_says_so(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, workspace: Path
    ) -> None:
        monkeypatch.setattr("operator_core.sandbox.bubblewrap.backend.can_administer", lambda: False)
        monkeypatch.setattr("operator_core.sandbox.linux.namespaces.can_administer", lambda: False)
        sandbox = await make()
        report = sandbox.report()
        assert report.level == "isolated"
        assert report.controls["user"].state == "partial"
        assert "CAP_SYS_ADMIN" in report.controls["user"].how
        assert any("kernel's user id 0" in text for text in report.warnings)
        await sandbox.exec("touch made")
        assert (workspace / "made").exists()
        with pytest.raises(SandboxUnavailable, match=r"CAP_SYS_ADMIN.*run_as"):
            await make(run_as=61777)

    async def test_a_file_system_that_cannot_do_it(self, make: Make, tmp_path: Path) -> None:
        """``/proc`` cannot be shown as another user's; to read it that is not needed, to write there it is."""
        readable = await make(readable=(Path("/proc/sys/fs"),))
        assert readable.report().controls["user"].state == "verified"
        writable = await make(writable=(Path("/proc/sys/fs"),))
        control = writable.report().controls["user"]
        assert control.state == "partial"
        assert "/proc/sys/fs" in control.how


def _users(pid: int) -> tuple[str, ...]:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return tuple(line.split()[1:])
    raise AssertionError(pid)


async def test_secret_files(make: Make, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    sandbox = await make(secret_files={"deploy": secret})
    assert await out(sandbox, "cat /run/secrets/deploy; echo x >/run/secrets/deploy; ls /run/secrets") == "s3cretdeploy"
    assert (await sandbox.read_file("/run/secrets/deploy")).data == b"s3cret"
    with pytest.raises(SandboxError):
        await sandbox.write_file("/run/secrets/deploy", b"x")
    assert secret.read_text() == "s3cret"
    assert await out(await make(), "ls /run/secrets") == ""


async def test_no_descriptor_of_ours_is_inherited(make: Make) -> None:
    with socket.socket() as leak:
        os.set_inheritable(leak.fileno(), True)
        sandbox = await make(network="allowlist")
        for _ in range(3):
            listing = await out(sandbox, "exec 9>&-; cd /proc/self/fd && echo *")
            # The last one is that of the look itself, and bash keeps none above 2.
            assert set(listing.split()) <= {"0", "1", "2", "3"}, listing
            assert f"socket:[{os.fstat(leak.fileno()).st_ino}]" not in await out(sandbox, "ls -l /proc/*/fd")


@pytest.fixture
def group_folders() -> Callable[[], list[Path]]:
    """Looks for the control groups of sessions where this process may make them; skips where it may not."""
    group = Group()
    group.make(Limits())
    found = {folder.parent for folder in group.folders}
    asyncio.run(group.remove())
    if not found:
        pytest.skip("no control group can be made here: " + "; ".join(group.why_not.values()))
    return lambda: sorted(folder for parent in found for folder in parent.glob("operator-*"))


def _own(folders: list[Path]) -> list[Path]:
    return [folder for folder in folders if f"-{os.getpid()}-" in folder.name]


class TestControlGroup:
    async def test_memory_of_all_together(self, make: Make, group_folders: Any) -> None:
        """Each of the three is below the limit, and two of them are."""
        sandbox = await make(limits=Limits(memory=200 << 20))
        control = sandbox.report().controls["limits.memory"]
        assert control.state == "verified"
        assert "200 MiB for the whole session" in control.how
        hog = (
            "import os, time\npids = []\nfor _ in range(3):\n    pids.append(os.fork())\n    if not pids[-1]:\n"
            "        x = bytearray(b'x') * (90 << 20); time.sleep(0.5); os._exit(0)\n"
            "print(*[os.waitpid(pid, 0)[1] for pid in pids])"
        )
        await sandbox.write_file("hog.py", hog.encode())
        result = await sandbox.exec("python3 hog.py", timeout=20)
        assert "9" in result.stdout.text().split()
        assert "memory limit of 200 MiB" in result.notice
        result = await sandbox.exec("echo alive")
        assert (result.stdout.text(), result.notice) == ("alive\n", "")

    async def test_processes_of_all_together(self, make: Make, group_folders: Any) -> None:
        """Each job is below the limit of one command, which is 60; without the group there would be 150 processes."""
        sandbox = await make(limits=Limits(procs=60, grace_s=0.1))
        assert "124 processes for the whole session" in sandbox.report().controls["limits.procs"].how
        await sandbox.write_file(
            "fork.py", b"import os, time\nfor _ in range(29): os.fork() or time.sleep(30)\ntime.sleep(30)"
        )
        jobs = [await sandbox.spawn("exec python3 fork.py") for _ in range(5)]
        results = await asyncio.gather(*(job.wait(1.5) for job in jobs))
        # Whoever could not fork ended with an error.
        assert 1 in {status.exit_code for status in results}
        for job in jobs:
            await job.kill()
        assert await out(sandbox, "echo alive") == "alive"

    async def test_it_is_gone_at_the_end(self, make: Make, group_folders: Any) -> None:
        before = group_folders()
        sandbox = await make()
        assert len(group_folders()) > len(before)
        await sandbox.spawn("sleep 30")
        await sandbox.close()
        assert _own(group_folders()) == []

    def test_what_a_killed_worker_leaves_the_next_one_removes(
        self, workspace: Path, tmp_path: Path, group_folders: Any
    ) -> None:
        argv = [sys.executable, "-c", WORKER, str(workspace), str(tmp_path / "boxes" / "one"), f"86.{RUN}"]
        with subprocess.Popen(argv) as worker:
            mark = f"-{worker.pid}-"
            try:
                wait_until(lambda: len([pid for pid in processes_of(f"86.{RUN}") if pid != worker.pid]) >= 4)
                assert [folder for folder in group_folders() if mark in folder.name]
            finally:
                worker.kill()
        wait_until(lambda: not processes_of(f"86.{RUN}"))
        # Sessions of other tests may have removed the groups by now, but not this folder.
        assert (tmp_path / "boxes" / "one" / "home" / "big").exists()

        async def next_one() -> None:
            sandbox = open_sandbox("bubblewrap", Policy(workspace), session_dir=tmp_path / "boxes" / "two")
            await sandbox.start()
            await sandbox.close()

        asyncio.run(next_one())
        assert not [folder for folder in group_folders() if mark in folder.name]
        assert not (tmp_path / "boxes" / "one" / "home").exists()


WORKER = """
import asyncio, sys
from pathlib import Path
from operator_core.sandbox import Policy, open_sandbox
async def main():
    s = open_sandbox("bubblewrap", Policy(Path(sys.argv[1])), session_dir=Path(sys.argv[2]))
    await s.start()
    await s.spawn(f"touch ~/big; setsid sleep {sys.argv[3]} & sleep {sys.argv[3]}")
    await s.exec(f"(setsid sleep {sys.argv[3]} &); sleep {sys.argv[3]}")
asyncio.run(main())
"""


async def test_ten_storms_of_cancellations_leave_nothing(make: Make) -> None:
    sandbox = await make()
    command = f"trap '' TERM INT; (setsid sleep 87.{RUN} &); sleep 87.{RUN} & sleep 87.{RUN}"
    for storm in range(10):
        tasks = [asyncio.create_task(sandbox.exec(command)) for _ in range(12)]
        for number, task in enumerate(tasks):
            await asyncio.sleep(0.001 * ((number * 7 + storm) % 5))
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(wait_until, lambda: not processes_of(f"87.{RUN}"), 2.0)
    assert await out(sandbox, "echo alive") == "alive"


@pytest.mark.parametrize("backend", ["bubblewrap", "none"])
async def test_closing_while_commands_start_ends_them(backend: str, workspace: Path, tmp_path: Path) -> None:
    """They were left running if the order to end came before they were there."""
    for n in range(12):
        sandbox = open_sandbox(backend, Policy(workspace), session_dir=tmp_path / f"e{n}")
        await sandbox.start()
        calls = [asyncio.create_task(sandbox.exec(f"sleep 90.{RUN}")) for _ in range(3)]
        for _ in range(n):
            await asyncio.sleep(0)
        await asyncio.sleep(max(0, n - 6) * 0.003)
        await asyncio.wait_for(sandbox.close(), 10)
        await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
        assert not processes_of(f"90.{RUN}")


async def test_closing_while_it_starts_leaves_nothing(workspace: Path, tmp_path: Path) -> None:
    for n in range(12):
        folder = tmp_path / f"c{n}"
        sandbox = open_sandbox("bubblewrap", Policy(workspace), session_dir=folder)
        task = asyncio.create_task(sandbox.start())
        await asyncio.sleep(n * 0.012)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await sandbox.close()
        assert not folder.exists()
    assert not set(descendants(os.getpid())) & set(processes_of("namespaces_helper.py") + processes_of("bwrap"))


async def test_closing_auto_while_it_starts_closes_what_it_tries(workspace: Path, tmp_path: Path) -> None:
    for n in range(4):
        folder = tmp_path / f"a{n}"
        options = Options(docker_image="not-needed")
        sandbox = open_sandbox("auto", Policy(workspace), session_dir=folder, options=options)
        task = asyncio.create_task(sandbox.start())
        await asyncio.sleep(0.005 + n * 0.01)
        await sandbox.close()
        with contextlib.suppress(SandboxError):
            await task
        assert not folder.exists()


def test_the_same_as_an_ordinary_user(unprivileged: Unprivileged) -> None:
    """A network that is shared, a socket made in it, and a proxy; without any right of root."""
    done = unprivileged.python(AS_USER, str(unprivileged.make("ws")), str(unprivileged.folder / "box"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["isolated verified", "you said hello", "403", "True", "1000", "False"]


AS_USER = """
import asyncio, os, sys
from pathlib import Path
from operator_core.sandbox import Policy, open_sandbox
async def serve(reader, writer):
    writer.write(b"you said " + await reader.readline())
    await writer.drain()
    writer.close()
async def main():
    s = open_sandbox("bubblewrap", Policy(Path(sys.argv[1]), network="allowlist"), session_dir=Path(sys.argv[2]))
    report = await s.start()
    print(report.level, report.controls["network"].state)
    async with await asyncio.start_server(serve, sock=await s.listen(4444)):
        r = await s.exec("exec 3<>/dev/tcp/127.0.0.1/4444 && echo hello >&3 && cat <&3")
        print(r.stdout.text().strip())
    r = await s.exec("curl -s -o /dev/null -w '%{http_code}' http://other.example/")
    print(r.stdout.text())
    await s.spawn("exec python3 -m http.server --bind 127.0.0.1 8123")
    r = await s.exec("for n in {1..200}; do curl -s 127.0.0.1:8123 && break; sleep 0.05; done")
    print("Directory listing" in r.stdout.text())
    print((await s.exec("id -u")).stdout.text().strip())
    await s.close()
    print(os.path.exists(sys.argv[2]))
asyncio.run(main())
"""
