"""Server-sent events: an answer that goes on, to a reader who may be slow, silent or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from operator_core import clock

__all__ = ["HEARTBEAT", "EventSource", "EventStream", "event"]

HEARTBEAT = b":\n\n"
"""A comment, so that both sides notice when the other one is gone."""

_HEARTBEAT_S = 15.0
_STUCK_S = 20.0
_RECHECK_S = 25.0
_BEGIN = b"retry: 1000\n\n"


class EventSource(Protocol):
    """Where the events come from."""

    async def next(self, timeout_s: float) -> bytes | None:
        """The next events; :data:`HEARTBEAT` when there are none in that time, None when there will be none."""
        ...

    def close(self) -> None:
        """Nobody listens any more."""
        ...


def event(kind: str, data: str | bytes, *, number: int | None = None) -> bytes:
    """One event.

    Args:
        data: JSON without line breaks.
        number: Its id, from which a reader resumes; None: it has none, and a later one of its kind replaces it.
    """
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %s\ndata: %s\n\n" % (kind.encode(), data.encode() if isinstance(data, str) else data)


class EventStream(Response):
    """Sends what a source has until it ends, the reader goes, or the reader's right to read ends.

    Nothing is kept for a reader but the chunk that is being sent: a source knows the reader's place and is asked again
    when the chunk is gone. A reader that takes nothing for twenty seconds is dropped; it resumes by the last id.

    Args:
        source: Closed when the answer ends, in whatever way.
        still_valid: Whether the reader may still read; asked about twice a minute.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: EventSource,
        *,
        still_valid: Callable[[], Awaitable[bool]],
        heartbeat_s: float = _HEARTBEAT_S,
        stuck_s: float = _STUCK_S,
        recheck_s: float = _RECHECK_S,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._source = source
        self._still_valid = still_valid
        self._heartbeat_s = min(heartbeat_s, recheck_s)
        self._stuck_s = stuck_s
        self._recheck_s = recheck_s
        # Without a length; proxies are told not to collect it.
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader = asyncio.create_task(_until_gone(receive))
        writer = asyncio.create_task(self._write(send))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._source.close()
            for task in (reader, writer):
                task.cancel()
            _, wrote = await asyncio.gather(reader, writer, return_exceptions=True)
        if isinstance(wrote, Exception):
            raise wrote

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        checked = clock.monotonic()
        chunk: bytes | None = _BEGIN
        while chunk is not None:
            try:
                async with asyncio.timeout(self._stuck_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TimeoutError:
                return
            if clock.monotonic() - checked >= self._recheck_s:
                if not await self._still_valid():
                    break
                checked = clock.monotonic()
            chunk = await self._source.next(self._heartbeat_s)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    message: Any = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
