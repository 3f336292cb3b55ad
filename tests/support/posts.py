"""Servers that take what the product sends, and remember it: HTTP and SMTP, on the loopback interface."""

from __future__ import annotations

import asyncio
import email
import email.message
import email.policy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

__all__ = ["HttpSink", "Posted", "SmtpSink", "http_sink", "smtp_sink"]

_BODY_MAX = 1 << 22


class Posted(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class HttpSink:
    """Answers every request.

    Attributes:
        posts: What came, in order.
        answers: Statuses of the next answers; then ``status``.
        headers: Further lines of every answer.
        hang: While it is set, requests are read and not answered.
    """

    def __init__(self) -> None:
        self.port = 0
        self.posts: list[Posted] = []
        self.answers: list[int] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.hang = False
        self.body = b"{}"

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            body = await reader.readexactly(min(int(headers.get("content-length", "0")), _BODY_MAX))
            self.posts.append(Posted(method, path, headers, body))
            if self.hang:
                await reader.read()
            status = self.answers.pop(0) if self.answers else self.status
            lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(self.body)}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in self.headers.items()]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + self.body)
            await writer.drain()
        writer.close()


class SmtpSink:
    """Takes mail.

    Attributes:
        mails: What came, in order.
        refuse: Answers every recipient with this line instead.
    """

    def __init__(self) -> None:
        self.port = 0
        self.mails: list[email.message.EmailMessage] = []
        self.recipients: list[str] = []
        self.refuse = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with suppress(ConnectionError):
            writer.write(b"220 sink ESMTP\r\n")
            while line := await reader.readline():
                word = line.split(None, 1)[0].upper() if line.strip() else b""
                if word == b"QUIT":
                    writer.write(b"221 bye\r\n")
                    break
                if word == b"DATA":
                    writer.write(b"354 go on\r\n")
                    text = await reader.readuntil(b"\r\n.\r\n")
                    policy = email.policy.default
                    self.mails.append(email.message_from_bytes(text[:-3].replace(b"\r\n..", b"\r\n."), policy=policy))
                    writer.write(b"250 taken\r\n")
                elif word == b"EHLO":
                    writer.write(b"250-sink\r\n250 AUTH PLAIN\r\n")
                elif word == b"AUTH":
                    writer.write(b"235 welcome\r\n")
                elif word == b"RCPT" and self.refuse:
                    writer.write(f"{self.refuse}\r\n".encode())
                else:
                    if word == b"RCPT":
                        self.recipients.append(line.decode().partition("<")[2].partition(">")[0])
                    writer.write(b"250 fine\r\n")
                await writer.drain()
        writer.close()


@asynccontextmanager
async def http_sink() -> AsyncIterator[HttpSink]:
    """A running one, on a free port."""
    sink = HttpSink()
    async with _served(sink):
        yield sink


@asynccontextmanager
async def smtp_sink() -> AsyncIterator[SmtpSink]:
    """A running one, on a free port."""
    sink = SmtpSink()
    async with _served(sink):
        yield sink


@asynccontextmanager
async def _served(sink: HttpSink | SmtpSink) -> AsyncIterator[None]:
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await sink.serve(reader, writer)
        except asyncio.CancelledError:
            writer.close()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    sink.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
