"""Lists: tickets, sessions, workers, and the counts at their head."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import bindparam, func, select
from sqlalchemy.engine import Row

from operator_core import clock
from operator_core.api.cursor import read_cursor, write_cursor
from operator_core.api.models import Board as BoardView
from operator_core.api.models import Page, SessionView, TicketView, WorkerView
from operator_core.api.staffing import nobody_for, takers
from operator_core.api.views import NEEDS_ME, ids_in, session_view, spent_of, ticket_view
from operator_core.db.approvals import Approvals
from operator_core.db.board import Board, Place, TicketFilter
from operator_core.db.engine import Database
from operator_core.db.journal_reading import JournalReading
from operator_core.db.schema import approvals, monitor_states
from operator_core.db.usage import UsageTotals
from operator_core.errors import StoreError
from operator_core.model.ticket import TicketStatus
from operator_core.together import together

__all__ = [
    "count_now",
    "count_soon",
    "read_board",
    "read_sessions",
    "read_tickets",
    "read_workers",
    "session_views",
    "ticket_views",
]

_EVERY_S = 1.0
_WITHIN_S = 0.1
_SESSIONS_WITHIN_S = 0.5
_PATIENCE_S = 1.0
_COUNTED: WeakKeyDictionary[Database, float] = WeakKeyDictionary()
_LATE: WeakKeyDictionary[Database, asyncio.Task[bool]] = WeakKeyDictionary()

_PENDING = approvals.c.state == "pending"
_ASKED = (
    select(approvals.c.ticket_id, approvals.c.why)
    .where(_PENDING, approvals.c.ticket_id.in_(bindparam("ids", expanding=True)))
    .order_by(approvals.c.asked_at)
)
_LIGHTS = select(monitor_states.c.light, func.count().label("number")).group_by(monitor_states.c.light)


async def count_soon(database: Database, *, within_s: float = _WITHIN_S, every_s: float = _EVERY_S) -> None:
    """Bring the sums of the usage up to date, unless that was done just now; what takes longer is left for later.

    A store that cannot be written, or not now, is read all the same.
    """
    now = clock.monotonic()
    if now - _COUNTED.get(database, float("-inf")) < every_s:
        return
    _COUNTED[database] = now
    await _counted(database, UsageTotals(database).catch_up(within_s=within_s), within_s)


async def count_now(database: Database, sessions: Sequence[Row[Any]]) -> None:
    """As :func:`count_soon`, for these rows of sessions and at once."""
    await _counted(
        database, UsageTotals(database).catch_up_with(sessions, within_s=_SESSIONS_WITHIN_S), _SESSIONS_WITHIN_S
    )


async def _counted(database: Database, count: Coroutine[Any, Any, bool], within_s: float) -> None:
    """Wait for a count, but not for whoever keeps the store from being written: people want to read meanwhile."""
    late = _LATE.get(database)
    if late is not None and not late.done():
        count.close()
        return
    task = database.beside(count)
    done, _ = await asyncio.wait({task}, timeout=within_s + _PATIENCE_S)
    if not done:
        _LATE[database] = task
        return
    with suppress(StoreError):
        await task


async def read_tickets(
    database: Database,
    wanted: TicketFilter,
    *,
    attention: bool,
    limit: int,
    cursor: str | None,
    within_s: float | None = None,
) -> Page[TicketView]:
    """A page of tickets.

    Args:
        within_s: Look for about so long; what was not looked at by then is behind the cursor, so that a page may have
            less than ``limit`` and a cursor all the same. None: as long as it takes.
    """
    kind = "attention" if attention else "newest"
    after = None if cursor is None else Place(*read_cursor(kind, cursor, 2))
    board = Board(database)
    places, reached = await board.tickets(wanted, attention=attention, limit=limit + 1, after=after, within_s=within_s)
    shown = places[:limit]
    await count_soon(database)
    items = await ticket_views(database, [place.id for place in shown])
    last = shown[-1] if len(places) > limit else reached
    return Page[TicketView](items=items, next=write_cursor(kind, *last) if last else None)


async def ticket_views(database: Database, ids: Sequence[int]) -> list[TicketView]:
    """These tickets as they are listed, in this order, with a number of statements that does not depend on theirs."""
    board = Board(database)
    found = await board.ticket_rows(ids)
    rows = list(found.values())
    entries = await board.entry_rows(ids_in(rows, "call", "outcome", "verdict"))
    waiting = [row.id for row in rows if row.status == NEEDS_ME[0]]
    asked = {row.ticket_id: row.why for row in await database.fetch(_ASKED, ids=waiting)} if waiting else {}
    spent = await UsageTotals(database).of_tickets(list(found))
    return [ticket_view(found[i], entries, asked, spent.get(i)) for i in ids if i in found]


async def read_sessions(
    database: Database, *, ticket_id: int | None, status: str | None, limit: int, cursor: str | None
) -> Page[SessionView]:
    """A page of sessions, newest first."""
    before = {} if cursor is None else {"before": read_cursor("sessions", cursor, 1)[0]}
    rows = await Board(database).sessions(ticket_id=ticket_id, status=status, limit=limit + 1, **before)
    more = write_cursor("sessions", rows[limit - 1].id) if len(rows) > limit else None
    return Page[SessionView](items=await session_views(database, rows[:limit]), next=more)


async def session_views(database: Database, rows: Sequence[Row[Any]]) -> list[SessionView]:
    """Rows of sessions, each with what it used up to now."""
    await count_now(database, rows)
    spent = await UsageTotals(database).of_sessions([row.session_id for row in rows])
    judges = await JournalReading(database).judged_by([row.session_id for row in rows])
    return [session_view(row, spent.get(row.session_id), judges.get(row.session_id)) for row in rows]


async def read_board(database: Database) -> BoardView:
    """The counts."""
    await count_soon(database)
    async with together() as group:
        statuses = group.create_task(Board(database).counts())
        invariants = group.create_task(database.fetch(_LIGHTS))
        fleet = group.create_task(read_workers(database))
        pending = group.create_task(Approvals(database).count_pending())
        today = group.create_task(UsageTotals(database).of_day(clock.iso()[:10]))
    counts, workers = statuses.result(), fleet.result()
    lights = {row.light: row.number for row in invariants.result()}
    waiting = any(counts.get(state.value) for state in (TicketStatus.OPEN, TicketStatus.QUEUED))
    return BoardView(
        counts=counts,
        needs_me=sum(counts.get(state, 0) for state in NEEDS_ME),
        approvals=pending.result(),
        workers=sum(worker.alive for worker in workers),
        takers=takers(workers),
        stalled=nobody_for(workers) if waiting else None,
        red=lights.get("red", 0),
        unknown=lights.get("unknown", 0),
        spent_today=spent_of(today.result()),
    )


async def read_workers(database: Database) -> list[WorkerView]:
    """Workers whose row is there: those that live, and those whose work nobody has taken over yet."""
    board = Board(database)
    at_work = await board.at_work()
    return [
        WorkerView(
            id=row.id,
            name=row.name,
            host=row.host,
            pid=row.pid,
            started_at=clock.parse_iso(row.started_at),
            alive=row.lease_until >= row.now,
            lease_left_s=round((row.lease_until - row.now) / 1000, 1),
            concurrency=row.concurrency,
            draining=row.draining,
            tickets=at_work.get(row.id, []),
        )
        for row in await board.workers()
    ]
