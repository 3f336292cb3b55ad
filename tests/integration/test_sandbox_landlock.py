"""The degraded tier: what it holds and says, for an ordinary user; and how ``auto`` comes to it, or does not."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import SandboxUnavailable
from operator_core.sandbox import Policy, open_sandbox
from operator_core.sandbox.options import Options
from tests.support import Unprivileged, processes_of, wait_until

RUN = f"{random.randrange(10**9):09d}"

PREAMBLE = """
import asyncio, json, os, socket, subprocess, sys
from pathlib import Path
from operator_core.errors import SandboxError, SandboxUnavailable
from operator_core.sandbox import Limits, Policy, open_sandbox
from operator_core.sandbox.options import Options
base = Path(os.environ["HOME"])
(base / "ws").mkdir(exist_ok=True)
def box(backend="landlock", options=Options(), **policy):
    return open_sandbox(backend, Policy(base / "ws", **policy), session_dir=base / "s", options=options)
async def text(sandbox, command, **options):
    done = await sandbox.exec(command, **options)
    return done.stdout.text() + done.stderr.text()
"""


def run(user: Unprivileged, body: str, *arguments: str) -> Any:
    """What a program of an ordinary user printed, as JSON: the body of an async function that gives ``answer``."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    done = user.python(
        f"{PREAMBLE}\nasync def main():\n{lines}\n    print(json.dumps(answer))\nasyncio.run(main())", *arguments
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_the_contract(unprivileged: Unprivileged) -> None:
    """Everything in ``test_sandbox_contract.py``, as a user whom landlock holds."""
    words = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", "landlock", "tests/integration/test_sandbox_contract.py"]
    done = unprivileged.run(sys.executable, "-m", "pytest", *words, timeout=500)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only for root")
async def test_root_is_refused(tmp_path: Path) -> None:
    sandbox = open_sandbox("landlock", Policy(tmp_path), session_dir=tmp_path / "s")
    with pytest.raises(SandboxUnavailable, match=r"does not hold root.*Remedy: start Operator as an ordinary user"):
        await sandbox.start()
    assert not (tmp_path / "s").exists()


def test_the_report_is_modest(unprivileged: Unprivileged) -> None:
    report = run(
        unprivileged,
        """
sandbox = box()
answer = (await sandbox.start()).to_dict()
await sandbox.close()
""",
    )
    states = {name: item["state"] for name, item in report["controls"].items()}
    assert report["level"] == "confined"
    assert report["backend"].startswith("landlock ABI ")
    for name in ("network", "unix_sockets", "kill_tree", "secrets.env", "privileges", "limits.shm", "vsock"):
        assert states[name] == "verified", name
    for name in ("filesystem.write", "filesystem.read", "process.isolation", "limits.procs", "limits.memory"):
        assert states[name] == "partial", name
    assert states["workspace.exec_later"] == "not_enforced"


ATTACKS = """
import ctypes, os, resource, signal, socket, sys
victim, folder = int(sys.argv[1]), sys.argv[2]
def attempt(name, what):
    try:
        what()
        print(name, "open")
    except OSError:
        print(name, "held")
def trace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, victim, 0, 0) < 0:
        raise OSError
def unix():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(folder + "/socket")
attempt("signal", lambda: os.kill(victim, signal.SIGUSR1))
attempt("parent", lambda: os.kill(os.getppid(), 0) or os.kill(int(sys.argv[3]), signal.SIGSTOP))
attempt("trace", trace)
attempt("environ", lambda: open(f"/proc/{victim}/environ").read())
attempt("memory", lambda: open(f"/proc/{victim}/mem", "rb"))
attempt("limits", lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE))
attempt("cwd", lambda: os.listdir(f"/proc/{victim}/cwd"))
attempt("unix", unix)
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", int(sys.argv[4])), 1))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("read", lambda: open(folder + "/secret").read())
attempt("write", lambda: open(folder + "/secret", "w"))
attempt("truncate", lambda: os.truncate(folder + "/secret", 0))
attempt("unlink", lambda: os.unlink(folder + "/secret"))
attempt("rename", lambda: os.rename(folder + "/secret", "taken"))
attempt("link", lambda: os.link(folder + "/secret", "linked"))
attempt("make", lambda: os.mkdir(folder + "/made"))
attempt("list", lambda: os.listdir(folder))
def shared():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.shmget(4242, 4096, 0o1666) < 0:
        raise OSError
attempt("sysv", shared)
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, victim, 19))
attempt("user", lambda: os.setpriority(os.PRIO_USER, 0, 1))
attempt("affinity", lambda: os.sched_setaffinity(victim, {0}))
os.setpriority(os.PRIO_PROCESS, 0, 1)
os.sched_setaffinity(0, os.sched_getaffinity(0))
attempt("shm", lambda: open("/dev/shm/operator-test", "w"))
attempt("tmp", lambda: open("/tmp/operator-test", "w"))
"""


