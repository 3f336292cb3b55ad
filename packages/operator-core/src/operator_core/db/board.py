"""Lists of tickets and sessions, page by page, of any length: keyset pagination over indexes, never an offset."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Integer, Text, and_, bindparam, case, func, or_, select, union_all
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import Select

from operator_core import clock
from operator_core.db.client import StoreClient
from operator_core.db.schema import agent_log_entries, agent_sessions, db_now_ms, tickets, workers
from operator_core.model.ticket import TicketStatus

__all__ = ["ATTENTION", "LAST", "Board", "Found", "Place", "TicketFilter"]

LAST = 2**31 - 1
"""Above every number of a ticket or session."""

_S = TicketStatus
ATTENTION: tuple[tuple[TicketStatus, ...], ...] = (
    (_S.WAITING_FOR_INPUT,),
    (_S.ESCALATED,),
    (_S.RUNNING,),
    (_S.OPEN, _S.QUEUED),
    (_S.RESOLVED, _S.CANCELED),
)
"""Groups of states in the order of attention: what waits for a person, what works, what will, what is over."""

_WINDOW = 2000
_MESSAGE = 500
_RAW = 2000

_T = tickets.c
_E = agent_log_entries


class TicketFilter(NamedTuple):
    """Which tickets; everything that is given must hold.

    Attributes:
        status: States; empty: all.
        labels: Labels that it has, each with this value.
        words: Each is in its name, its message or its labels (ASCII letters of either case), or is its number, as
            ``12`` or ``#12``, or one of its labels: ``name=value``, ``name=begin*``, ``name=`` with any value.
    """

    status: tuple[str, ...] = ()
    kind: str | None = None
    severity: str | None = None
    labels: Mapping[str, str] = {}
    words: tuple[str, ...] = ()


class Place(NamedTuple):
    """Behind which ticket a page begins: its group in the order, and its number."""

    group: int
    id: int


class Found(NamedTuple):
    """Places of tickets, in order.

    Attributes:
        reached: There was no time for what is behind this place; None: nothing was left out.
    """

    places: list[Place]
    reached: Place | None = None


class Board(StoreClient):
    """What is listed."""

    async def tickets(
        self,
        wanted: TicketFilter,
        *,
        attention: bool,
        limit: int,
        after: Place | None = None,
        within_s: float | None = None,
    ) -> Found:
        """At most ``limit`` tickets, in order; newest first, or first by :data:`ATTENTION`.

        Args:
            after: Only those behind it.
            within_s: Stop to look after about so many seconds, if each ticket must be looked at; tickets that are open
                are looked at in any case. None: look at all of them.
        """
        groups: list[tuple[str, ...]] = [wanted.status]
        if attention:
            groups = [tuple(s for s in group if not wanted.status or s in wanted.status) for group in ATTENTION]
        conditions = self._conditions(wanted)
        end = None if within_s is None or not conditions else clock.monotonic() + within_s
        found: list[Place] = []
        async with self.database.read() as c:
            for number, states in enumerate(groups):
                if len(found) >= limit or (after is not None and number < after.group) or (attention and not states):
                    continue
                before = after.id if after is not None and number == after.group else LAST
                most = limit - len(found)
                if end is None or _are_few(states):
                    rows = await c.execute(_newest(states, conditions), {"before": before, "most": most})
                    found += [Place(number, row.id) for row in rows]
                    continue
                ids, reached = await _until(c, _window(states, conditions), before, most, end)
                found += [Place(number, i) for i in ids]
                if reached is not None:
                    return Found(found, Place(number, reached))
        return Found(found)

    async def ticket_rows(self, ids: Sequence[int]) -> dict[int, Row[Any]]:
        """What a list shows of these tickets, by number; see ``_SHOWN`` for the columns."""
        return {row.id: row for row in await self.database.fetch(_SHOWN, ids=list(ids))} if ids else {}

    async def entry_rows(self, ids: Sequence[int]) -> dict[int, Row[Any]]:
        """These entries, by row id; long columns are cut."""
        return {row.id: row for row in await self.database.fetch(_GLANCE, ids=list(ids))} if ids else {}

    async def sessions(
        self, *, ticket_id: int | None = None, status: str | None = None, limit: int, before: int = LAST
    ) -> Sequence[Row[Any]]:
        """Sessions, newest first; ``id`` is the place of each."""
        statement = _SESSIONS
        if ticket_id is not None:
            statement = statement.where(agent_sessions.c.ticket_id == ticket_id)
        if status is not None:
            statement = statement.where(agent_sessions.c.status == status)
        return await self.database.fetch(statement, before=before, most=limit)

    async def session(self, session_id: str) -> Row[Any] | None:
        """One session as it is listed."""
        rows = await self.database.fetch(_ONE_SESSION, session=session_id)
        return rows[0] if rows else None

    async def counts(self) -> dict[str, int]:
        """How many tickets there are in each state; states without one are left out."""
        return {row.status: row.number for row in await self.database.fetch(_COUNTS)}

    async def workers(self) -> Sequence[Row[Any]]:
        """The rows of all workers, with ``now`` of the store's clock in milliseconds."""
        return await self.database.fetch(_WORKERS)

    async def at_work(self) -> dict[str, list[int]]:
        """Numbers of the tickets that run, by the id of their worker."""
        found: dict[str, list[int]] = {}
        for row in await self.database.fetch(_AT_WORK):
            found.setdefault(row.owner, []).append(row.id)
        return found

    def _conditions(self, wanted: TicketFilter) -> list[ColumnElement[bool]]:
        conditions: list[ColumnElement[bool]] = []
        if wanted.kind is not None:
            conditions.append(_T.kind == wanted.kind)
        if wanted.severity is not None:
            conditions.append(_T.severity == wanted.severity)
        # Labels are stored as compact JSON, where no quotation mark inside of a name or a value stands alone.
        find = func.instr if self.database.sqlite else func.strpos
        for name, value in wanted.labels.items():
            pair = f"{_json(name)}:{_json(value)}"
            conditions.append(find(_T.labels, pair) > 0)
        for word in wanted.words:
            anywhere = [_like(column, word, self.database.sqlite) for column in (_T.invariant_name, _T.message)]
            anywhere.append(_like(_T.labels, _json(word)[1:-1], self.database.sqlite))
            if label := _label_in(word):
                anywhere.append(_like(_T.labels, label, self.database.sqlite))
            number = word.removeprefix("#")
            if number.isascii() and number.isdigit() and int(number) <= LAST:
                anywhere.append(_T.id == int(number))
            conditions.append(or_(*anywhere))
        return conditions


