"""What model calls used, added up by session, phase, model and day: a projection of the journal that is never behind
for long, and can be made anew from it at any time.

Each session's row says up to which entry it was counted (``counted_seq``). Whoever counts moves that mark and adds the
sums in one transaction, and only if the mark is where it was; so any number of processes may count at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Integer, Text, and_, bindparam, case, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Row
from sqlalchemy.sql import Select

from operator_core import clock
from operator_core.db.client import StoreClient
from operator_core.db.schema import agent_log_entries, agent_sessions, tickets, usage_totals
from operator_core.model.entry import EntryKind
from operator_core.together import together

__all__ = ["CostTotal", "Total", "UsageTotals"]

_WINDOW = 5_000
"""Entries that are read at once."""
_SESSIONS = 100
_MANY = 10_000
_LARGEST = 2**53
# One-line summaries, noted together at the end of a phase; replies that were cut short.
_NO_CALLS = (EntryKind.USAGE, EntryKind.RETRY)

_U = usage_totals.c

_BEHIND = (
    select(
        agent_sessions.c.id,
        agent_sessions.c.session_id,
        agent_sessions.c.ticket_id,
        agent_sessions.c.head_seq,
        agent_sessions.c.counted_seq,
    )
    .where(agent_sessions.c.head_seq > agent_sessions.c.counted_seq, agent_sessions.c.id > bindparam("after"))
    .order_by(agent_sessions.c.id)
    .limit(_SESSIONS)
)
_PAID = (
    select(
        agent_log_entries.c.entry_type,
        agent_log_entries.c.phase,
        agent_log_entries.c.timestamp,
        agent_log_entries.c.meta,
    )
    .where(
        agent_log_entries.c.session_id == bindparam("session", type_=Text),
        agent_log_entries.c.seq > bindparam("after", type_=Integer),
        agent_log_entries.c.seq <= bindparam("upto", type_=Integer),
        agent_log_entries.c.meta.like('%"usage"%'),
    )
    .order_by(agent_log_entries.c.seq)
)
_MARK = (
    update(agent_sessions)
    .where(
        agent_sessions.c.session_id == bindparam("session", type_=Text),
        agent_sessions.c.counted_seq == bindparam("old", type_=Integer),
    )
    .values(counted_seq=bindparam("new", type_=Integer))
    .returning(agent_sessions.c.id)
)


class Total(NamedTuple):
    """What some calls used: counts of tokens, and USD.

    Attributes:
        calls: Calls that were answered. One-line summaries, which are noted together, and replies that were cut short
            are in the tokens and the cost only.
        cost_usd: Of the calls whose price is known.
        unpriced: Entries whose price is not known.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0

    def plus(self, other: Total) -> Total:
        """The sum."""
        return Total(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cost_usd + other.cost_usd,
            self.unpriced + other.unpriced,
        )


class CostTotal(NamedTuple):
    """What was used by one ticket, model, phase or day.

    Attributes:
        key: Number of the ticket (empty: no ticket), model, phase or day (``2026-01-28``, UTC).
        name: Of the ticket.
        sessions: How many had a part in it.
        verified: Tickets among them that were resolved by a verdict.
    """

    key: str
    name: str | None
    total: Total
    sessions: int
    verified: int


class UsageTotals(StoreClient):
    """The sums of a store."""

    async def catch_up(self, *, within_s: float = float("inf")) -> bool:
        """Count what was written since the last time.

        Args:
            within_s: Stop after about so many seconds; the next call goes on.

        Returns:
            Whether everything was counted that was there at the beginning.
        """
        end = clock.monotonic() + within_s
        after = -1
        while sessions := await self.database.fetch(_BEHIND, after=after):
            for session in sessions:
                if not await self._count_session(session, end):
                    return False
            after = sessions[-1].id
        return True

    async def catch_up_with(self, sessions: Iterable[Row[Any]], *, within_s: float = float("inf")) -> bool:
        """As :meth:`catch_up`, only of these rows of ``agent_sessions``."""
        end = clock.monotonic() + within_s
        return all([await self._count_session(session, end) for session in sessions])

    async def of_tickets(self, ids: Sequence[int]) -> dict[int, Total]:
        """What each of these tickets used; those that used nothing are left out."""
        return {row.key: _total(row) for row in await self.database.fetch(_OF_TICKETS, ids=list(ids))} if ids else {}

    async def of_sessions(self, ids: Sequence[str]) -> dict[str, Total]:
        """Likewise of sessions."""
        return {row.key: _total(row) for row in await self.database.fetch(_OF_SESSIONS, ids=list(ids))} if ids else {}

    async def of_day(self, day: str) -> Total:
        """What was used on one day (``2026-01-28``, UTC)."""
        (row,) = await self.database.fetch(_OF_DAY, day=day)
        return _total(row)

    async def by(self, what: str, *, since: str, limit: int) -> list[CostTotal]:
        """What was used since a day.

        Args:
            what: ``ticket``, ``model``, ``phase`` (largest cost first) or ``day`` (newest first).
        """
        if what == "ticket":
            found = await self.database.fetch(_BY_TICKET, since=since, most=limit)
            return [
                CostTotal("" if row.key is None else str(row.key), row.name, _total(row), row.sessions, row.verified)
                for row in found
            ]
        sums, proved = _BY[what]
        async with together() as group:
            rows = group.create_task(self.database.fetch(sums, since=since, most=limit))
            verified = group.create_task(self.database.fetch(proved, since=since))
        done = {row.key: row.verified for row in verified.result()}
        return [CostTotal(row.key, None, _total(row), row.sessions, done.get(row.key, 0)) for row in rows.result()]

    async def is_large(self) -> bool:
        """Whether there are so many sums that adding them up takes a while."""
        return bool(await self.database.fetch(_A_MANY))

    async def _count_session(self, session: Row[Any], end: float) -> bool:
        """Count one session up to where its row says that it is; False: the time was over before."""
        counted = session.counted_seq
        while counted < session.head_seq:
            if clock.monotonic() >= end:
                return False
            upto = min(counted + _WINDOW, session.head_seq)
            if not await self._count(session.session_id, session.ticket_id, counted, upto):
                return True  # another process counts this session right now
            counted = upto
        return True

    async def _count(self, session_id: str, ticket_id: int | None, after: int, upto: int) -> bool:
        """Count one stretch of a journal; False: somebody else did."""
        rows = await self.database.fetch(_PAID, session=session_id, after=after, upto=upto)
        sums = _added_up(rows)
        async with self.database.begin() as c:
            ours = await c.execute(_MARK, {"session": session_id, "old": after, "new": upto})
            if ours.first() is None:
                return False
            insert = sqlite.insert if self.database.sqlite else postgresql.insert
            for (phase, model, day), total in sums.items():
                values = {"session_id": session_id, "phase": phase, "model": model, "day": day, "ticket_id": ticket_id}
                statement = insert(usage_totals).values(**values, **total._asdict())
                more = {name: _U[name] + statement.excluded[name] for name in Total._fields}
                key = [_U.session_id, _U.phase, _U.model, _U.day]
                await c.execute(statement.on_conflict_do_update(index_elements=key, set_=more))
        return True


