"""The default backend on Linux: one bubblewrap per command, inside of one session.

Per command, because the kernel then ends everything a command started: its PID namespace dies with its first process.
What bubblewrap does not do by itself, and what is done about it here, was measured; each point has a test:

* its first process keeps the environment it was started with, and its arguments: both are readable inside, so it gets
  an empty environment and reads its options from a memory file;
* killing its outer process while it starts leaves orphans: the process id of the inner one is read and killed too;
* host root keeps writable sysctls in a fresh ``/proc``: they are covered;
* vsock, io_uring, setuid bits and more are in no namespace: a seccomp filter refuses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from operator_core.errors import SandboxUnavailable
from operator_core.sandbox import files, selftest
from operator_core.sandbox.diagnosis import diagnose
from operator_core.sandbox.environment import build_environment, search_path
from operator_core.sandbox.policy import Limits, Policy
from operator_core.sandbox.process import Process, descendants, signal_quietly, start_process
from operator_core.sandbox.profile import HOME, ROOM, build_etc, fixed_arguments, places, policy_arguments
from operator_core.sandbox.protocol import ExecResult, RedactFilter
from operator_core.sandbox.report import Report
from operator_core.sandbox.runner import RawResult
from operator_core.sandbox.seccomp import SUPPORTED, build_filter
from operator_core.sandbox.session import Call, Launch, Session, SetupError, prologue

__all__ = ["BubblewrapSandbox"]

_STATE, _COMMAND = f"{ROOM}/state", f"{ROOM}/command"
_INFO_WAIT_S = 1.0
_END_WAIT_S = 5.0


@functools.lru_cache(maxsize=8)
def _version_of(program: str, changed: int) -> str:
    """Its version; asked once for each program (and time of its last change)."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, env={})
    return done.stdout.rpartition(" ")[2].strip() or "(version unknown)"


class BubblewrapSandbox(Session):
    """See the module. ``start`` tests it and refuses to go on if an attack succeeds."""

    name = "bubblewrap"
    maps = True

    def __init__(self, policy: Policy, session_dir: Path, redact: Callable[[], RedactFilter] | None = None) -> None:
        super().__init__(policy, session_dir, redact)
        self._program = ""
        self._filter = b""
        self._fixed: list[str] = []
        self._search_path = ""

    async def _open(self) -> Report:
        version = self._find()
        self._filter = build_filter()
        # In a thread, because many sessions start at once; it is waited for, because it must not go on after `close`.
        copying = asyncio.ensure_future(
            asyncio.to_thread(build_etc, self._layout.etc, network=self.policy.network == "host")
        )
        try:
            await asyncio.shield(copying)
        finally:
            await asyncio.wait({copying})
        self._fixed = fixed_arguments(self.policy, self._layout)
        self._search_path = search_path((*self.policy.readable, *self.policy.writable))
        try:
            return await selftest.examine(f"bubblewrap {version}", self.policy, self._layout, self._attack)
        except SetupError as error:
            raise SandboxUnavailable(*diagnose(error.why)) from error

    def _find(self) -> str:
        """Look for the program and return its version.

        Raises:
            SandboxUnavailable: This is not Linux, not a known processor, or bubblewrap is not installed.
        """
        if sys.platform != "linux":
            raise SandboxUnavailable(f"bubblewrap needs Linux and this is {sys.platform}", "run Operator on Linux")
        if os.uname().machine not in SUPPORTED:
            raise SandboxUnavailable(
                f"there is no system call table for {os.uname().machine}", "run Operator on x86_64 or aarch64"
            )
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxUnavailable(
                "bubblewrap is not installed (no `bwrap` on PATH)",
                "install it with `apt-get install bubblewrap`, `dnf install bubblewrap` or `apk add bubblewrap`",
            )
        self._program = program
        return _version_of(program, os.stat(program).st_mtime_ns)

    async def _attack(self, script: str, env: Mapping[str, str]) -> ExecResult:
        # Not with the policy's own limits on output, which may be tiny.
        return await self._exec(script, cwd=self._start, env=env, limits=Limits(timeout_s=20.0))

    def _launch(self, call: Call) -> Launch:
        limits = self.policy.limits
        script = prologue(
            _STATE,
            self._start,
            {
                "c": 0,
                "n": limits.nofile,
                "d": limits.memory >> 10,
                "f": limits.file_size >> 10,
                # In here, behind the user namespace, it counts only the processes of this command.
                "u": limits.procs,
            },
            f'IFS= read -r -d "" __c <{_COMMAND}',
            count=True,
        )
        fixed = {"PATH": self._search_path, "HOME": HOME, "TMPDIR": "/tmp"}
        options = [*self._fixed, *policy_arguments(self.policy, self._layout)]
        options += ["--bind", str(call.state), _STATE]
        environment = build_environment(self.policy, fixed, call.env)
        tree = _NamespaceTree()

        async def spawn(stdout: int, stderr: int) -> Process:
            with contextlib.ExitStack() as stack:
                command = _memory_file("command", call.command.encode("utf-8", "surrogateescape"), stack)
                rules = _memory_file("seccomp", self._filter, stack)
                info_read, info_write = os.pipe()
                tree.listen(info_read)
                stack.callback(os.close, info_write)
                more = [*options, "--ro-bind-data", str(command), _COMMAND, "--remount-ro", "/"]
                more += ["--chdir", "/", "--clearenv"]
                for name, value in environment.items():
                    more += ["--setenv", name, value]
                more += ["--seccomp", str(rules), "--info-fd", str(info_write)]
                data = b"\0".join(os.fsencode(option) for option in more) + b"\0"
                arguments = _memory_file("options", data, stack)
                argv = [self._program, "--args", str(arguments), "--"]
                argv += ["bash", "--noprofile", "--norc", "-c", script, "bash", call.cwd]
                fds = (command, rules, info_write, arguments)
                try:
                    # This search path is for bubblewrap's own look-up of bash, in the sandbox.
                    return await start_process(
                        argv, stdout=stdout, stderr=stderr, env={"PATH": "/usr/bin:/bin"}, pass_fds=fds
                    )
                except BaseException:
                    tree.forget()
                    raise

        return Launch(spawn, tree)

    def _setup_error(self, raw: RawResult) -> str:
        text = raw.stderr.text().strip()
        return text.splitlines()[-1].rstrip(".") if text.startswith("bwrap: ") else ""

    def _places(self) -> list[files.Place]:
        return places(self.policy, self._layout, mapped=True)


