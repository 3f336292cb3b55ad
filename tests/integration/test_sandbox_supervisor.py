"""The program that starts commands for a worker, by itself: no container and no landlock around it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from operator_core.errors import SandboxError
from operator_core.sandbox.linux.seccomp import build_filter
from operator_core.sandbox.process import descendants
from operator_core.sandbox.runner import RawResult, run
from operator_core.sandbox.supervised import supervisor
from operator_core.sandbox.supervised.remote import ExecServer, RemoteCommand
from tests.support import processes_of, wait_until, wait_until_async

RUN = f"{random.randrange(10**9):09d}"


_BASH = ("/bin/bash", "--noprofile", "--norc", "-c", 'IFS= read -r -d "" c <&3; exec 3<&-; eval "$c"')


class Server:
    """A running server, and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-I", "-S", supervisor.__file__, "--fd", str(theirs.fileno())]
            self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        self.server = ExecServer(ours)

    async def run(self, text: str, argv: tuple[str, ...] = _BASH) -> RawResult:
        """Bash, with the command in descriptor 3."""
        command = RemoteCommand()

        async def spawn(out: int, err: int) -> RemoteCommand:
            return await self.server.start(command, argv, {}, text, out, err)

        return await run(spawn, timeout=10, tree=command)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    started = Server()
    await started.server.configure({"seccomp": build_filter().hex()})
    yield started
    started.server.close()
    assert started.process.wait(10) == 0


async def test_a_command(server: Server) -> None:
    result = await server.run("echo out; echo err >&2; umask; pwd; exit 3")
    assert (result.returncode, result.reason) == (3, "exited")
    assert (result.stdout.text(), result.stderr.text()) == ("out\n0022\n/\n", "err\n")
    status = (await server.run("cat /proc/self/status; ls /proc/self/fd; cat")).stdout.text()
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    signals = {
        line[:6]: int(line.partition(":")[2], 16) for line in status.splitlines() if line.startswith(("SigB", "SigI"))
    }
    assert signals["SigBlk"] == 0
    # Two belong to the C library, which lets nobody touch them; `make` leaves them ignored.
    assert signals["SigIgn"] & ~(0b11 << 31) == 0
    assert status.split()[-4:] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("text", "code"), [("kill -9 $$", -9), ("kill -TERM $$", -15), ("yes | true", 0)])
async def test_how_it_ended(server: Server, text: str, code: int) -> None:
    assert (await server.run(text)).returncode == code


async def test_what_cannot_be_started_says_so(server: Server) -> None:
    result = await server.run("true", argv=("/no/such/program",))
    assert result.returncode == 126
    assert result.stderr.text().startswith(f"{supervisor.FAILURE}[Errno 2]")


async def test_what_it_leaves_is_counted_and_ended(server: Server) -> None:
    result = await server.run(f"sleep 91.{RUN} & (setsid sleep 91.{RUN} &) ; trap '' TERM; sleep 0.1; echo")
    assert result.background == 2
    assert not processes_of(f"91.{RUN}")


async def test_two_at_once_do_not_end_each_other(server: Server) -> None:
    long = asyncio.create_task(server.run("for n in 1 2 3 4 5 6; do sleep 0.1; done; echo done"))
    for _ in range(5):
        await server.run("(setsid sleep 60 &); true")
    assert (await long).stdout.text() == "done\n"


async def test_a_supervisor_that_is_killed_leaves_nothing(server: Server) -> None:
    running = asyncio.create_task(server.run(f"(setsid sleep 92.{RUN} &); sleep 92.{RUN}"))
    await wait_until_async(lambda: len(processes_of(f"92.{RUN}")) == 2)
    (of_it,) = [pid for pid in descendants(server.process.pid) if supervisor._stat(pid)[1] == str(server.process.pid)]
    os.kill(of_it, signal.SIGKILL)
    result = await running
    assert result.returncode is None
    wait_until(lambda: not processes_of(f"92.{RUN}"), 60)
    assert (await server.run("echo alive")).stdout.text() == "alive\n"


async def test_without_its_worker_everything_ends() -> None:
    server = Server()
    await server.server.configure({"seccomp": build_filter().hex()})
    out = os.open(os.devnull, os.O_WRONLY)
    command = RemoteCommand()
    text = f"trap '' TERM; (setsid sleep 93.{RUN} &); sleep 93.{RUN}; sleep 93.{RUN}"
    await server.server.start(command, ["/bin/bash", "-c", 'eval "$(cat <&3)"'], {"PATH": "/bin"}, text, out, out)
    os.close(out)
    await wait_until_async(lambda: len(processes_of(f"93.{RUN}")) >= 2)
    command.forget()
    server.server.close()
    assert server.process.wait(10) == 0
    assert not processes_of(f"93.{RUN}")


async def test_a_server_that_is_gone_is_said(server: Server) -> None:
    other = Server()
    other.process.kill()
    other.process.wait()
    with pytest.raises(SandboxError, match="The sandbox has ended"):
        await other.run("true")
    with pytest.raises(SandboxError, match="The sandbox has ended"):
        await other.server.listen(0)
    other.server.close()


async def test_listening(server: Server) -> None:
    listener = await server.server.listen(0)
    with listener, socket.create_connection(listener.getsockname(), 5) as client:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        with connection:
            connection.sendall(b"x")
            assert client.recv(1) == b"x"
        port = listener.getsockname()[1]
        with pytest.raises(SandboxError, match=f"Port {port} .* in use"):
            await server.server.listen(port)


@pytest.mark.parametrize("listed", [True, False])
def test_children_are_found_on_every_kernel(monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    monkeypatch.setattr(supervisor, "_LISTED", listed)
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60 & wait"]) as shell:
        wait_until(lambda: supervisor._children(shell.pid))
        assert shell.pid in supervisor._children(os.getpid())
        (below,) = supervisor._children(shell.pid)
        assert Path(f"/proc/{below}/comm").read_text() in ("sleep\n", "sh\n")
        for pid in (below, shell.pid):
            os.kill(pid, signal.SIGKILL)


def test_it_needs_nothing_of_ours(tmp_path: Path) -> None:
    """It runs with whatever Python an image has, without our package."""
    copy = tmp_path / "supervisor.py"
    copy.write_bytes(Path(supervisor.__file__).read_bytes())
    code = "import sys, runpy; runpy.run_path(sys.argv[1]); assert not [n for n in sys.modules if 'operator_core' in n]"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(copy)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
