"""Processes: starting one without a thread, finding what it started, and ending all of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

__all__ = ["Process", "ProcessTree", "Tree", "descendants", "signal_quietly", "start_process", "start_time", "user_of"]


class Process(Protocol):
    """A started process; ``asyncio.subprocess.Process`` is one."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int | None:
        """Wait for its end; the exit code, or minus the signal."""
        ...


class Tree(Protocol):
    """How to end a process and everything it started. All but :meth:`sweep` return at once."""

    def attach(self, pid: int) -> None:
        """The process has started."""
        ...

    def terminate(self) -> None:
        """Ask all of it to end (SIGTERM)."""
        ...

    def kill(self) -> None:
        """End all of it (SIGKILL); if it has not started yet, as soon as it has."""
        ...

    async def sweep(self) -> int:
        """After the process has ended: end what it left behind, wait until that is gone, and say how many it were."""
        ...


class _PidfdProcess:
    """A child whose end is announced by a file descriptor: no thread and no signal handler, unlike asyncio's own."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self.returncode: int | None = None
        self._popen = popen
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[int | None] = self._loop.create_future()
        self._fd = os.pidfd_open(popen.pid)
        self._loop.add_reader(self._fd, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._fd)
        try:
            info = os.waitid(os.P_PIDFD, self._fd, os.WEXITED)
            if info is not None:
                exited = info.si_code == os.CLD_EXITED
                self.returncode = info.si_status if exited else -info.si_status
        except ChildProcessError:
            pass  # reaped by someone else: how it ended is unknown, and stays None
        os.close(self._fd)
        self._popen.returncode = self.returncode if self.returncode is not None else 0
        if not self._done.done():
            self._done.set_result(self.returncode)

    async def wait(self) -> int | None:
        return await asyncio.shield(self._done)


async def start_process(
    argv: Sequence[str],
    *,
    stdout: int,
    stderr: int,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    thread: Executor | None = None,
) -> Process:
    """Start a program in ``/``, as leader of its own session and group, with empty standard input.

    The parent-death signal that bubblewrap relies on belongs to the *thread* that starts it, so this is for the thread
    of the event loop, or for a ``thread`` (of one) that lives longer than the program. Without one it does not yield,
    so a started process is never lost to a cancellation; with one, a cancellation kills it.
    """
    if not hasattr(os, "pidfd_open"):
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd="/",
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd="/",
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )

    if thread is None:
        return _PidfdProcess(start())
    started = asyncio.get_running_loop().run_in_executor(thread, start)
    try:
        return _PidfdProcess(await asyncio.shield(started))
    except asyncio.CancelledError:
        # The descriptors are in use until it has started.
        while not started.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({started})
        if started.exception() is None:
            late = _PidfdProcess(started.result())
            signal_quietly(late.pid, signal.SIGKILL, group=True)
        raise


def descendants(pid: int) -> list[int]:
    """Ids of the living children of a process, their children, and so on (Linux; empty elsewhere)."""
    found: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop()
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                queue += children
        except OSError:
            continue  # ended meanwhile
    return found


def signal_quietly(pid: int, number: signal.Signals, *, group: bool = False) -> None:
    """Send a signal to a process, or to the group it leads, if it is there and ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


class ProcessTree:
    """Ends a process group and the descendants that left it. A daemon that has cut its parentage is not found."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._seen: dict[int, str] = {}
        self._doomed = False

    def attach(self, pid: int) -> None:
        self._pid = pid
        if self._doomed:
            self.kill()

    def terminate(self) -> None:
        self._signal_all(signal.SIGTERM)

    def kill(self) -> None:
        if self._pid is None:
            self._doomed = True
            return
        # Stopped first, so that nothing is started between looking and killing.
        signal_quietly(self._pid, signal.SIGSTOP, group=True)
        self._signal_all(signal.SIGKILL)

    async def sweep(self) -> int:
        pid = self._pid
        if pid is None:
            return 0
        left = self._group_members()
        for member in left:
            self._seen.setdefault(member, start_time(member))
        signal_quietly(pid, signal.SIGKILL, group=True)
        self._kill_seen(signal.SIGKILL)
        return len(left)

    def _signal_all(self, number: signal.Signals) -> None:
        pid = self._pid
        if pid is None:
            return
        for child in descendants(pid):
            self._seen.setdefault(child, start_time(child))
        signal_quietly(pid, number, group=True)
        self._kill_seen(number)

    def _kill_seen(self, number: signal.Signals) -> None:
        for child, started in self._seen.items():
            if started and start_time(child) == started:
                signal_quietly(child, number)

    def _group_members(self) -> list[int]:
        assert self._pid is not None
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return []
        except PermissionError:
            pass
        members = []
        for name in os.listdir("/proc") if Path("/proc/self").exists() else []:
            if name.isdigit():
                fields = _stat(int(name))
                if fields and fields[2] == str(self._pid) and fields[0] != "Z":
                    members.append(int(name))
        return members


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name (0 state, 2 process group, 19 start time), or nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> str:
    """When a process started: together with its id this names one process for ever, an id alone is used again."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def user_of(pid: int) -> int:
    """The user as whom a process acts, as the kernel counts users here; -1 if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Uid:"):
                return int(line.split()[2])
    return -1
