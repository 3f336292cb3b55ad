"""``AuditLogDB``: the append-only, hash-chained journal of every session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Integer, Text, bindparam, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.blobs import Blobs
from operator_core.db.claims import Claim
from operator_core.db.entry_rows import append_statement, entry_of, entry_rows, loaded
from operator_core.db.journal import HEAD, STILL_OURS, Journal, refuse_closed
from operator_core.db.schema import agent_log_entries, agent_sessions, tickets
from operator_core.db.ticket_rows import close_session_row
from operator_core.errors import Fenced, NotFound, StoreError
from operator_core.model.entry import Draft, Entry

__all__ = ["SESSION_STATUSES", "AuditLogDB", "SessionInfo"]

SESSION_STATUSES = ("running", "completed", "failed", "escalated", "canceled")
_STATUS_ALIASES = {"resolved": "completed"}

_INSERT_SESSION = insert(agent_sessions)
_TIE = (
    update(tickets)
    .where(tickets.c.id == bindparam("ticket", type_=Integer))
    .values(session_id=bindparam("session", type_=Text))
)
_SESSION = select(agent_sessions).where(agent_sessions.c.session_id == bindparam("session"))
_SESSIONS = (
    select(agent_sessions, tickets.c.invariant_name, tickets.c.kind)
    .join(tickets, tickets.c.id == agent_sessions.c.ticket_id, isouter=True)
    .order_by(agent_sessions.c.id.desc())
    .limit(bindparam("limit", type_=Integer))
)
_ENTRIES = (
    select(agent_log_entries)
    .where(agent_log_entries.c.session_id == bindparam("session"), agent_log_entries.c.seq > bindparam("after"))
    .order_by(agent_log_entries.c.seq)
)
_SUMMARIZE = (
    update(agent_log_entries)
    .where(agent_log_entries.c.id == bindparam("entry", type_=Integer))
    .values(content=bindparam("summary", type_=Text))
    .returning(agent_log_entries.c.id)
)


class SessionInfo(NamedTuple):
    """One session as listed; times are ISO 8601 (UTC)."""

    session_id: str
    ticket_id: int | None
    status: str
    started_at: str
    ended_at: str | None
    outcome_summary: str | None
    invariant_name: str | None
    kind: str | None
    entries: int


class AuditLogDB(Blobs):
    """Sessions and their journal.

    Args:
        where: An open :class:`Database`, or a path or URL that this object then opens and closes itself::

            async with AuditLogDB("operator.db") as audit:
                session_id = await audit.create_session(ticket_id)
    """

    # ---- the seed's methods

    async def create_session(
        self,
        ticket_id: int | None,
        *,
        claim: Claim | None = None,
        wanted: str | None = None,
        within: Callable[[AsyncConnection, str], Awaitable[None]] | None = None,
    ) -> str:
        """Start a session with status ``running``.

        Args:
            claim: The claim it belongs to; the ticket then points at the session. A claim has one session: called
                again, because the answer of the first call was lost, this gives the same one.
            wanted: For an explorer (:mod:`operator_core.db.explorers`).
            within: Done in the same transaction, with the session's id; an error of it makes no session.

        Returns:
            The session's id, ``{timestamp}-{uuid8}``.

        Raises:
            Fenced: The claim is no longer ours.
        """
        session_id = clock.new_session_id()
        now = clock.iso()
        row = {"session_id": session_id, "ticket_id": ticket_id, "status": "running", "started_at": now}
        row["wanted"] = wanted
        async with self.database.begin() as c:
            if claim is not None:
                ours = {"ticket": ticket_id, "own_fence": claim.fence}
                found = (await c.execute(STILL_OURS.with_for_update(), ours)).first()
                if found is None:
                    raise Fenced
                if found.session_id is not None:
                    return str(found.session_id)
                await c.execute(_TIE, {"ticket": ticket_id, "session": session_id})
            await c.execute(_INSERT_SESSION, {**row, "created_at": now})
            if within is not None:
                await within(c, session_id)
            await ledger.append(
                self.database,
                c,
                "session_opened",
                ticket_id=ticket_id,
                session_id=session_id,
                started_at=now,
                fence=claim.fence if claim else None,
            )
        return session_id

    async def log_entry(
        self,
        session_id: str,
        entry_type: str,
        content: str,
        raw_content: str | None = None,
        tool_name: str | None = None,
        tool_params: dict[str, Any] | None = None,
        exit_code: int | None = None,
    ) -> int:
        """Append one entry outside any claim (a standalone audit); returns the row's id.

        Raises:
            NotFound: There is no such session.
            TransitionRefused: The session is closed.
        """
        draft = Draft(entry_type, content, raw_content, tool_name, tool_params, exit_code)
        async with self.database.begin() as c:
            head = (await c.execute(HEAD.with_for_update(), {"session": session_id})).first()
            if head is None:
                raise NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")
            refuse_closed(session_id, head.status)
            row = entry_rows(self.database.redactor, session_id, [draft], head.head_seq + 1, head.head_hash, None)[0]
            result = await c.execute(append_statement(1, False).returning(agent_log_entries.c.id), row)
            return int(result.scalar_one())

    async def complete_session(self, session_id: str, status: str, outcome_summary: str) -> None:
        """Close a session; closing it twice changes nothing.

        Args:
            status: One of :data:`SESSION_STATUSES`; the seed's ``resolved`` is stored as ``completed``.
        """
        status = _STATUS_ALIASES.get(status, status)
        if status not in SESSION_STATUSES:
            raise StoreError(f"{status!r} is no session status; use one of {', '.join(SESSION_STATUSES)}.")
        async with self.database.begin() as c:
            closed = await close_session_row(self.database, c, session_id, status, outcome_summary)
            if not closed and (await c.execute(_SESSION, {"session": session_id})).first() is None:
                raise NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")

    async def get_session_entries(self, session_id: str) -> list[dict[str, Any]]:
        """All rows of a session as dictionaries of column values, in the order in which things happened."""
        rows = await self.database.fetch(_ENTRIES, session=session_id, after=-1)
        return [{**row._mapping, "tool_params": loaded(row.tool_params)} for row in rows]

    # ---- reading

    async def get_entries_by_timerange(self, start: datetime, end: datetime) -> list[dict[str, Any]]:
        """Entries of all sessions with ``start <= timestamp < end``, oldest first."""
        rows = await self.database.fetch(
            select(agent_log_entries)
            .where(agent_log_entries.c.timestamp >= clock.iso(start), agent_log_entries.c.timestamp < clock.iso(end))
            .order_by(agent_log_entries.c.timestamp, agent_log_entries.c.id)
        )
        return [{**row._mapping, "tool_params": loaded(row.tool_params)} for row in rows]

    async def entries(
        self, session_id: str, *, after: int = -1, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The journal of a session from the entry behind ``after`` (a sequence number) on.

        Args:
            kinds: Only entries of these kinds; None: all.
            limit: At most so many; None: all.
        """
        statement = _ENTRIES if kinds is None else _ENTRIES.where(agent_log_entries.c.entry_type.in_(kinds))
        if limit is not None:
            statement = statement.limit(limit)
        return [entry_of(r) for r in await self.database.fetch(statement, session=session_id, after=after)]

    async def session(self, session_id: str) -> SessionInfo:
        """One session.

        Raises:
            NotFound: There is none with that id.
        """
        found = await self.sessions(limit=1, session_id=session_id)
        if not found:
            raise NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")
        return found[0]

    async def sessions(
        self, *, limit: int = 20, ticket_id: int | None = None, session_id: str | None = None
    ) -> list[SessionInfo]:
        """Sessions, newest first."""
        statement = _SESSIONS
        if ticket_id is not None:
            statement = statement.where(agent_sessions.c.ticket_id == ticket_id)
        if session_id is not None:
            statement = statement.where(agent_sessions.c.session_id == session_id)
        return [
            SessionInfo(
                r.session_id,
                r.ticket_id,
                r.status,
                r.started_at,
                r.ended_at,
                r.outcome_summary,
                r.invariant_name,
                r.kind,
                r.head_seq + 1,
            )
            for r in await self.database.fetch(statement, limit=limit)
        ]

    # ---- writing

    async def journal(self, session_id: str, claim: Claim | None = None) -> Journal:
        """The writer of a session's journal; there is one for each claim.

        Raises:
            NotFound: There is no such session.
        """
        rows = await self.database.fetch(HEAD, session=session_id)
        if not rows:
            raise NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")
        return Journal(self, session_id, claim, rows[0].head_seq + 1, rows[0].head_hash)

    async def update_summary(self, entry_id: int, summary: str) -> None:
        """Replace the human-readable summary of an entry; it is the only column that may change."""
        await self.database.one(_SUMMARIZE, entry=entry_id, summary=self.database.redactor.column(summary))
