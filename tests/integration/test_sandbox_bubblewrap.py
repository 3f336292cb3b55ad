"""Attacks on the bubblewrap backend, each of which succeeded against a plain ``bwrap`` (see the module's docstring)."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import SandboxError
from operator_core.sandbox import Limits, Policy, Sandbox, open_sandbox
from operator_core.sandbox.bubblewrap import backend
from operator_core.sandbox.bubblewrap import tree as namespace_tree
from operator_core.sandbox.linux.namespaces import Namespaces
from operator_core.sandbox.linux.seccomp import system_call
from operator_core.sandbox.mounts import covers
from operator_core.sandbox.selftest.findings import CORE
from tests.support import processes_of, wait_until

# Seconds to sleep that no other run of these tests uses, so that leftovers are ours.
RUN = f"{random.randrange(10**9):09d}"

pytestmark = pytest.mark.usefixtures("require_bubblewrap")

Make = Callable[..., Any]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
async def make(tmp_path: Path, workspace: Path) -> AsyncIterator[Make]:
    opened: list[Sandbox] = []

    async def start(**policy: Any) -> Sandbox:
        sandbox = open_sandbox("auto", Policy(workspace, **policy), session_dir=tmp_path / "session")
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


def run_program(argv: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)


async def out(sandbox: Sandbox, command: str, **options: Any) -> str:
    result = await sandbox.exec(command, **options)
    return result.stdout.text().strip()


async def test_the_report(sandbox: Sandbox, tmp_path: Path) -> None:
    report = sandbox.report()
    assert sandbox.name == "bubblewrap"
    assert report.level == "isolated"
    assert {report.controls[name].state for name in (*CORE, "limits.shm")} == {"verified"}
    assert report.controls["vsock"].state == ("verified" if shutil.which("perl", path="/usr/bin:/bin") else "partial")
    assert report.controls["workspace.exec_later"].state == "partial"
    assert report.controls["limits.procs"].state == "verified"
    assert ("user" in report.controls) is (os.geteuid() == 0)
    assert "user" not in report.controls or report.controls["user"].state == "verified"
    assert report.warnings == ()
    assert 0 < report.self_test_ms < 30_000
    assert not (tmp_path / "session" / "canary").exists()


async def test_only_the_workspace_is_written(sandbox: Sandbox, workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (workspace / "link").symlink_to(outside)
    command = f"""
      echo evil >{outside}; echo evil >link; echo evil >/proc/self/root{outside}; echo evil >/proc/1/root{outside}
      for p in /usr/x /etc/passwd /x /bin/bash /home/x /run/x /dev/x; do echo evil >>$p && echo open $p; done
      mount -t tmpfs none /mnt && echo open mount; chroot / true && echo open chroot
      mv {workspace} {workspace}.old && echo open mv; true"""
    assert await out(sandbox, command) == ""
    assert outside.read_text() == "mine"


async def test_secrets_of_the_host_are_not_read(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary-77aa")
    home = os.path.expanduser("~")
    Path(home, ".ssh").mkdir()
    Path(home, ".ssh", "id").write_text("canary-77aa")
    command = (
        f"cat {tmp_path}/secret {home}/.ssh/id /proc/*/root{tmp_path}/secret /etc/shadow; ls -A /root/.ssh /sys /boot"
    )
    assert await out(sandbox, command) == ""


async def test_no_process_shows_our_environment_or_options(make: Make, workspace: Path, tmp_path: Path) -> None:
    """Bubblewrap's first process is readable inside; the child has the canary from the start, as a worker would."""
    code = f"""
import asyncio, sys
from pathlib import Path
from operator_core.sandbox import Policy, open_sandbox
async def main():
    s = open_sandbox("bubblewrap", Policy(Path({str(workspace)!r}), env={{"OPTION": "value-31c0"}}),
                     session_dir=Path({str(tmp_path / "s")!r}))
    await s.start()
    r = await s.exec("unset OPTION; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\\\0' '\\\\n'; echo end")
    sys.stdout.write(r.stdout.text())
    r = await s.exec("cat /proc/1/environ /proc/1/cmdline")
    print("first", r.stdout.text().count("value-31c0"))
    await s.close()
asyncio.run(main())
"""
    done = run_program([sys.executable, "-c", code], {**os.environ, "VICTIM_API_KEY": "canary-90bd"})
    assert done.returncode == 0, done.stderr
    assert "end\n" in done.stdout
    assert "PATH=" in done.stdout
    assert "canary-90bd" not in done.stdout
    assert "first 0\n" in done.stdout