def test_attacks_on_what_is_the_users_own(unprivileged: Unprivileged) -> None:
    """Everything here belongs to the very user as whom commands run: only landlock and seccomp are in the way."""
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        answer = run(
            unprivileged,
            """
(base / "room").mkdir()
(base / "room" / "secret").write_text("secret")
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(base / "room" / "socket"))
listener.listen()
victim = subprocess.Popen(["sleep", "60"], cwd=base / "room")
(base / "ws" / "attack.py").write_text(sys.argv[1])
sandbox = box()
await sandbox.start()
words = f"{victim.pid} {base}/room {os.getpid()} {sys.argv[2]}"
answer = [await text(sandbox, f"python3 attack.py {words}"), (base / "room" / "secret").read_text(), victim.poll()]
victim.kill()
victim.wait()
await sandbox.close()
""",
            ATTACKS,
            str(tcp.getsockname()[1]),
        )
    output, secret, code = answer
    lines = dict(line.split() for line in output.splitlines())
    assert [name for name, state in lines.items() if state != "held"] == []
    assert len(lines) == 24, output
    assert (secret, code) == ("secret", None)


def test_it_refuses_what_it_cannot_do(unprivileged: Unprivileged) -> None:
    answer = run(
        unprivileged,
        """
answer = []
for policy in ({"network": "allowlist"}, {"secret_files": {"t": base / "t"}}):
    sandbox = box(**policy)
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        answer.append(error.reason)
sandbox = box()
await sandbox.start()
try:
    await sandbox.listen()
except SandboxError as error:
    answer.append(str(error))
await sandbox.close()
""",
    )
    assert "no proxy can be put in front of it" in answer[0]
    assert "cannot show files at another path" in answer[1]
    assert "no network" in answer[2]


def test_a_command_that_cannot_be_set_up_has_not_run(unprivileged: Unprivileged) -> None:
    """A folder that this very user may not even open."""
    answer = run(
        unprivileged,
        """
(base / "shown").mkdir()
sandbox = box(readable=(base / "shown",))
await sandbox.start()
(base / "shown").rename(base / "hidden")
(base / "shown").symlink_to(base / "shown")
try:
    answer = (await sandbox.exec("touch made")).exit_code
except SandboxError as error:
    answer = [str(error), (base / "ws" / "made").exists()]
await sandbox.close()
""",
    )
    assert "it has not run: " in answer[0]
    assert answer[1] is False


def test_auto_degrades_only_when_allowed(unprivileged: Unprivileged) -> None:
    answer = run(
        unprivileged,
        """
os.environ["PATH"] = str(base)
answer = []
for options in (Options(), Options("degrade"), Options(docker_image="x"), Options("degrade", docker_image="x")):
    sandbox = box("auto", options)
    try:
        report = await sandbox.start()
        done = await sandbox.exec("echo hi")
        answer.append([sandbox.name, report.level, list(report.warnings), done.stdout.text()])
    except SandboxUnavailable as error:
        answer.append([error.reason, error.remedy])
    await sandbox.close()
""",
    )
    refused, degraded, both, past_docker = answer
    assert "bubblewrap is not installed" in refused[0]
    assert (degraded[0], degraded[1], degraded[3]) == ("landlock", "confined", "hi\n")
    assert any("bubblewrap is not used: bubblewrap is not installed" in text for text in degraded[2])
    assert any("degraded tier" in text for text in degraded[2])
    assert both[0].startswith("bubblewrap: bubblewrap is not installed")
    assert "; docker: docker is not installed" in both[0]
    assert "for bubblewrap, install it" in both[1]
    assert "; or for docker, install docker" in both[1]
    assert past_docker[0] == "landlock"
    assert any("docker is not used" in text for text in past_docker[2])


@pytest.mark.usefixtures("require_bubblewrap")
async def test_auto_takes_the_first(tmp_path: Path) -> None:
    options = Options("degrade", docker_image="operator-no-such-image")
    sandbox = open_sandbox("auto", Policy(tmp_path), session_dir=tmp_path.with_name("s"), options=options)
    report = await sandbox.start()
    assert (sandbox.name, report.level) == ("bubblewrap", "isolated")
    assert not any("not used" in text for text in report.warnings)
    assert (await sandbox.exec("echo hi")).stdout.text() == "hi\n"
    await sandbox.close()


WORKER = (
    PREAMBLE
    + """
async def main():
    sandbox = box()
    await sandbox.start()
    await sandbox.spawn(f"setsid sleep {sys.argv[1]}")
    await sandbox.exec(f"(setsid sleep {sys.argv[1]} &); touch ready; sleep {sys.argv[1]}")
asyncio.run(main())
"""
)


def test_nothing_outlives_the_worker(unprivileged: Unprivileged) -> None:
    marker = f"84.{RUN}"
    worker = unprivileged.start(sys.executable, "-c", WORKER, marker, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(processes_of(marker)) >= 4, 20)
        helpers = [pid for pid in processes_of("supervisor.py") if os.stat(f"/proc/{pid}").st_uid == unprivileged.uid]
        assert helpers or os.geteuid()
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    wait_until(lambda: not processes_of(marker), 60)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in helpers), 60)