def _label_in(word: str) -> str | None:
    """How a label is stored that is written ``name=value``, ``name=begin*`` or ``name=``; None: it is no label."""
    name, equals, value = word.partition("=")
    if not (name and equals):
        return None
    begin = not value or value.endswith("*")
    stored = _json(value.removesuffix("*") if begin else value)
    return f"{_json(name)}:{stored[:-1] if begin else stored}"


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _like(column: ColumnElement[Any], word: str, sqlite: bool) -> ColumnElement[bool]:
    escaped = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    pattern = f"%{escaped}%"
    # SQLite's LIKE does not look at the case of ASCII letters anyway, and `lower()` would cost it a copy of each text.
    return column.like(pattern, escape="\\") if sqlite else column.ilike(pattern, escape="\\")


def _newest(states: Sequence[str], conditions: Sequence[ColumnElement[bool]]) -> Select[Any]:
    """Newest tickets in these states (none given: in any), each state by its own walk along the index."""
    before, most = bindparam("before", type_=Integer), bindparam("most", type_=Integer)
    base = select(_T.id).where(_T.id < before, *conditions).order_by(_T.id.desc()).limit(most)
    if len(states) == 0:
        return base
    walks = [base.where(_T.status == state).subquery(f"walk_{n}") for n, state in enumerate(states)]
    if len(walks) == 1:
        return select(walks[0].c.id)
    both = union_all(*(select(walk.c.id) for walk in walks)).subquery("walks")
    return select(both.c.id).order_by(both.c.id.desc()).limit(most)


def _are_few(states: Sequence[str]) -> bool:
    """Whether tickets in these states are no more than what people and workers have before them."""
    return bool(states) and not {state.value for state in ATTENTION[-1]} & set(states)


def _window(states: Sequence[str], conditions: Sequence[ColumnElement[bool]]) -> Select[Any]:
    """Newest tickets of a window of numbers, in one walk along the table: by states it would be one for each."""
    numbers = (_T.id >= bindparam("floor", type_=Integer), _T.id < bindparam("before", type_=Integer))
    only = (func.coalesce(_T.status, "").in_(states),) if states else ()
    return (
        select(_T.id).where(*numbers, *only, *conditions).order_by(_T.id.desc()).limit(bindparam("most", type_=Integer))
    )


