"""What happened in a time, for people who were not there: read from the ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import BigInteger, Integer, Text, bindparam, func, or_, select
from sqlalchemy.engine import Row

from operator_core import clock
from operator_core.api.listing import read_workers
from operator_core.api.staffing import nobody_for
from operator_core.db.engine import Database
from operator_core.db.ledger import body_of
from operator_core.db.schema import agent_log_entries, agent_sessions, ledger, ledger_head, tickets, usage_totals
from operator_core.db.usage import UsageTotals
from operator_core.errors import StoreError, StoreReadOnly
from operator_core.model.digest import Digest, Line, Often
from operator_core.model.entry import EntryKind
from operator_core.model.ticket import Reason, TicketStatus, plain_diagnosis

__all__ = ["make_digest", "read_digest"]

_PAGE = 1_000
_LONGEST = 600
_LISTED = 15
_SKEW = timedelta(minutes=5)
_COUNTING_S = 20.0
_TOP = 5
_MOST_WAITING = 4

_HEAD = select(ledger_head.c.seq).where(ledger_head.c.id == 1)
_AT = select(ledger.c.at).where(ledger.c.seq == bindparam("seq", type_=BigInteger))
_CHANGES = (
    select(ledger.c.seq, ledger.c.ticket_id, ledger.c.session_id, ledger.c.body, ledger.c.at)
    .where(
        ledger.c.seq > bindparam("after", type_=BigInteger),
        ledger.c.kind == "transition",
        ledger.c.ticket_id.is_not(None),
    )
    .order_by(ledger.c.seq)
    .limit(_PAGE)
)
_ROW = (
    tickets.c.id,
    tickets.c.kind,
    tickets.c.status,
    tickets.c.reason,
    tickets.c.invariant_name,
    tickets.c.severity,
    tickets.c.session_id,
    func.substr(tickets.c.diagnosis, 1, _LONGEST).label("diagnosis"),
)
_TICKETS = select(*_ROW).where(tickets.c.id.in_(bindparam("ids", expanding=True)))
# Those who wait longest come first.
_IN_STATE = (
    select(*_ROW)
    .where(tickets.c.status == bindparam("status", type_=Text))
    .order_by(tickets.c.id)
    .limit(bindparam("limit", type_=Integer))
)
_COUNT = select(func.count()).select_from(tickets).where(tickets.c.status == bindparam("status", type_=Text))
_REPORT = (
    select(agent_log_entries.c.content)
    .where(
        agent_log_entries.c.session_id == bindparam("session", type_=Text),
        agent_log_entries.c.entry_type == EntryKind.REPORT.value,
    )
    .order_by(agent_log_entries.c.seq.desc())
    .limit(1)
)
_SPENT = (
    select(
        func.count(func.distinct(agent_sessions.c.session_id)).label("sessions"),
        func.coalesce(func.sum(usage_totals.c.cost_usd), 0.0).label("cost"),
        func.coalesce(func.sum(usage_totals.c.unpriced), 0).label("unpriced"),
    )
    .select_from(agent_sessions.outerjoin(usage_totals, usage_totals.c.session_id == agent_sessions.c.session_id))
    .where(
        agent_sessions.c.started_at < bindparam("until", type_=Text),
        or_(agent_sessions.c.ended_at.is_(None), agent_sessions.c.ended_at >= bindparam("since", type_=Text)),
    )
)


class _Line:
    """Those who wait for a digest: one is made at a time, because a year of a busy store takes seconds to read.

    Attributes:
        waiting: What was not begun yet, by where it begins.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting: dict[datetime, asyncio.Task[Digest]] = {}


_LINES: WeakKeyDictionary[Database, _Line] = WeakKeyDictionary()


async def read_digest(database: Database, since: datetime) -> Digest:
    """What happened since then; who asks for the same while it waits for its turn gets the same.

    Raises:
        StoreError: Too many others wait already, or the store cannot be read.
    """
    line = _LINES.setdefault(database, _Line())
    task = line.waiting.get(since)
    if task is None:
        if len(line.waiting) >= _MOST_WAITING:
            raise StoreError("Several others wait for a digest already; ask again in a moment.")
        task = line.waiting[since] = database.beside(_in_turn(database, line, since))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    # Who goes away does not take it from the others.
    return await asyncio.shield(task)


async def _in_turn(database: Database, line: _Line, since: datetime) -> Digest:
    try:
        await line.turn.acquire()
    finally:
        # Who asks from now on wants to read of what happens from now on, too.
        del line.waiting[since]
    try:
        return await make_digest(database, since)
    finally:
        line.turn.release()


