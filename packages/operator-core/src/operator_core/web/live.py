"""What happens in the store, to as many readers as there are, with one look at it for all of them.

A pulse asks the store a few times a second how far each watched journal is. What is new is read once, is kept as the
bytes that are sent, and each reader has nothing but a place in it. A reader that comes late, or comes back, or is slow,
reads what it missed from the journal and then goes on with the others; so nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import Integer, bindparam, select
from starlette.exceptions import HTTPException

from operator_core import clock
from operator_core.api.models import EntryPage, EntryView, SessionDetail
from operator_core.db.engine import Database
from operator_core.db.ledger import head as ledger_head
from operator_core.db.schema import agent_sessions, ledger, live_output
from operator_core.web.event_stream import HEARTBEAT, EventSource, event
from operator_core.web.shapes import to_json

__all__ = ["Feeds"]

_PULSE_S = 0.2
_PAUSE_S = 1.0
_STATE_S = 1.0
_ACTIVITY_S = 2.0
_PAGE = 200
_MOST_AT_ONCE = 1000
_CHUNK = 128 * 1024
_RING_BYTES = 512 << 10
_RING_ITEMS = 2000
_FAR_BEHIND = 1000
_STATE_FIELDS = {
    "session_id",
    "status",
    "started_at",
    "ended_at",
    "outcome_summary",
    "entries",
    "spent",
    "phases",
    "limits",
    "turns",
    "commands",
    "context_tokens",
    "context_limit",
    "question",
}

_HEADS = (
    select(
        agent_sessions.c.session_id,
        agent_sessions.c.head_seq,
        agent_sessions.c.status,
        live_output.c.tool_use_id,
        live_output.c.total,
        live_output.c.updated_at,
    )
    .outerjoin(live_output, live_output.c.session_id == agent_sessions.c.session_id)
    .where(agent_sessions.c.session_id.in_(bindparam("ids", expanding=True)))
)
_OUTPUT = select(live_output).where(live_output.c.session_id == bindparam("session"))
_LEDGER = (
    select(ledger.c.seq, ledger.c.ticket_id, ledger.c.kind)
    .where(ledger.c.seq > bindparam("after", type_=Integer))
    .order_by(ledger.c.seq)
    .limit(_FAR_BEHIND)
)
_RUNNING = select(agent_sessions.c.ticket_id, agent_sessions.c.head_seq).where(
    agent_sessions.c.status == "running", agent_sessions.c.ticket_id.is_not(None)
)

_logger = logging.getLogger(__name__)


class _Source(Protocol):
    """What feeds ask: :class:`operator_core.api.protocol.Api`, or the part of it that they need."""

    async def session(self, session_id: str) -> SessionDetail: ...

    async def entries(self, session_id: str, *, after: int = -1, limit: int = 200) -> EntryPage: ...


class Feeds:
    """The live streams of one server.

    Args:
        api: What the readers see comes from it.
        max_streams: A further reader is asked to come back later.
        pulse_s: How often the store is asked.
    """

    def __init__(self, database: Database, api: _Source, *, max_streams: int = 1000, pulse_s: float = _PULSE_S) -> None:
        self.database = database
        self.api = api
        self.max_streams = max_streams
        self.clients = 0
        """How many read now."""
        self.closed = False
        self.reads = asyncio.Semaphore(2)
        """So many readers catch up at once; the store has others to serve."""
        self._pulse_s = pulse_s
        self._sessions: dict[str, _SessionFeed] = {}
        self._board: _BoardFeed | None = None
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End all streams at once; no further one begins."""
        self.closed = True
        for feed in self._feeds():
            feed.tell()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def session(self, session_id: str, after: int = -1) -> EventSource:
        """The entries of a session behind ``after``, and what it does now, until it ends.

        Raises:
            NotFound: There is no such session.
            HTTPException: There are too many readers (503).
        """
        self._admit()
        feed = self._sessions.get(session_id)
        if feed is None:
            detail = await self.api.session(session_id)
            feed = self._sessions.setdefault(session_id, _SessionFeed(self, detail))
        return self._joined(feed, _SessionReader(feed, after))

    async def board(self, after: int | None = None) -> EventSource:
        """The tickets that change behind ``after`` (a number of the ledger); None: from now on.

        Raises:
            HTTPException: There are too many readers (503).
        """
        self._admit()
        head, _ = await ledger_head(self.database)
        feed = self._board = self._board or _BoardFeed(self, head)
        return self._joined(feed, _BoardReader(feed, after))

    def _admit(self) -> None:
        if self.closed or self.clients >= self.max_streams:
            raise HTTPException(503, "There are too many live streams; try again later.", {"Retry-After": "10"})

    def _joined(self, feed: _Feed, reader: _Reader) -> _Reader:
        feed.readers += 1
        self.clients += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._pulse(), name="operator-feeds")
        return reader

    def left(self, feed: _Feed) -> None:
        """One reader less."""
        self.clients -= 1
        feed.readers -= 1
        if feed.readers:
            return
        if feed is self._board:
            self._board = None
        for session_id in [name for name, other in self._sessions.items() if other is feed]:
            del self._sessions[session_id]

    def _feeds(self) -> list[_Feed]:
        return [*self._sessions.values(), *([self._board] if self._board else [])]

    async def _pulse(self) -> None:
        while self.clients:
            pause = self._pulse_s
            try:
                await self._look()
            except Exception:
                # A store that is away for a moment, say: the readers stay, and go on when it is back.
                _logger.warning("The live streams could not look at the store", exc_info=True)
                pause = _PAUSE_S
            await asyncio.sleep(pause)

    async def _look(self) -> None:
        wrong: Exception | None = None
        watched = {name: feed for name, feed in self._sessions.items() if not feed.over}
        if watched:
            for row in await self.database.fetch(_HEADS, ids=list(watched)):
                output = None if row.tool_use_id is None else (row.tool_use_id, row.total, row.updated_at)
                try:
                    await watched.pop(row.session_id).advance(row.head_seq, row.status, output)
                except Exception as error:
                    wrong = error  # a session that cannot be read, because somebody has changed it: not the others
            for feed in watched.values():
                feed.end()  # retention has taken it
        if self._board is not None:
            await self._board.advance()
        if wrong is not None:
            raise wrong


