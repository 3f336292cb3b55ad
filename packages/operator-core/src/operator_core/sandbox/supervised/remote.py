"""The worker's side of :mod:`~operator_core.sandbox.supervised.supervisor`: start commands, end them, see them end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from operator_core.errors import SandboxError

__all__ = ["ExecServer", "RemoteCommand"]

_ANSWER = 4096
_LISTEN_S = 5.0
_SWEEP_S = 15.0


class RemoteCommand:
    """One command below a supervisor: both its :class:`~operator_core.sandbox.process.Process` and its ``Tree``."""

    pid = 0

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._left = 0
        self._control: socket.socket | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def watch(self, control: socket.socket) -> None:
        """It has been asked for; its supervisor answers here."""
        control.setblocking(False)
        self._control = control
        asyncio.get_running_loop().add_reader(control.fileno(), self._answered)

    def _answered(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_ANSWER)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:  # without an answer nobody knows how it ended
            answer = json.loads(data)
            self.returncode, self._left = answer["status"], answer["left"]
        self.forget()

    def forget(self) -> None:
        """Nothing more is expected of it; its supervisor, if there is one, ends what is left."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> int | None:
        await asyncio.shield(self._done)
        return self.returncode

    def attach(self, pid: int) -> None:
        """Its supervisor knows the id."""

    def terminate(self) -> None:
        self._say(b"T")

    def kill(self) -> None:
        self._say(b"K")

    def _say(self, word: bytes) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(word)

    async def sweep(self) -> int:
        # Its supervisor answers when nothing is left. It gives up by itself; this is for one that cannot.
        if self._control is not None:
            await asyncio.wait({self._done}, timeout=_SWEEP_S)
            self.forget()
        return self._left


class ExecServer:
    """A running server.

    Args:
        worker: Our end of the socket (``SOCK_SEQPACKET``).
    """

    def __init__(self, worker: socket.socket) -> None:
        worker.setblocking(False)
        self._socket = worker

    def close(self) -> None:
        """The server ends, with all that it has started."""
        self._socket.close()

    async def configure(self, config: Mapping[str, Any]) -> None:
        """What holds for every command from now on: ``uid``, ``gid``, ``landlock``, ``seccomp`` (hexadecimal).

        Raises:
            SandboxError: The server is gone.
        """
        with contextlib.ExitStack() as stack:
            await self._send(b"C", [_memory_file(config, stack)])

    async def start(
        self, command: RemoteCommand, argv: Sequence[str], env: Mapping[str, str], text: str, out: int, err: int
    ) -> RemoteCommand:
        """Start a program with ``text`` in descriptor 3.

        Raises:
            SandboxError: The server is gone.
        """
        with contextlib.ExitStack() as stack:
            request = _memory_file({"argv": list(argv), "env": dict(env)}, stack)
            body = os.memfd_create("command", os.MFD_CLOEXEC)
            stack.callback(os.close, body)
            _write(body, text.encode("utf-8", "surrogateescape"))
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(theirs.close)
            command.watch(ours)
            try:
                await self._send(b"E", [request, out, err, theirs.fileno(), body])
            except BaseException:
                command.forget()
                raise
        return command

    async def listen(self, port: int) -> socket.socket:
        """A listening, non-blocking TCP socket on 127.0.0.1 of the place where the server is.

        Raises:
            SandboxError: The port is taken, or the server is gone.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            with theirs:
                await self._send(b"L", [_memory_file({"port": port}, stack), theirs.fileno()])
            ours.setblocking(False)
            await _readable(ours, _LISTEN_S)
            data, fds, _, _ = socket.recv_fds(ours, _ANSWER, 1)
        if not fds:
            why = json.loads(data)["error"] if data else "its server has ended"
            raise SandboxError(f"Port {port} of the sandbox cannot be listened on: {why}; use another one.")
        listener = socket.socket(fileno=fds[0])
        listener.setblocking(False)
        return listener

    async def _send(self, packet: bytes, fds: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._socket, [packet], fds)
                return
            except BlockingIOError:
                await _writable(self._socket)
            except OSError as error:
                raise SandboxError(
                    f"The sandbox has ended ({error.strerror}), so the command has not run; start a new session."
                ) from error


async def _readable(which: socket.socket, timeout: float) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(which.fileno(), _settle, ready)
    try:
        async with asyncio.timeout(timeout):
            await ready
    except TimeoutError as error:
        raise SandboxError("The sandbox does not answer; close the session and start a new one.") from error
    finally:
        loop.remove_reader(which.fileno())


async def _writable(which: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(which.fileno(), _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(which.fileno())


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _memory_file(content: Mapping[str, Any], stack: contextlib.ExitStack) -> int:
    fd = os.memfd_create("request", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    _write(fd, json.dumps(content).encode())
    return fd


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