def _memory_file(name: str, data: bytes, stack: contextlib.ExitStack) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class _NamespaceTree:
    """Ends one bubblewrap: its outer process, and the first process of its namespace, with which all others end."""

    def __init__(self) -> None:
        self._monitor: int | None = None
        self._first: int | None = None
        self._first_fd: int | None = None
        self._info_fd: int | None = None
        self._info = b""

    def listen(self, info_fd: int) -> None:
        """Take the end of the pipe on which bubblewrap says the id of the first process."""
        os.set_blocking(info_fd, False)
        self._info_fd = info_fd
        asyncio.get_running_loop().add_reader(info_fd, self._read_info)

    def attach(self, pid: int) -> None:
        self._monitor = pid

    def terminate(self) -> None:
        self._wait_for_info()
        # bubblewrap does not pass signals on, and its first process ignores them.
        children = descendants(self._first) if self._first is not None else []
        for child in children:
            signal_quietly(child, signal.SIGTERM)
        if not children:  # the command has not started yet, so there is nobody to wait for
            self.kill()

    def kill(self) -> None:
        self._wait_for_info()
        self._kill_first()
        if self._monitor is not None:
            signal_quietly(self._monitor, signal.SIGKILL, group=True)

    async def sweep(self) -> int:
        self._wait_for_info()
        self._kill_first()
        if self._first_fd is not None and not _is_readable(self._first_fd, 0.0):
            loop = asyncio.get_running_loop()
            gone: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._first_fd, _settle, gone)
            try:
                await asyncio.wait({gone}, timeout=_END_WAIT_S)
            finally:
                loop.remove_reader(self._first_fd)
        if self._first is not None:
            # Ours to reap if this is the first process of a container, or a subreaper.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._first, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222
        if self._first_fd is not None:
            os.close(self._first_fd)
            self._first_fd = self._first = None
        return 0

    def _kill_first(self) -> None:
        if self._first_fd is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._first_fd, signal.SIGKILL)

    def _wait_for_info(self) -> None:
        """The outer process must not be killed before it has said what it started: that would be an orphan."""
        while self._info_fd is not None and _is_readable(self._info_fd, _INFO_WAIT_S):
            self._read_info()
        self.forget()

    def _read_info(self) -> None:
        assert self._info_fd is not None
        try:
            data = os.read(self._info_fd, 4096)
        except BlockingIOError:
            return
        self._info += data
        if data and b"}" not in self._info:
            return
        self.forget()
        with contextlib.suppress(ValueError, OSError):
            first = int(self._info.partition(b'"child-pid":')[2].split(b",")[0].strip(b" }\n"))
            fd = os.pidfd_open(first)
            # Not one of ours if it is in our own namespace: then the id is already that of somebody else.
            if os.readlink(f"/proc/{first}/ns/pid") == os.readlink("/proc/self/ns/pid"):
                os.close(fd)
            else:
                self._first, self._first_fd = first, fd

    def forget(self) -> None:
        if self._info_fd is not None:
            asyncio.get_running_loop().remove_reader(self._info_fd)
            os.close(self._info_fd)
            self._info_fd = None


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_readable(fd: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
