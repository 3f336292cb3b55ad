"""Ending one bubblewrap for certain, however early it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable

from operator_core.sandbox.process import descendants, signal_quietly, user_of

__all__ = ["NamespaceTree"]

_INFO_WAIT_S = 1.0
_END_WAIT_S = 5.0


class NamespaceTree:
    """Ends one bubblewrap: its outer process, and the first process of its namespace, with which all others end."""

    def __init__(self, on_user: Callable[[int], None] | None = None) -> None:
        self._on_user = on_user
        self._monitor: int | None = None
        self._doomed = False
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
        if self._doomed:
            self.kill()

    def terminate(self) -> None:
        self._wait_for_info()
        # bubblewrap does not pass signals on, and its first process ignores them.
        children = descendants(self._first) if self._first is not None else []
        for child in children:
            signal_quietly(child, signal.SIGTERM)
        if not children:  # the command has not started yet, so there is nobody to wait for
            self.kill()

    def kill(self) -> None:
        if self._monitor is None:
            self._doomed = True
            return
        self._wait_for_info()
        self._kill_first()
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
                if self._on_user is not None:
                    self._on_user(user_of(first))

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