def _added_up(rows: Iterable[Row[Any]]) -> dict[tuple[str, str, str], Total]:
    sums: dict[tuple[str, str, str], Total] = {}
    for row in rows:
        meta = json.loads(row.meta)
        used = meta.get("usage") if isinstance(meta, dict) else None
        if isinstance(used, dict):
            key = (row.phase or "", str(meta.get("model") or "unknown"), row.timestamp[:10])
            sums[key] = sums.get(key, Total()).plus(_one(row.entry_type, used))
    return sums


def _one(entry_type: str, used: Mapping[str, Any]) -> Total:
    def count(name: str) -> int:
        value = used.get(name)
        return max(0, min(value, _LARGEST)) if isinstance(value, int) else 0

    cost = used.get("cost_usd")
    known = isinstance(cost, int | float) and math.isfinite(cost)
    return Total(
        int(entry_type not in _NO_CALLS),
        count("input_tokens"),
        count("output_tokens"),
        count("cache_read_tokens"),
        count("cache_write_tokens"),
        float(cost) if known and cost is not None else 0.0,
        int(not known),
    )


def _total(row: Row[Any]) -> Total:
    return Total(*(getattr(row, name) or 0 for name in Total._fields))


_SUMS = [func.sum(_U[name]).label(name) for name in Total._fields]


def _of(column: ColumnElement[Any]) -> Select[Any]:
    return select(column.label("key"), *_SUMS).where(column.in_(bindparam("ids", expanding=True))).group_by(column)


_OF_TICKETS = _of(_U.ticket_id)
_OF_SESSIONS = _of(_U.session_id)
_OF_DAY = select(*_SUMS).where(_U.day == bindparam("day", type_=Text))


_SINCE = _U.day >= bindparam("since", type_=Text)
_IS_VERIFIED = and_(tickets.c.status == "resolved", tickets.c.reason == "verified")
_LARGEST_FIRST = (func.sum(_U.cost_usd).desc(), func.sum(_U.output_tokens).desc())
_A_MANY = select(_U.session_id).limit(1).offset(_MANY)


def _costs(column: ColumnElement[Any], *order: ColumnElement[Any]) -> Select[Any]:
    return (
        select(column.label("key"), *_SUMS, func.count(_U.session_id.distinct()).label("sessions"))
        .where(_SINCE)
        .group_by(column)
        .order_by(*order, column)
        .limit(bindparam("most", type_=Integer))
    )


def _verified(column: ColumnElement[Any]) -> Select[Any]:
    return (
        select(column.label("key"), func.count(_U.ticket_id.distinct()).label("verified"))
        .select_from(usage_totals.join(tickets, tickets.c.id == _U.ticket_id))
        .where(_SINCE, _IS_VERIFIED)
        .group_by(column)
    )


_most = (
    select(_U.ticket_id.label("key"), *_SUMS)
    .where(_SINCE)
    .group_by(_U.ticket_id)
    .order_by(*_LARGEST_FIRST, _U.ticket_id)
    .limit(bindparam("most", type_=Integer))
    .subquery("most_spent_on")
)
_its_sessions = (
    select(func.count(_U.session_id.distinct()))
    .where(_SINCE, or_(_U.ticket_id == _most.c.key, and_(_U.ticket_id.is_(None), _most.c.key.is_(None))))
    .correlate(_most)
    .scalar_subquery()
)
_BY_TICKET = (
    select(
        _most,
        tickets.c.invariant_name.label("name"),
        case((_IS_VERIFIED, 1), else_=0).label("verified"),
        _its_sessions.label("sessions"),
    )
    .select_from(_most.outerjoin(tickets, tickets.c.id == _most.c.key))
    .order_by(_most.c.cost_usd.desc(), _most.c.output_tokens.desc(), _most.c.key)
)
_BY = {
    "model": (_costs(_U.model, *_LARGEST_FIRST), _verified(_U.model)),
    "phase": (_costs(_U.phase, *_LARGEST_FIRST), _verified(_U.phase)),
    "day": (_costs(_U.day, _U.day.desc()), _verified(_U.day)),
}