class _Feed:
    """What is new in one place, for all who read it."""

    def __init__(self, feeds: Feeds, last: int) -> None:
        self.feeds = feeds
        self.readers = 0
        self.base = self.last = last
        self.news = asyncio.Event()
        self._items: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def tell(self) -> None:
        """Wake all readers."""
        news, self.news = self.news, asyncio.Event()
        news.set()

    def push(self, number: int, data: bytes) -> None:
        """Keep one event; the oldest ones go when there are too many."""
        self._items.append((number, data))
        self._bytes += len(data)
        self.last = number
        while self._bytes > _RING_BYTES or len(self._items) > _RING_ITEMS:
            self.base, gone = self._items.popleft()
            self._bytes -= len(gone)

    def behind(self, number: int) -> tuple[int, list[bytes]]:
        """Some of the events behind a number that is not below ``base``, and the number of the last of them."""
        found: list[bytes] = []
        for seq, data in reversed(self._items):
            if seq <= number:
                break
            found.append(data)
        size, count = 0, 0
        for data in reversed(found):
            size += len(data)
            count += 1
            if size >= _CHUNK:
                break
        chosen = list(reversed(found))[:count]
        if count == len(found):
            return max(number, self.last), chosen
        return self._items[len(self._items) - len(found) + count - 1][0], chosen


