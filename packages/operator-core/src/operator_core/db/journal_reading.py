"""Journals as people read them: a window of entries with cut texts, and what a session is about, without its bodies.

Nothing here reads a whole journal: each statement walks an index for as many rows as it returns.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Integer, Text, and_, bindparam, case, func, literal_column, or_, select, union_all
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import Select

from operator_core.db.client import StoreClient
from operator_core.db.schema import agent_log_entries, agent_sessions
from operator_core.model.entry import EntryKind

__all__ = ["CONVERSATION", "MILESTONES", "JournalReading"]

CONVERSATION = (EntryKind.MESSAGE.value, EntryKind.TOOL_RESULT.value)
"""Kinds whose body is what went to the model or came from it, byte for byte."""
MILESTONES = tuple(
    kind.value
    for kind in (
        EntryKind.SESSION_START,
        EntryKind.PHASE_START,
        EntryKind.TASK,
        EntryKind.BASELINE,
        EntryKind.OUTCOME,
        EntryKind.SNAPSHOT,
        EntryKind.EVIDENCE,
        EntryKind.VERDICT,
        EntryKind.SUMMARY,
        EntryKind.DELIVERED,
        EntryKind.REPORT,
        EntryKind.SESSION_END,
    )
)
"""Kinds of which a session has few, and each phase at least one."""

_BODY = 200_000
"""A longer structured payload is given only on request."""
_MILESTONES = 2_000
_CALLS_LOOKED_AT = 5_000
_REPLIES_LOOKED_AT = 8
_E = agent_log_entries.c
_IN_SESSION = _E.session_id == bindparam("session", type_=Text)


class JournalReading(StoreClient):
    """Reads journals in parts."""

    async def entries(
        self,
        session_id: str,
        *,
        after: int,
        limit: int,
        kinds: Collection[str] | None,
        phase: str | None,
        max_chars: int,
        bodies: bool,
    ) -> tuple[Sequence[Row[Any]], int, str] | None:
        """Entries behind a sequence number, the highest one that there is, and the state of the session.

        The columns are those of the table, with ``raw_chars`` and ``params_chars`` (lengths before anything was cut).
        ``tool_params`` longer than ``max_chars`` are left out (:meth:`tool_params`).

        Returns:
            None: there is no such session.
        """
        statement = _window(bodies)
        if kinds:
            statement = _only(statement, tuple(sorted(set(kinds))))
        if phase is not None:
            statement = statement.where(_E.phase == phase)
        async with self.database.read() as c:
            # First, so that of a session that has ended nothing is missed.
            head = (await c.execute(_HEAD, {"session": session_id})).first()
            if head is None:
                return None
            values = {"session": session_id, "behind": after, "most": limit, "chars": max_chars}
            if phase is not None:
                values["behind"] = max(after, await self._before(c, session_id, phase))
            rows = () if kinds is not None and not kinds else (await c.execute(statement, values)).all()
        return rows, max(head.head_seq, rows[-1].seq if rows else -1), head.status

    async def _before(self, c: AsyncConnection, session_id: str, phase: str) -> int:
        """A place before a phase, as near to it as the milestones say."""
        before = -1
        for mile in await c.execute(_MILES, {"session": session_id, "behind": -1, "most": _MILESTONES}):
            if mile.phase == phase:
                return before
            before = int(mile.seq)
        return -1

    async def tool_params(self, entry_id: int) -> str | None:
        """The arguments of one call, however long."""
        rows = await self.database.fetch(select(_E.tool_params).where(_E.id == entry_id))
        return rows[0].tool_params if rows else None

    async def milestones(self, session_id: str) -> Sequence[Row[Any]]:
        """``seq``, ``entry_type``, ``phase`` and ``timestamp`` of the entries of :data:`MILESTONES`, in order.

        Behind the beginning of a session that had it, the first message to the model is among them: it begins a phase.
        """
        found = await self.database.fetch(_MILES, session=session_id, behind=-1, most=_MILESTONES)
        starts = [row.seq for row in found if row.entry_type == EntryKind.SESSION_START]
        messages = [
            row for seq in starts for row in await self.database.fetch(_MESSAGE, session=session_id, behind=seq)
        ]
        return sorted([*found, *messages], key=lambda row: row.seq)

    async def newest(self, session_id: str, *kinds: str, most: int = 1) -> Sequence[Row[Any]]:
        """The newest entries of some kinds, newest first, whole."""
        return await self.database.fetch(_newest(kinds), session=session_id, behind=-1, most=most)

    async def replies(self, session_id: str) -> Sequence[Row[Any]]:
        """``meta`` of the newest messages to and from the model, newest first."""
        return await self.database.fetch(_REPLIES, session=session_id)

    async def calls(self, session_id: str) -> int:
        """How many calls of tools the agent has made."""
        (row,) = await self.database.fetch(_COUNT, session=session_id, kind=EntryKind.TOOL_CALL.value)
        return int(row[0])

    async def at(self, session_id: str, seq: int) -> Row[Any] | None:
        """``phase``, ``entry_type`` and ``timestamp`` of one entry."""
        rows = await self.database.fetch(_AT, session=session_id, seq=seq)
        return rows[0] if rows else None

    async def first_written(self, session_id: str, tools: Collection[str]) -> int | None:
        """Sequence of the first result without an error of one of these tools, among the first calls."""
        rows = await self.database.fetch(_FIRST_WRITTEN, session=session_id, tools=sorted(tools))
        return rows[0].seq if rows else None

    async def ticks(self, session_id: str, kinds: Collection[str], *, limit: int) -> Sequence[Row[Any]]:
        """``seq``, ``entry_type``, ``phase`` and ``exit_code`` of entries of these kinds, and of all results with an
        exit code other than 0; in order.
        """
        some = await self.database.fetch(_ticks(tuple(sorted(kinds))), session=session_id, behind=-1, most=limit)
        failed = await self.database.fetch(_FAILED, session=session_id, most=limit)
        return sorted({row.seq: row for row in (*some, *failed)}.values(), key=lambda row: row.seq)[:limit]

    async def of_sessions(self, session_ids: Sequence[str], kind: str, *, most: int) -> list[Row[Any]]:
        """Entries of a kind in these sessions, whole: in the order of the sessions, of each the newest first."""
        found: list[Row[Any]] = []
        for session_id in session_ids:
            if len(found) < most:
                found += await self.newest(session_id, kind, most=most - len(found))
        return found

    async def judged_by(self, session_ids: Sequence[str]) -> dict[str, str]:
        """Those of these sessions that only judged the work of another one again, with that one."""
        if not session_ids:
            return {}
        rows = await self.database.fetch(_JUDGES, ids=list(session_ids))
        begun = {row.session_id: json.loads(row.body or "null") for row in rows}
        told = {name: body.get("judges") for name, body in begun.items() if isinstance(body, dict)}
        return {name: judges for name, judges in told.items() if isinstance(judges, str)}


@lru_cache(maxsize=64)
def _walk(kinds: tuple[str, ...], newest: bool = False) -> Select[Any]:
    """Sequence numbers of entries of these kinds, each kind by its own walk along the index.

    One condition for all kinds would walk the whole journal whenever few entries are of them.
    """
    order = _E.seq.desc() if newest else _E.seq
    most = bindparam("most", type_=Integer)
    base = select(_E.seq).where(_IN_SESSION, _E.seq > bindparam("behind", type_=Integer)).order_by(order).limit(most)
    walks = [base.where(_E.entry_type == kind).subquery(f"walk_{n}") for n, kind in enumerate(kinds)]
    if len(walks) == 1:
        return select(walks[0].c.seq)
    both = union_all(*(select(walk.c.seq) for walk in walks)).subquery("walks")
    return select(both.c.seq).order_by(both.c.seq.desc() if newest else both.c.seq).limit(most)


def _only(statement: Select[Any], kinds: tuple[str, ...], newest: bool = False) -> Select[Any]:
    """The statement for entries of these kinds only; of each kind the first ``most`` behind ``behind``."""
    walk = _walk(kinds, newest).subquery("walk")
    return statement.join(walk, walk.c.seq == _E.seq)


@lru_cache(maxsize=64)
def _newest(kinds: tuple[str, ...]) -> Select[Any]:
    return _only(select(agent_log_entries).where(_IN_SESSION), kinds, newest=True).order_by(_E.seq.desc())


@lru_cache(maxsize=64)
def _ticks(kinds: tuple[str, ...]) -> Select[Any]:
    return _only(_TICK.where(_IN_SESSION), kinds).order_by(_E.seq)


def _window(bodies: bool) -> Select[Any]:
    chars = bindparam("chars", type_=Integer)
    body: ColumnElement[Any] = _E.body
    if not bodies:
        body = case((and_(_E.entry_type.not_in(CONVERSATION), func.length(_E.body) <= _BODY), _E.body), else_=None)
    return (
        select(
            _E.id,
            _E.seq,
            _E.timestamp,
            _E.phase,
            _E.entry_type,
            func.substr(_E.content, 1, chars).label("content"),
            func.substr(_E.raw_content, 1, chars).label("raw_content"),
            func.length(_E.raw_content).label("raw_chars"),
            _E.tool_name,
            case((func.length(_E.tool_params) <= chars, _E.tool_params), else_=None).label("tool_params"),
            func.length(_E.tool_params).label("params_chars"),
            _E.tool_use_id,
            _E.exit_code,
            _E.fence,
            body.label("body"),
            case((func.length(_E.meta) <= _BODY, _E.meta), else_=None).label("meta"),
            _E.prev_hash,
            _E.hash,
        )
        .where(_IN_SESSION, _E.seq > bindparam("behind", type_=Integer))
        .order_by(_E.seq)
        .limit(bindparam("most", type_=Integer))
    )


_HEAD = select(agent_sessions.c.head_seq, agent_sessions.c.status).where(
    agent_sessions.c.session_id == bindparam("session", type_=Text)
)
_MESSAGE = (
    select(_E.seq, _E.entry_type, _E.phase, _E.timestamp)
    .where(_IN_SESSION, _E.entry_type == EntryKind.MESSAGE.value, _E.seq > bindparam("behind", type_=Integer))
    .order_by(_E.seq)
    .limit(1)
)
_REPLIES = (
    select(_E.meta)
    .where(_IN_SESSION, _E.entry_type == EntryKind.MESSAGE.value)
    .order_by(_E.seq.desc())
    .limit(_REPLIES_LOOKED_AT)
)
_COUNT = select(func.count()).select_from(agent_log_entries).where(_IN_SESSION, _E.entry_type == bindparam("kind"))
_AT = select(_E.phase, _E.entry_type, _E.timestamp).where(_IN_SESSION, _E.seq == bindparam("seq", type_=Integer))
# Other sessions begin with what they found before the work.
_JUDGES = select(_E.session_id, _E.body).where(
    _E.session_id.in_(bindparam("ids", expanding=True)),
    _E.seq == 0,
    _E.entry_type == EntryKind.SESSION_START.value,
)
_first_results = (
    select(_E.seq, _E.tool_name, _E.exit_code)
    .where(_IN_SESSION, _E.entry_type == EntryKind.TOOL_RESULT.value)
    .order_by(_E.seq)
    .limit(_CALLS_LOOKED_AT)
    .subquery()
)
_FIRST_WRITTEN = (
    select(_first_results.c.seq)
    .where(
        _first_results.c.tool_name.in_(bindparam("tools", expanding=True)),
        or_(_first_results.c.exit_code == 0, _first_results.c.exit_code.is_(None)),
    )
    .order_by(_first_results.c.seq)
    .limit(1)
)
_TICK = select(_E.seq, _E.entry_type, _E.phase, _E.exit_code)
# The number must stand in the statement: an index of some rows only is used where the condition can be seen.
_HAS_FAILED = _E.exit_code != literal_column("0")
_FAILED = _TICK.where(_IN_SESSION, _HAS_FAILED).order_by(_E.seq).limit(bindparam("most", type_=Integer))
_MILES = _only(select(_E.seq, _E.entry_type, _E.phase, _E.timestamp).where(_IN_SESSION), MILESTONES).order_by(_E.seq)
