"""The docker daemon as the filtering proxy asks it: one request, one connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import h11

__all__ = ["DaemonFailed", "DaemonRequest", "dial"]

_DOCUMENT = 16 << 20
_CHUNK = 65536


class DaemonFailed(Exception):
    """The daemon could not be asked, or answered with an error of its own; the text is for the caller.

    Attributes:
        status: Of the answer to the caller.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DaemonRequest:
    """One request to the daemon, on a connection of its own.

    Attributes:
        response: The head of the answer, once there is one.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.CLIENT)
        self.response: h11.Response | h11.InformationalResponse | None = None

    def close(self) -> None:
        """End the connection."""
        self.writer.transport.abort()

    async def ask(self, method: str, target: str, body: bytes = b"", *, upgrade: bool = False) -> int:
        """Send the request and read the answer's head; its status. 101 means that the connection is a stream now."""
        headers = [("Host", "docker"), ("User-Agent", "operator-docker-proxy")]
        headers += [("Connection", "Upgrade"), ("Upgrade", "tcp")] if upgrade else [("Connection", "close")]
        if body:
            headers += [("Content-Type", "application/json")]
        if method == "POST":
            headers += [("Content-Length", str(len(body)))]
        data = self.http.send(h11.Request(method=method, target=target, headers=headers)) or b""
        data += (self.http.send(h11.Data(data=body)) or b"") if body else b""
        self.writer.write(data + (self.http.send(h11.EndOfMessage()) or b""))
        event = await self._event()
        if not isinstance(event, (h11.Response, h11.InformationalResponse)):
            raise DaemonFailed(502, "The docker daemon gave no answer")
        self.response = event
        return event.status_code

    async def _event(self) -> Any:
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                self.http.receive_data(await self.reader.read(_CHUNK))
        except (h11.ProtocolError, OSError) as error:
            raise DaemonFailed(502, f"The docker daemon's answer cannot be read ({error})") from None
        return event

    async def data(self) -> AsyncIterator[bytes]:
        """The answer's body as it comes."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)

    async def document(self) -> Any:
        """The answer's body, read as JSON; ``{}`` if it is none."""
        whole = b""
        async for part in self.data():
            whole += part
            if len(whole) > _DOCUMENT:
                raise DaemonFailed(502, "The docker daemon's answer is too long")
        try:
            return json.loads(whole)
        except ValueError:
            return {}


async def dial(daemon: Path) -> DaemonRequest:
    """A new connection.

    Raises:
        DaemonFailed: There is none to be had.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(daemon, limit=_CHUNK)
    except PermissionError:
        message = (
            f"This process may not use {daemon}; add its user to the group that owns the socket (docker), or run it as "
            "root"
        )
        raise DaemonFailed(502, message) from None
    except OSError as error:
        message = f"No docker daemon answers at {daemon} ({error.strerror or error}); start it"
        raise DaemonFailed(502, message) from None
    return DaemonRequest(reader, writer)