async def make_digest(database: Database, since: datetime, until: datetime | None = None) -> Digest:
    """What happened between two moments; what waits or needs somebody is as of now.

    Args:
        until: None: now.

    Raises:
        StoreError: The store cannot be read.
    """
    until = until or clock.now()
    last: dict[int, tuple[str, str | None, str | None]] = {}
    came: Counter[int] = Counter()
    opened = reopened = 0
    async for row in _changes(database, since, until):
        body = body_of(row)
        new, reason = str(body.get("new") or ""), body.get("reason")
        last.pop(row.ticket_id, None)  # so that they are in the order of their last change
        last[row.ticket_id] = (new, reason, row.session_id)
        if new == TicketStatus.OPEN and body.get("old") is None:
            opened += 1
            came[row.ticket_id] += 1
        elif new == TicketStatus.OPEN and body.get("old") in ("resolved", "escalated", "canceled"):
            reopened += 1
            came[row.ticket_id] += 1
    ended = {n: how for n, how in last.items() if how[0] in ("resolved", "escalated", "canceled")}
    by = Counter((state, reason) for state, reason, _ in ended.values())
    canceled = sum(n for (state, _), n in by.items() if state == "canceled")
    cleared = by["canceled", Reason.CLEARED.value]
    listed = [
        *[n for n, how in ended.items() if how[0] == "resolved"][-_LISTED:],
        *[n for n, how in ended.items() if how[0] == "escalated"][-_LISTED:],
    ]
    rows = {row.id: row for row in await _tickets(database, listed)}
    lines: dict[str, list[Line]] = {"resolved": [], "escalated": []}
    for n in listed:
        state, reason, session = ended[n]
        if n in rows:
            lines[state].append(await _line(database, rows[n], reason, session))
    spent = await _spent(database, since, until)
    waiting = await database.fetch(_IN_STATE, status=TicketStatus.WAITING_FOR_INPUT.value, limit=_LISTED)
    untaken = await database.fetch(_IN_STATE, status=TicketStatus.OPEN.value, limit=_LISTED)
    return Digest(
        since=since,
        until=until,
        proved=by["resolved", Reason.VERIFIED.value],
        by_hand=by["resolved", Reason.BY_HAND.value],
        escalated=sum(n for (state, _), n in by.items() if state == "escalated"),
        opened=opened,
        reopened=reopened,
        canceled=canceled - cleared,
        cleared=cleared,
        waiting=await _count(database, TicketStatus.WAITING_FOR_INPUT),
        escalated_now=await _count(database, TicketStatus.ESCALATED),
        untaken=await _count(database, TicketStatus.OPEN),
        stalled=nobody_for(await read_workers(database)) if untaken else None,
        resolved_lines=lines["resolved"],
        escalated_lines=lines["escalated"],
        waiting_lines=[await _line(database, row, row.reason, None) for row in waiting],
        untaken_lines=[await _line(database, row, row.reason, None) for row in untaken],
        top=await _most_often(database, came),
        sessions=int(spent.sessions),
        cost_usd=float(spent.cost),
        unpriced=int(spent.unpriced),
    )


async def _changes(database: Database, since: datetime, until: datetime) -> AsyncIterator[Row[Any]]:
    """Changes of state of tickets, oldest first."""
    begin, end = clock.iso(since), clock.iso(until)
    # Machines write it, whose clocks differ a little.
    after, over = await _before(database, clock.iso(since - _SKEW)), clock.iso(until + _SKEW)
    while rows := await database.fetch(_CHANGES, after=after):
        for row in rows:
            if row.at >= over:
                return
            if begin <= row.at < end:
                yield row
        after = rows[-1].seq


async def _before(database: Database, moment: str) -> int:
    """The last sequence number before a moment: the ledger is in order of time, and has no gap."""
    low, high = -1, int((await database.fetch(_HEAD))[0].seq)
    while low < high:
        middle = (low + high + 1) // 2
        found = await database.fetch(_AT, seq=middle)
        if found and found[0].at < moment:
            low = middle
        else:
            high = middle - 1
    return low


async def _tickets(database: Database, ids: list[int]) -> list[Row[Any]]:
    return list(await database.fetch(_TICKETS, ids=ids)) if ids else []


async def _line(database: Database, row: Row[Any], reason: str | None, session: str | None) -> Line:
    said = await database.fetch(_REPORT, session=session) if session else []
    why = said[0].content if said else plain_diagnosis(row.diagnosis)
    return Line(
        ticket_id=row.id,
        kind=row.kind,
        name=row.invariant_name[:_LONGEST],
        severity=row.severity,
        reason=reason,
        why=str(why)[:_LONGEST] if why else None,
    )


async def _most_often(database: Database, came: Counter[int]) -> list[Often]:
    times: Counter[str] = Counter()
    ids = list(came)
    for start in range(0, len(ids), 500):
        for row in await _tickets(database, ids[start : start + 500]):
            if row.kind == "incident":
                times[row.invariant_name] += came[row.id]
    return [Often(name=name[:_LONGEST], times=n) for name, n in times.most_common(_TOP) if n > 1]


async def _count(database: Database, status: TicketStatus) -> int:
    return int((await database.fetch(_COUNT, status=status.value))[0][0])


async def _spent(database: Database, since: datetime, until: datetime) -> Row[Any]:
    with suppress(StoreReadOnly):
        await UsageTotals(database).catch_up(within_s=_COUNTING_S)
    return (await database.fetch(_SPENT, since=clock.iso(since), until=clock.iso(until)))[0]
