"""An egress proxy on the loopback interface, servers behind it, and clients that say exactly what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from operator_core.sandbox.egress import Egress, Rules
from operator_core.sandbox.options import Decision, Secret

__all__ = ["Authority", "Origin", "ask", "proxied"]

Answer = Callable[[bytes, bytes], bytes]
"""Head and body of a request -> the whole answer."""


def _hello(head: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Origin:
    """A server that keeps what it is asked; an asynchronous context manager.

    Args:
        answer: Default: ``200`` and ``hello``.
        tls: Speak TLS.

    Attributes:
        heads: The heads of the requests.
        bodies: Their bodies.
        connections: How often somebody connected.
        port: On 127.0.0.1.
    """

    def __init__(self, answer: Answer = _hello, *, tls: ssl.SSLContext | None = None) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._answer, self._tls = answer, tls

    async def __aenter__(self) -> Origin:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with contextlib.suppress(OSError, EOFError):
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                self.bodies.append(await self._body(reader, head.lower()))
                writer.write(self._answer(head, self.bodies[-1]))
                await writer.drain()
                if self._tls:
                    writer.close()
                    await writer.wait_closed()
                else:
                    writer.write_eof()
                    await reader.read()
        finally:
            writer.transport.abort()

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        if b"\r\ntransfer-encoding: chunked" in head:
            return (await reader.readuntil(b"0\r\n\r\n"))[:-5]
        _, found, rest = head.partition(b"\r\ncontent-length: ")
        return await reader.readexactly(int(rest.split(b"\r\n")[0])) if found else b""


@contextlib.asynccontextmanager
async def proxied(
    allow: Iterable[str] = (),
    secrets: Sequence[Secret] = (),
    *,
    on_decision: Callable[[Decision], Awaitable[None]] | None = None,
    **how: Any,
) -> AsyncIterator[tuple[int, list[Decision]]]:
    """A proxy that serves; gives its port and the decisions that it has made."""
    decisions: list[Decision] = []

    async def note(decision: Decision) -> None:
        decisions.append(decision)
        if on_decision is not None:
            await on_decision(decision)

    egress = Egress(Rules.parse(allow), secrets, note, **how)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listener.setblocking(False)
    port: int = listener.getsockname()[1]
    await egress.serve(listener)
    try:
        yield port, decisions
    finally:
        await egress.close()


async def ask(port: int, *parts: bytes, pause: float = 0.0, timeout: float = 10.0) -> bytes:
    """Say these bytes to a port, with pauses between the parts, and read until the other side ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(timeout):
            for number, part in enumerate(parts):
                if number:
                    await asyncio.sleep(pause)
                writer.write(part)
                await writer.drain()
            return await reader.read()
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


class Authority:
    """A certificate authority of one test, made by ``openssl``.

    Args:
        folder: An existing folder for its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ca.pem"
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem",
        )  # fmt: skip

    def server(self, name: str) -> ssl.SSLContext:
        """For a server of that name or address."""
        kind = "IP" if name[0].isdigit() else "DNS"
        (self.folder / "extensions").write_text(f"subjectAltName={kind}:{name}\n")
        self._openssl(
            "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", f"/CN={name}", "-keyout", "server.key", "-out", "server.csr",
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1",
            "-extfile", "extensions", "-out", "server.pem",
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        return context

    def client(self) -> ssl.SSLContext:
        """For a client that trusts this authority alone."""
        return ssl.create_default_context(cafile=str(self.file))

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True, timeout=30)
