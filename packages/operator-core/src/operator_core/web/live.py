"""What happens in the store, to as many readers as there are, with one look at it for all of them.

A pulse asks the store a few times a second how far each watched journal is. What is new is read once, is kept as the
bytes that are sent, and each reader has nothing but a place in it. A reader that comes late, or comes back, or is slow,
reads what it missed from the journal and then goes on with the others; so nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import bindparam, select
from starlette.exceptions import HTTPException

from operator_core import clock
from operator_core.api.models import EntryPage, SessionDetail
from operator_core.db.engine import Database
from operator_core.db.ledger import head as ledger_head
from operator_core.db.schema import agent_sessions, live_output
from operator_core.errors import StoreError
from operator_core.web.event_stream import EventSource, event
from operator_core.web.readers import (
    LEDGER,
    PAGE,
    BoardReader,
    Reader,
    SessionReader,
    entry_event,
    ledger_event,
)
from operator_core.web.shapes import to_json

__all__ = ["BoardFeed", "Feed", "Feeds", "SessionFeed"]

_PULSE_S = 0.2
_PAUSE_S = 1.0
_STATE_S = 1.0
_ACTIVITY_S = 2.0
_MOST_AT_ONCE = 1000
_CHUNK = 128 * 1024
_RING_BYTES = 512 << 10
_RING_ITEMS = 2000
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
        max_each: So many of them may be one reader's, so that nobody keeps the others out.
        pulse_s: How often the store is asked.
    """

    def __init__(
        self,
        database: Database,
        api: _Source,
        *,
        max_streams: int = 1000,
        max_each: int = 100,
        pulse_s: float = _PULSE_S,
    ) -> None:
        self.database = database
        self.api = api
        self.max_streams = max_streams
        self.max_each = max_each
        self.clients = 0
        """How many read now."""
        self.closed = False
        self.reads = asyncio.Semaphore(2)
        """So many readers catch up at once; the store has others to serve."""
        self._pulse_s = pulse_s
        self._each: Counter[str] = Counter()
        self._sessions: dict[str, SessionFeed] = {}
        self._board: BoardFeed | None = None
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

    async def session(self, session_id: str, after: int = -1, *, who: str = "") -> EventSource:
        """The entries of a session behind ``after``, and what it does now, until it ends.

        Args:
            who: Whose stream it is: the id of a token; empty: nobody's.

        Raises:
            NotFound: There is no such session.
            HTTPException: There are too many readers (503), or too many of this one (429).
        """
        self._admit(who)
        feed = self._sessions.get(session_id)
        if feed is None:
            detail = await self.api.session(session_id)
            self._admit(who)  # others may have come meanwhile
            feed = self._sessions.setdefault(session_id, SessionFeed(self, detail))
        return self._joined(feed, SessionReader(feed, after, who))

    async def board(self, after: int | None = None, *, who: str = "") -> EventSource:
        """The tickets that change behind ``after`` (a number of the ledger); None: from now on.

        Args:
            who: As for :meth:`session`.

        Raises:
            HTTPException: There are too many readers (503), or too many of this one (429).
        """
        self._admit(who)
        head, _ = await ledger_head(self.database)
        self._admit(who)  # others may have come meanwhile
        feed = self._board = self._board or BoardFeed(self, head)
        return self._joined(feed, BoardReader(feed, after, who))

    def _admit(self, who: str) -> None:
        if self.closed or self.clients >= self.max_streams:
            raise HTTPException(503, "There are too many live streams; try again later.", {"Retry-After": "10"})
        if who and self._each[who] >= self.max_each:
            raise HTTPException(
                429,
                f"This token has {self.max_each} live streams open, and may have no more; end some of them, use "
                "another token, or raise `[web] streams_per_token`.",
                {"Retry-After": "10"},
            )

    def _joined(self, feed: Feed, reader: Reader) -> Reader:
        feed.readers += 1
        self.clients += 1
        self._each[reader.who] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._pulse(), name="operator-feeds")
        return reader

    def left(self, reader: Reader) -> None:
        """One reader less."""
        feed = reader.feed
        self.clients -= 1
        feed.readers -= 1
        self._each[reader.who] -= 1
        if not self._each[reader.who]:
            del self._each[reader.who]
        if feed.readers:
            return
        if feed is self._board:
            self._board = None
        for session_id in [name for name, other in self._sessions.items() if other is feed]:
            del self._sessions[session_id]

    def _feeds(self) -> list[Feed]:
        return [*self._sessions.values(), *([self._board] if self._board else [])]

    async def _pulse(self) -> None:
        complaint = ""
        while self.clients:
            pause = self._pulse_s
            try:
                await self._look()
                complaint = ""
            except Exception as error:
                # A store that is away for a moment, say: the readers stay, and go on when it is back.
                said = f"{type(error).__name__}: {error}"
                if said != complaint:
                    complaint = said
                    foreseen = isinstance(error, StoreError)
                    why = str(error) if foreseen else "it failed in a way nobody foresaw"
                    _logger.warning("The live streams wait for the store: %s", why, exc_info=not foreseen)
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


class Feed:
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


class SessionFeed(Feed):
    """What is new in one session, until it ends."""

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
        for _ in range(_MOST_AT_ONCE // PAGE):
            if self.last >= head:
                break
            page = await self.feeds.api.entries(self.session_id, after=self.last, limit=PAGE)
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


class BoardFeed(Feed):
    """What is new about all tickets."""

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
        rows = await self.feeds.database.fetch(LEDGER, after=self.last)
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