async def test_processes_of_the_host_are_invisible(sandbox: Sandbox) -> None:
    victim = await asyncio.create_subprocess_exec("sleep", f"81.{RUN}")
    try:
        assert await out(sandbox, f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '81[.]{RUN}'") == "0"
        await sandbox.exec(f"kill -9 {victim.pid}; kill -9 -1")
        assert processes_of(f"81.{RUN}") == [victim.pid]
    finally:
        victim.kill()
        await victim.wait()


async def test_sysctls_of_the_kernel_are_not_written(sandbox: Sandbox) -> None:
    """As host root this was open to a plain bwrap: ``core_pattern`` runs a program as root."""
    files = "/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sysrq-trigger"
    assert await out(sandbox, f"for f in {files}; do (: >>$f) && echo open $f; done; true") == ""
    assert await out(sandbox, "umount /proc/sys; umount -l /proc; mount -o remount,rw /proc/sys; (: >>/proc/sys/kernel/"
                     "core_pattern) && echo open; true") == ""  # fmt: skip


async def test_setuid_bits_cannot_be_made(sandbox: Sandbox, workspace: Path) -> None:
    await sandbox.exec("cp /bin/bash a; chmod 4755 a; cp /bin/bash b; chmod u+s b; chmod 2755 b; install -m 4755 a c")
    code = "import os; os.close(os.open('d', os.O_CREAT, 0o4755)); "
    await sandbox.exec(f'python3 -c "{code}"; python3 -c "import os; os.mknod(\'e\', 0o104755)"')
    for path in workspace.iterdir():
        assert path.stat().st_mode & 0o6000 == 0, path
    assert (workspace / "a").exists()


async def test_kernel_interfaces_are_refused(sandbox: Sandbox) -> None:
    numbers = ", ".join(str(system_call(name)) for name in ("io_uring_setup", "keyctl", "bpf", "userfaultfd", "clone3"))
    code = (
        "import ctypes, errno, socket\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"print([libc.syscall(n, 0, 0, 0) == -1 and errno.errorcode[ctypes.get_errno()] for n in ({numbers})])\n"
        "for family in (40, 38, 17):\n"
        "    try: socket.socket(family, 3 if family == 17 else 1)\n"
        "    except OSError as e: print(errno.errorcode[e.errno])\n"
        "socket.socketpair(); socket.socket(); socket.socket(16, 3)\n"
    )
    await sandbox.write_file("probe.py", code.encode())
    result = await sandbox.exec("python3 probe.py; unshare -Ur true && echo open")
    assert result.stdout.text() == "['EPERM', 'EPERM', 'EPERM', 'EPERM', 'ENOSYS']\n" + "EAFNOSUPPORT\n" * 3


async def test_the_network_is_empty(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0operator-test-abstract")
        abstract.listen()
        port = server.getsockname()[1]
        code = "import socket; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + 'operator-test-abstract')"
        command = f'(: </dev/tcp/127.0.0.1/{port}) && echo open; python3 -c "{code}" && echo open; cat /proc/net/dev'
        assert [line.split(":")[0].strip() for line in (await out(sandbox, command)).splitlines()[2:]] == ["lo"]


async def test_the_network_of_the_host_when_the_policy_says_so(make: Make) -> None:
    sandbox = await make(network="host")
    report = sandbox.report()
    assert report.level == "open"
    assert report.controls["network"].state == "not_enforced"
    assert any("network" in text for text in report.warnings)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert await out(sandbox, f"(: </dev/tcp/127.0.0.1/{server.getsockname()[1]}) && echo open") == "open"


class TestProtected:
    @pytest.fixture
    def repository(self, workspace: Path) -> Path:
        subprocess.run(["git", "init", "-q", str(workspace)], check=True)
        return workspace

    async def test_git_works_and_its_hooks_do_not_change(self, repository: Path, make: Make) -> None:
        sandbox = await make()
        config = (repository / ".git/config").read_text()
        attack = (
            "echo evil >.git/hooks/post-checkout; git config core.fsmonitor evil; rm -rf .git/hooks; mv .git/hooks x;"
            "mv .git moved; ln -s /tmp .git/hooks; rm -rf .git/config; git init -q"
        )
        await sandbox.exec(attack)
        assert (repository / ".git/config").read_text() == config
        assert not (repository / ".git/hooks/post-checkout").exists()
        assert not (repository / "moved").exists()
        work = (
            "echo x >f; git add f; git -c user.name=a -c user.email=b@c commit -qm one; git checkout -qb two; git log"
        )
        assert "one" in await out(sandbox, work)

    async def test_absolute_paths_nested_paths_and_links(self, workspace: Path, tmp_path: Path, make: Make) -> None:
        (workspace / "a/b/c").mkdir(parents=True)
        (workspace / "a/b/c/file").write_text("kept")
        extra = tmp_path / "extra"
        (extra / "d").mkdir(parents=True)
        (extra / "d" / "file").write_text("kept")
        (workspace / "real").mkdir()
        (workspace / "link").symlink_to("real")
        sandbox = await make(writable=(extra,), protected=("a/b/c", str(extra / "d" / "file"), "link", "missing/x"))
        attack = (
            "echo evil >a/b/c/file; mv a/b/c x; mv a/b x; mv a x; touch real/new;"
            f"echo evil >{extra}/d/file; mv {extra}/d {extra}/e; rm -f {extra}/d/file; touch a/b/ok {extra}/ok"
        )
        await sandbox.exec(attack)
        assert (workspace / "a/b/c/file").read_text() == (extra / "d" / "file").read_text() == "kept"
        assert (workspace / "a/b/ok").exists()
        assert (extra / "ok").exists()
        assert not list((workspace / "real").iterdir())

    async def test_protected_from_the_next_command_on(self, workspace: Path, make: Make) -> None:
        sandbox = await make()
        await sandbox.exec("git init -q")
        await sandbox.exec("echo evil >.git/hooks/pre-commit")
        assert not (workspace / ".git/hooks/pre-commit").exists()

    async def test_masked(self, workspace: Path, make: Make) -> None:
        (workspace / ".env").write_text("canary-1")
        (workspace / "keys").mkdir()
        (workspace / "keys" / "k").write_text("canary-2")
        sandbox = await make(masked=(".env", "keys"))
        assert await out(sandbox, "cat .env keys/k; ls -A keys; touch keys/new; echo x >.env; echo end") == "end"
        assert (workspace / ".env").read_text() == "canary-1"

    async def test_the_session_is_not_reachable_when_it_lies_in_the_workspace(self, workspace: Path) -> None:
        sandbox = open_sandbox("auto", Policy(workspace), session_dir=workspace / ".session")
        await sandbox.start()
        (workspace / ".session" / "journal").write_text("canary-3")
        command = (
            "cat .session/journal; echo evil >.session/state/x; echo evil >.session/new; ls .session;"
            "echo x >.session/out/y; seq 9999"
        )
        result = await sandbox.exec(command)
        assert result.stdout.text().startswith("out\n1\n")
        assert result.stdout.spill is not None
        assert await out(sandbox, f"tail -n1 {result.stdout.spill}") == "9999"
        assert os.listdir(workspace / ".session" / "state") == []
        await sandbox.close()


async def test_readable_and_a_path_that_is_gone(make: Make, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "f").write_text("text")
    sandbox = await make(readable=(shown,))
    assert await out(sandbox, f"cat {shown}/f; echo x >{shown}/f; echo x >{shown}/g; echo end") == "textend"
    assert (shown / "f").read_text() == "text"
    shutil.rmtree(shown)
    with pytest.raises(SandboxError, match="shown"):
        await sandbox.exec("true")


async def test_limits_are_set(make: Make) -> None:
    limits = Limits(memory=256 << 20, file_size=1 << 20, nofile=64, shm=1 << 20, procs=100)
    sandbox = await make(limits=limits)
    assert await out(sandbox, "ulimit -d -f -n -u -c | awk '{print $NF}' | tr '\\n' ' '") == "262144 1024 64 100 0"
    result = await sandbox.exec("python3 -c 'x = bytearray(400 << 20)'")
    assert "MemoryError" in result.stderr.text()
    await sandbox.exec("head -c 5000000 /dev/zero >big; head -c 5000000 /dev/zero >/dev/shm/big")
    assert await out(sandbox, "stat -c %s big") == str(1 << 20)
    assert (
        await out(sandbox, "head -c 5000000 /dev/zero >/dev/shm/big; ulimit -f; stat -c %s /dev/shm/big") != "5000000"
    )
    assert (await sandbox.exec("ulimit -n 100000")).exit_code != 0


async def test_a_fork_bomb_is_limited(make: Make) -> None:
    sandbox = await make(limits=Limits(procs=40))
    await sandbox.write_file("bomb.py", b"import os, time\nfor n in range(100):\n    os.fork() or time.sleep(30)\n")
    result = await sandbox.exec("python3 bomb.py", timeout=10)
    assert "BlockingIOError" in result.stderr.text()


async def test_daemons_are_counted_and_gone_when_the_call_returns(sandbox: Sandbox) -> None:
    daemon = f"import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(82.{RUN})"
    await sandbox.write_file("daemon.py", daemon.encode())
    for _ in range(10):
        result = await sandbox.exec(f"python3 daemon.py 82.{RUN}; setsid sleep 89.{RUN} & sleep 0.05")
        assert result.background == 2
        assert not processes_of(f"82.{RUN}")
        assert not processes_of(f"89.{RUN}")


async def test_killing_everything_inside_ends_only_the_call(sandbox: Sandbox) -> None:
    result = await sandbox.exec("kill -9 1; kill -9 -1; echo still here")
    assert result.reason == "exited"
    assert await out(sandbox, "echo alive") == "alive"


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_two_hundred_early_kills_leave_no_orphan(sandbox: Sandbox, how: str) -> None:
    """Killing only bubblewrap's outer process in its first milliseconds left 28 to 74 orphans of 40."""

    async def one(n: int) -> None:
        delay = n % 25 * 0.0005
        command, mark = f"sleep 83.{RUN} & setsid sleep 83.{RUN} & sleep 83.{RUN}", {"MARK": f"83.{RUN}"}
        if how == "timeout":
            await sandbox.exec(command, env=mark, timeout=delay + 0.0001)
            return
        task = asyncio.create_task(sandbox.exec(command, env=mark))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for n in range(100):
        await one(n)
    # An orphan of the very first moment needs a moment to become visible.
    await asyncio.sleep(0.3)
    assert not processes_of(f"83.{RUN}")


WORKER = """
import asyncio, sys
from pathlib import Path
from operator_core.sandbox import Policy, open_sandbox
async def main():
    s = open_sandbox("bubblewrap", Policy(Path(sys.argv[1])), session_dir=Path(sys.argv[2]))
    await s.start()
    sleep = f"sleep {sys.argv[3]}"
    await s.spawn(f"setsid {sleep} & {sleep}")
    await asyncio.gather(*(s.exec(f"trap '' TERM; (setsid {sleep} &); {sleep}") for _ in range(3)))
asyncio.run(main())
"""


def test_sigkill_of_the_worker_leaves_nothing(workspace: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WORKER, str(workspace), str(tmp_path / "s"), f"84.{RUN}"]) as worker:
        try:
            wait_until(lambda: len([pid for pid in processes_of(f"84.{RUN}") if pid != worker.pid]) >= 8)
        finally:
            worker.kill()
    wait_until(lambda: not processes_of(f"84.{RUN}"))


class TestSelfTest:
    """Each hole is opened in the real sandbox; the self-test must find it, or it proves nothing."""

    @pytest.mark.parametrize(
        ("drop", "control"),
        [
            (("--unshare-pid",), "process.isolation"),
            (("--unshare-ipc",), "process.isolation"),
            (("--cap-drop", "ALL"), "privileges"),
        ],
    )
    async def test_an_option_is_missing(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, drop: tuple[str, ...], control: str
    ) -> None:
        real = backend.fixed_arguments

        def weaker(*args: Any, **named: Any) -> list[str]:
            options = real(*args, **named)
            at = options.index(drop[0])
            del options[at : at + len(drop)]
            # Without this bubblewrap keeps capabilities only for root.
            return options + (["--cap-add", "ALL"] if "--cap-drop" in drop else [])

        monkeypatch.setattr(backend, "fixed_arguments", weaker)
        with pytest.raises(SandboxError, match=control.replace(".", r"\.")):
            await make()

    async def test_the_network_is_not_entered(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        real = Namespaces.entrance

        def outside(self: Namespaces) -> list[str]:
            return [word for word in real(self) if not word.startswith("--net=")]

        monkeypatch.setattr(Namespaces, "entrance", outside)
        with pytest.raises(SandboxError, match=r"network: 127|shared namespace net"):
            await make()

    @pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is not another one in there")
    async def test_commands_are_another_user_than_was_said(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(namespace_tree, "user_of", lambda pid: 0)
        with pytest.raises(SandboxError, match=r"were to be user 6\d{4} and are 0"):
            await make()

    @pytest.mark.parametrize(
        ("add", "control"),
        [
            (("--bind", "/etc", "/etc"), "filesystem"),
            (("--bind", "/proc", "/proc"), "process.isolation"),
        ],
    )
    async def test_the_host_is_mounted(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, add: tuple[str, ...], control: str
    ) -> None:
        real = backend.mount_arguments
        monkeypatch.setattr(backend, "mount_arguments", lambda *args: [*real(*args), *add])
        if add[2] == "/etc" and os.geteuid() != 0:
            pytest.skip("only root can write there")
        with pytest.raises(SandboxError, match=control):
            await make(run_as=0)

    @pytest.mark.skipif(os.geteuid() != 0, reason="the sysctls are closed to an ordinary user")
    async def test_the_cover_over_proc_is_missing(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        from operator_core.sandbox.bubblewrap import profile

        monkeypatch.setattr(profile, "_PROC_READ_ONLY", ())
        with pytest.raises(SandboxError, match=r"kernel\.sysctl: /proc/sys/kernel/core_pattern"):
            await make(run_as=0)

    async def test_the_filter_is_empty(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        allow_all = b"\x06\x00\x00\x00\x00\x00\xff\x7f"
        monkeypatch.setattr(backend, "build_filter", lambda: allow_all)
        with pytest.raises(SandboxError, match="setuid: /tmp"):
            await make()

    async def test_our_environment_is_given_to_bubblewrap(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        real = backend.start_process

        async def leaky(*args: Any, **options: Any) -> Any:
            return await real(*args, **{**options, "env": {**options["env"], "MODEL_KEY": "canary"}})

        monkeypatch.setattr(backend, "start_process", leaky)
        with pytest.raises(SandboxError, match=r"secrets\.env: the variable MODEL_KEY"):
            await make()
        assert not (tmp_path / "session").exists()

    async def test_the_protection_of_git_is_missing(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, workspace: Path
    ) -> None:
        from operator_core.sandbox import mounts

        run_program(["git", "init", "-q", str(workspace)])
        monkeypatch.setattr(mounts, "_protected", lambda policy: iter(()))
        with pytest.raises(SandboxError, match=r"workspace\.exec_later"):
            await make()
        assert (workspace / ".git" / "config").exists()

    async def test_a_hard_link_in_the_workspace_is_said(self, make: Make, workspace: Path, tmp_path: Path) -> None:
        (tmp_path / "outside").write_text("x")
        os.link(tmp_path / "outside", workspace / "linked")
        sandbox = await make()
        assert sandbox.report().controls["workspace.hardlinks"].how.startswith("1 files")


async def test_a_job_cannot_choose_what_the_next_command_sees(make: Make, workspace: Path) -> None:
    """It could: what is protected is bound over itself, and a link put there after we had looked was followed."""
    (workspace / ".idea").mkdir()
    sandbox = await make(masked=("secret/deep/file",))
    count = "grep -cE '/ws/(.vscode|.git|secret)' /proc/self/mountinfo"
    job = await sandbox.spawn("sleep 60")
    assert await out(sandbox, f"mkdir -p .vscode .git/hooks secret/deep; : >secret/deep/file; {count}") == "0"
    # What the job could replace is not bound ...
    assert await out(sandbox, "grep -cE '/ws/(.vscode|.git|secret/deep) ' /proc/self/mountinfo") == "0"
    # ... and what it sees covered itself, it cannot replace.
    assert (await sandbox.exec("touch .idea/x || mv .idea y")).exit_code
    await job.kill()
    assert (await sandbox.exec("touch .vscode/x || touch .git/hooks/x || mv .git x || cat secret/deep/file")).exit_code


async def test_a_link_where_something_is_protected_or_masked(make: Make, workspace: Path, tmp_path: Path) -> None:
    """What the link leads to is not protected in here, and so neither attacked (that refused the session) nor shown."""
    outside = tmp_path / "outside" / "deep"
    outside.mkdir(parents=True)
    (outside / "file").write_text("x")
    (workspace / ".vscode").symlink_to("/tmp")
    (workspace / "secret").symlink_to(outside.parent)
    covered = covers(Policy(workspace, masked=("secret/deep/file",)))
    assert not [path for path, _ in covered if ".vscode" in path.parts or "secret" in path.parts]
    sandbox = await make()
    assert (await sandbox.exec("true")).exit_code == 0


async def test_options_that_nobody_reads(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than a pipe holds, and a bubblewrap that has ended: the worker waited for itself, for ever."""
    sandbox = await make(env={f"V{n}": "x" * 60_000 for n in range(3)})
    assert (await sandbox.exec("true")).exit_code == 0
    monkeypatch.setattr(sandbox, "_program", "/bin/false")
    signal.alarm(20)
    try:
        result = await sandbox.exec("true")
    finally:
        signal.alarm(0)
    assert result.exit_code


async def test_closing_again_after_a_cancelled_close(make: Make, tmp_path: Path) -> None:
    """The second one removed nothing, because the first one had begun."""
    sandbox = await make()
    call = asyncio.create_task(sandbox.exec("sleep 60"))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, call, return_exceptions=True)
    await sandbox.close()
    assert not (tmp_path / "session").exists()


async def test_a_folder_above_of_what_is_shown_stays_where_it_is(make: Make, workspace: Path, tmp_path: Path) -> None:
    """With another folder in its place the next command was shown whatever a link in there led to."""
    (workspace / "a" / "shown").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("theirs")
    sandbox = await make(readable=(workspace / "a" / "shown",))
    await sandbox.exec(f"mv a b; mkdir a; ln -s {tmp_path}/secret a/shown")
    assert await out(sandbox, "cat a/shown/file") == ""
    assert not (workspace / "b").exists()
