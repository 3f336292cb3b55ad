"""Who reads a live stream: nothing but a place in what a feed has, and what was missed before it."""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Any

from sqlalchemy import Integer, bindparam, select

from operator_core.api.models import EntryView
from operator_core.db.schema import ledger
from operator_core.web.event_stream import HEARTBEAT, event
from operator_core.web.shapes import to_json

if TYPE_CHECKING:
    from operator_core.web.live import BoardFeed, Feed, SessionFeed

__all__ = ["FAR_BEHIND", "LEDGER", "PAGE", "BoardReader", "Reader", "SessionReader", "entry_event", "ledger_event"]

FAR_BEHIND = 1000
"""Whoever has missed more rows of the ledger is told to read everything again."""
PAGE = 200
"""Entries that are read at once."""
LEDGER = (
    select(ledger.c.seq, ledger.c.ticket_id, ledger.c.kind)
    .where(ledger.c.seq > bindparam("after", type_=Integer))
    .order_by(ledger.c.seq)
    .limit(FAR_BEHIND)
)
"""What the ledger has behind ``after``."""

_CHUNK = 128 * 1024


class Reader(abc.ABC):
    """A reader of one feed, which is an :class:`~operator_core.web.event_stream.EventSource`.

    Attributes:
        who: Whose it is, see :meth:`Feeds.session`.
    """

    def __init__(self, feed: Feed, who: str) -> None:
        self.feed = feed
        self.who = who
        self._open = True
        self._ended = False

    async def next(self, timeout_s: float) -> bytes | None:
        """As :class:`EventSource` says."""
        while not (self._ended or self.feed.feeds.closed):
            # Taken before the look, so that what comes meanwhile ends the wait.
            news = self.feed.news
            if data := await self._ready():
                return data
            try:
                async with asyncio.timeout(timeout_s):
                    await news.wait()
            except TimeoutError:
                return HEARTBEAT
        return None

    def close(self) -> None:
        """As :class:`EventSource` says."""
        if self._open:
            self._open = False
            self.feed.feeds.left(self)

    @abc.abstractmethod
    async def _ready(self) -> bytes:
        """What can be sent now; empty: nothing yet."""


class SessionReader(Reader):
    """Of a session: entries behind a number, then what it does now."""

    feed: SessionFeed

    def __init__(self, feed: SessionFeed, after: int, who: str) -> None:
        super().__init__(feed, who)
        self._at = after
        self._page = PAGE
        self._state = self._live = b""

    async def _ready(self) -> bytes:
        feed = self.feed
        if self._at < feed.base:
            return await self._catch_up()
        self._at, parts = feed.behind(self._at)
        if self._at < feed.last:
            return b"".join(parts)
        if feed.state != self._state:
            self._state = feed.state
            parts.append(feed.state)
        if feed.live != self._live:
            self._live = feed.live
            parts.append(feed.live)
        if feed.over:
            self._ended = True
            parts.append(event("end", "{}"))
        return b"".join(parts)

    async def _catch_up(self) -> bytes:
        """What the others have read long ago."""
        feed = self.feed
        async with feed.feeds.reads:
            page = await feed.feeds.api.entries(feed.session_id, after=self._at, limit=self._page)
        if not page.items:
            self._at = max(self._at, feed.base)
            return b""
        parts, size = [], 0
        for entry in page.items:
            parts.append(entry_event(entry))
            self._at, size = entry.seq, size + len(parts[-1])
            if size >= _CHUNK:
                break
        # Long texts: fewer of them at once, because each reader holds what it is being sent.
        self._page = len(parts) if size >= _CHUNK else PAGE
        return b"".join(parts)


class BoardReader(Reader):
    """Of the board: which tickets have changed."""

    feed: BoardFeed

    def __init__(self, feed: BoardFeed, after: int | None, who: str) -> None:
        super().__init__(feed, who)
        # A number that is not there yet is of another store, or of somebody's fancy: nothing would ever come.
        self._at = feed.last if after is None or after > feed.last else after
        self._seen = feed.looks
        self._greeting = b"id: %d\n\n" % self._at

    async def _ready(self) -> bytes:
        feed = self.feed
        if greeting := self._greeting:
            # An id without an event: from here on the reader can resume, also if nothing happens before it is cut off.
            self._greeting = b""
            return greeting
        if self._at < feed.base:
            return await self._catch_up()
        self._at, parts = feed.behind(self._at)
        moved = [ticket for ticket, look in feed.activity.items() if look > self._seen]
        self._seen = feed.looks
        parts += [event("ticket", to_json({"id": ticket, "kind": "activity"})) for ticket in moved]
        return b"".join(parts)

    async def _catch_up(self) -> bytes:
        feed = self.feed
        if feed.base - self._at > FAR_BEHIND:
            self._at = feed.last
            return event("reset", "{}", number=self._at)
        async with feed.feeds.reads:
            rows = await feed.feeds.database.fetch(LEDGER, after=self._at)
        self._at = rows[-1].seq if rows else feed.base
        return b"".join(map(ledger_event, rows))


def entry_event(entry: EntryView) -> bytes:
    """An entry as it is sent."""
    return event("entry", to_json(entry), number=entry.seq)


def ledger_event(row: Any) -> bytes:
    """A row of the ledger as it is sent; one that is about no ticket only moves the reader's place."""
    if row.ticket_id is None:
        return b"id: %d\n\n" % row.seq
    return event("ticket", to_json({"id": row.ticket_id, "kind": row.kind}), number=row.seq)