class _SessionFeed(_Feed):
    def __init__(self, feeds: Feeds, detail: SessionDetail) -> None:
        super().__init__(feeds, detail.entries - 1)
        self.session_id = detail.session_id
        self.over = False
        self.state = b""
        self.live = b""
        self._status = detail.status
        self._head = self.last
        self._stated_at = -_STATE_S
        self._stated: tuple[int, str] | None = None
        self._output: tuple[Any, ...] | None = None
        self._state_is(detail)

    async def advance(self, head: int, status: str, output: tuple[Any, ...] | None) -> None:
        """The journal has come to ``head``."""
        self._head, self._status = head, status
        before = (self.last, self.state, self.live, self.over)
        for _ in range(_MOST_AT_ONCE // _PAGE):
            if self.last >= head:
                break
            page = await self.feeds.api.entries(self.session_id, after=self.last, limit=_PAGE)
            if not page.items:
                self.last = head  # retention has taken them
                break
            for entry in page.items:
                self.push(entry.seq, entry_event(entry))
        if output != self._output:
            self._output = output
            self.live = await self._output_event() if output else b""
        ended = status != "running" and self.last >= head
        due = clock.monotonic() - self._stated_at >= _STATE_S
        if self._stated != (head, status) and (due or ended):
            self._state_is(await self.feeds.api.session(self.session_id))
            self._stated = (head, status)
        self.over = ended
        if before != (self.last, self.state, self.live, self.over):
            self.tell()

    def end(self) -> None:
        """There is nothing left of it."""
        self.over = True
        self.tell()

    def _state_is(self, detail: SessionDetail) -> None:
        self._stated_at = clock.monotonic()
        self.state = event("state", to_json(detail.model_dump(mode="json", include=_STATE_FIELDS)))

    async def _output_event(self) -> bytes:
        rows = await self.feeds.database.fetch(_OUTPUT, session=self.session_id)
        if not rows:
            return b""
        row = rows[0]
        shown = {"tool_use_id": row.tool_use_id, "tail": row.tail, "total": row.total, "updated_at": row.updated_at}
        return event("output", to_json(shown))


class _BoardFeed(_Feed):
    def __init__(self, feeds: Feeds, head: int) -> None:
        super().__init__(feeds, head)
        self.activity: dict[int, int] = {}
        """Ticket -> number of the look at which its session had gone on."""
        self.looks = 0
        self._heads: dict[int, int] = {}
        self._looked_at = -_ACTIVITY_S

    async def advance(self) -> None:
        """Read what the ledger has new, and which sessions have gone on."""
        changed = False
        rows = await self.feeds.database.fetch(_LEDGER, after=self.last)
        for row in rows:
            self.push(row.seq, ledger_event(row))
            changed = True
        if clock.monotonic() - self._looked_at >= _ACTIVITY_S:
            self._looked_at = clock.monotonic()
            heads = {row.ticket_id: row.head_seq for row in await self.feeds.database.fetch(_RUNNING)}
            moved = [ticket for ticket, head in heads.items() if self._heads.get(ticket, head) != head]
            self._heads = heads
            if moved:
                self.looks += 1
                self.activity = {t: n for t, n in self.activity.items() if t in heads} | dict.fromkeys(
                    moved, self.looks
                )
                changed = True
        if changed:
            self.tell()


class _Reader(abc.ABC):
    def __init__(self, feed: _Feed) -> None:
        self.feed = feed
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
            self.feed.feeds.left(self.feed)

    @abc.abstractmethod
    async def _ready(self) -> bytes:
        """What can be sent now; empty: nothing yet."""


class _SessionReader(_Reader):
    feed: _SessionFeed

    def __init__(self, feed: _SessionFeed, after: int) -> None:
        super().__init__(feed)
        self._at = after
        self._page = _PAGE
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
        self._page = len(parts) if size >= _CHUNK else _PAGE
        return b"".join(parts)


class _BoardReader(_Reader):
    feed: _BoardFeed

    def __init__(self, feed: _BoardFeed, after: int | None) -> None:
        super().__init__(feed)
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
        if feed.base - self._at > _FAR_BEHIND:
            self._at = feed.last
            return event("reset", "{}", number=self._at)
        async with feed.feeds.reads:
            rows = await feed.feeds.database.fetch(_LEDGER, after=self._at)
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