async def _until(
    c: AsyncConnection, statement: Select[Any], before: int, most: int, end: float
) -> tuple[list[int], int | None]:
    """Numbers that a window shows, window by window from the newest on; and, if the time was over, where it stopped."""
    newest = (await c.execute(_HIGHEST)).scalar()
    before, wide = min(before, (newest or 0) + 1), _WINDOW
    found: list[int] = []
    while before > 0 and len(found) < most:
        began = clock.monotonic()
        values = {"floor": before - wide, "before": before, "most": most - len(found)}
        found += [row.id for row in await c.execute(statement, values)]
        before -= wide
        ended = clock.monotonic()
        # At least one window each time, so that whoever goes on comes to an end.
        if ended >= end and before > 0 and len(found) < most:
            return found, before
        # No wider than what the time that is left allows, by what this one took.
        wide = max(_WINDOW, min(4 * wide, int(wide * (end - ended) / max(ended - began, 1e-4))))
    return found, None


def _newest_entry(kind: str, *only: ColumnElement[bool]) -> ColumnElement[int | None]:
    """Row id of the newest entry of a kind in the ticket's session."""
    found = (
        select(_E.c.id)
        .where(_E.c.session_id == _T.session_id, _E.c.entry_type == kind)
        .order_by(_E.c.seq.desc())
        .limit(1)
        .correlate(tickets)
        .scalar_subquery()
    )
    return case((and_(_T.session_id.is_not(None), *only), found), else_=None)


_head = agent_log_entries.alias("head")
_SHOWN = (
    select(
        *(c for c in tickets.c if c.name not in ("message", "diagnosis", "check_spec", "metric_snapshot")),
        func.substr(_T.message, 1, _MESSAGE).label("message"),
        func.substr(_T.diagnosis, 1, _MESSAGE).label("diagnosis"),
        workers.c.name.label("worker"),
        _head.c.phase,
        _newest_entry("tool_call", _T.status == _S.RUNNING.value).label("call"),
        _newest_entry("outcome", _T.status == _S.WAITING_FOR_INPUT.value).label("outcome"),
        _newest_entry("verdict").label("verdict"),
    )
    .select_from(
        tickets.outerjoin(workers, workers.c.id == _T.owner)
        .outerjoin(agent_sessions, agent_sessions.c.session_id == _T.session_id)
        .outerjoin(
            _head,
            and_(
                _head.c.session_id == _T.session_id,
                _head.c.seq == agent_sessions.c.head_seq,
                _T.status.in_([_S.RUNNING.value, _S.WAITING_FOR_INPUT.value]),
            ),
        )
    )
    .where(_T.id.in_(bindparam("ids", expanding=True)))
)
_GLANCE = select(
    _E.c.id,
    _E.c.seq,
    _E.c.entry_type,
    _E.c.phase,
    func.substr(_E.c.content, 1, _MESSAGE).label("content"),
    func.substr(_E.c.raw_content, 1, _RAW).label("raw_content"),
    case((func.length(_E.c.tool_params) <= _RAW, _E.c.tool_params), else_=None).label("tool_params"),
    case((func.length(_E.c.meta) <= _RAW, _E.c.meta), else_=None).label("meta"),
    func.substr(_E.c.body, 1, 64).label("body"),
).where(_E.c.id.in_(bindparam("ids", expanding=True)))

_LISTED = select(agent_sessions, _T.invariant_name, _T.kind, _T.status.label("ticket_status")).select_from(
    agent_sessions.outerjoin(tickets, _T.id == agent_sessions.c.ticket_id)
)
_SESSIONS = (
    _LISTED.where(agent_sessions.c.id < bindparam("before", type_=Integer))
    .order_by(agent_sessions.c.id.desc())
    .limit(bindparam("most", type_=Integer))
)
_ONE_SESSION = _LISTED.where(agent_sessions.c.session_id == bindparam("session", type_=Text))
_HIGHEST = select(func.max(_T.id))
_COUNTS = select(_T.status, func.count().label("number")).group_by(_T.status)
_WORKERS = select(workers, db_now_ms().label("now")).order_by(workers.c.name, workers.c.started_at, workers.c.id)
_AT_WORK = select(_T.owner, _T.id).where(_T.status == _S.RUNNING.value, _T.owner.is_not(None)).order_by(_T.owner, _T.id)
