"""The host that is attacked: services, a terminal, keys and shared memory, all canaries of this test."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pty
import socket
from pathlib import Path

from operator_core.sandbox.linux.seccomp import system_call

__all__ = ["Host"]

_LIBC = ctypes.CDLL(None, use_errno=True)


class Host:
    """Services that must not be reached; each tells :attr:`token` to whoever comes, and remembers what it was sent.

    Args:
        folder: For its socket files.

    Attributes:
        token: The secret of the attack that is on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = ""
        self._heard = bytearray()
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._fds: list[int] = []
        self._segment = -1
        self._buffer: int | None = None
        self.variables: dict[str, str] = {}

    def reached(self, identity: str) -> bool:
        """Whether any service was sent this word."""
        return identity.encode() in self._heard

    async def open(self) -> None:
        """Start everything."""
        self.folder.mkdir()
        abstract = f"operator-escape-{os.getpid()}"
        await self._serve("PORT", await asyncio.start_server(self._answer, "0.0.0.0", 0))
        with contextlib.suppress(OSError):
            await self._serve("PORT6", await asyncio.start_server(self._answer, "::1", 0))
        await self._serve("LISTED", await asyncio.start_server(_listed, "127.0.0.1", 0))
        path = self.folder / "service.sock"
        self._servers.append(await asyncio.start_unix_server(self._answer, path))
        self._servers.append(await asyncio.start_unix_server(self._answer, "\0" + abstract))
        self._datagrams("UDP", socket.AF_INET, ("127.0.0.1", 0))
        self._datagrams("LOG", socket.AF_UNIX, str(self.folder / "log.sock"))
        self.variables |= {"SERVICE": str(path), "ABSTRACT": f"@{abstract}", "ADDRESSES": ",".join(_addresses())}
        self._pipe()
        self._terminal()
        self._shared_memory()
        self._key()

    async def close(self) -> None:
        """Stop everything."""
        loop = asyncio.get_running_loop()
        for server in self._servers:
            server.close()
        for item in self._sockets:
            loop.remove_reader(item)
            item.close()
        for fd in self._fds:
            loop.remove_reader(fd)
            os.close(fd)
        if self._segment >= 0:
            _LIBC.shmctl(self._segment, 0, None)

    def secret(self, token: str) -> None:
        """Set the secret of the attack that begins."""
        self.token = token
        if self._buffer is not None:
            ctypes.memmove(self._buffer, token.encode(), len(token))
        if "KEY" in self.variables:
            data = token.encode()
            key = _call("add_key", b"user", self.variables["KEY"].encode(), data, len(data), -4)
            _call("keyctl", 5, key, 0x3F3F0000)

    async def _serve(self, name: str, server: asyncio.Server) -> None:
        self._servers.append(server)
        self.variables[name] = str(server.sockets[0].getsockname()[1])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(self.token.encode() + b"\n")
            async with asyncio.timeout(1):
                self._heard += await reader.read(200)
        writer.close()

    def _datagrams(self, name: str, family: int, address: tuple[str, int] | str) -> None:
        item = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        item.bind(address)
        self._sockets.append(item)
        self.variables[name] = str(item.getsockname()[1] if family == socket.AF_INET else address)
        asyncio.get_running_loop().add_reader(item, self._receive, item.fileno())

    def _receive(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            self._heard += os.read(fd, 400)

    def _listen(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fds.append(fd)
        asyncio.get_running_loop().add_reader(fd, self._receive, fd)

    def _pipe(self) -> None:
        path = self.folder / "commands"
        os.mkfifo(path)
        self._listen(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        self.variables["FIFO"] = str(path)

    def _terminal(self) -> None:
        """A person's: what is written on it, and what is typed into it, comes back at the other end."""
        master, slave = pty.openpty()
        self.variables["TTY"] = os.ttyname(slave)
        self._listen(master)
        self._listen(slave)

    def _shared_memory(self) -> None:
        key = 0x0E5C0000 + os.getpid() % 0xFFFF
        self._segment = _LIBC.shmget(key, 4096, 0o1666)
        if self._segment < 0:
            return
        _LIBC.shmat.restype = ctypes.c_void_p
        self._buffer = _LIBC.shmat(self._segment, None, 0)
        self.variables["SHM"] = str(key)

    def _key(self) -> None:
        name = f"operator-escape-{os.getpid()}"
        if _call("add_key", b"user", name.encode(), b"x", 1, -4) >= 0:
            self.variables["KEY"] = name


async def _listed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A web service that the proxy may reach."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(2):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nserved\n")
        await writer.drain()
    writer.close()


def _call(name: str, *arguments: object) -> int:
    words = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    _LIBC.syscall.restype = ctypes.c_long
    return int(_LIBC.syscall(ctypes.c_long(system_call(name)), *words))


def _addresses() -> list[str]:
    """Addresses of this machine beside loopback; nothing is sent to learn them."""
    found = []
    for place in ("192.0.2.1", "172.17.0.2", "10.0.0.1", "192.168.0.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((place, 9))
            address = probe.getsockname()[0]
            if not address.startswith("127.") and address not in found:
                found.append(address)
    return found or ["127.0.0.1"]
