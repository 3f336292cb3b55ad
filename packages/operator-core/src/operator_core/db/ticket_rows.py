"""Rows of tickets: reading one, locking one, and the one way in which its state changes."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Integer, Text, bindparam, delete, insert, select, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.client import StoreClient
from operator_core.db.engine import Database
from operator_core.db.schema import agent_sessions, live_output, tickets
from operator_core.errors import NotFound
from operator_core.model.entry import stored_json
from operator_core.model.ticket import Reason, Ticket, TicketKind, TicketStatus, check_transition

__all__ = ["BY_ID", "INSERT", "ROW", "TicketRows", "as_json", "close_session_row", "ticket_of"]

_TIMES = ("first_seen_at", "last_seen_at", "resolved_at", "created_at", "updated_at", "watch_until")
_FIELDS = tuple(Ticket.__dataclass_fields__)
ROW = [tickets.c[name] for name in _FIELDS]

BY_ID = select(*ROW).where(tickets.c.id == bindparam("ticket", type_=Integer))
_LOCKED = BY_ID.with_for_update()
INSERT = insert(tickets).returning(*ROW)
_CLOSE_SESSION = (
    update(agent_sessions)
    .where(agent_sessions.c.session_id == bindparam("session"), agent_sessions.c.status == "running")
    .values(
        status=bindparam("new_status", type_=Text),
        ended_at=bindparam("now", type_=Text),
        outcome_summary=bindparam("summary", type_=Text),
    )
    .returning(agent_sessions.c.ticket_id, agent_sessions.c.head_seq, agent_sessions.c.head_hash)
)

# Only a worker that was killed while a command ran leaves some.
_NO_OUTPUT = delete(live_output).where(live_output.c.session_id == bindparam("session", type_=Text))


def ticket_of(row: Row[Any]) -> Ticket:
    """The ticket in a row that holds at least the ticket's columns."""
    values = {name: getattr(row, name) for name in _FIELDS}
    for name in _TIMES:
        values[name] = clock.parse_iso(values[name]) if values[name] else None
    for name in ("metric_snapshot", "check_spec"):
        values[name] = json.loads(values[name]) if values[name] else None
    values["labels"] = json.loads(values["labels"]) if values["labels"] else {}
    values["status"] = TicketStatus(values["status"])
    values["kind"] = TicketKind(values["kind"])
    return Ticket(**values)


class TicketRows(StoreClient):
    """What every way of changing a ticket shares; all of it inside of the caller's transaction."""

    async def _lock(self, c: AsyncConnection, ticket_id: int) -> Ticket:
        row = (await c.execute(_LOCKED, {"ticket": ticket_id})).first()
        if row is None:
            raise NotFound(f"There is no ticket #{ticket_id}; list them with `operator tickets list`.")
        return ticket_of(row)

    async def _set(self, c: AsyncConnection, ticket_id: int, **values: Any) -> Ticket:
        statement = (
            update(tickets).where(tickets.c.id == ticket_id).values(updated_at=clock.iso(), **values).returning(*ROW)
        )
        return ticket_of((await c.execute(statement)).one())

    async def _move(
        self, c: AsyncConnection, ticket: Ticket, new: TicketStatus, reason: Reason, actor: str, **values: Any
    ) -> Ticket:
        assert ticket.id is not None
        check_transition(ticket.id, ticket.status, new)
        if new is TicketStatus.OPEN:
            # A new attempt: the old session stays in the journal, linked by the ledger.
            values = {
                "session_id": None,
                "resolved_at": None,
                "watch_until": None,
                "cancel_requested": False,
                "cancel_now": False,
                "run_at": 0,
                **values,
            }
        moved = await self._set(c, ticket.id, status=new.value, reason=reason.value, **values)
        await ledger.append(
            self.database,
            c,
            "transition",
            ticket_id=ticket.id,
            session_id=ticket.session_id,
            old=ticket.status.value,
            new=new.value,
            reason=reason.value,
            actor=actor,
        )
        if new is TicketStatus.OPEN:
            await self.database.notify(c)
        return moved


async def close_session_row(database: Database, c: AsyncConnection, session_id: str, status: str, summary: str) -> bool:
    """Close a running session in the caller's transaction and anchor the head of its journal in the ledger.

    Returns:
        False when it was closed already.
    """
    clean = database.redactor.column(summary)
    now = clock.iso()
    row = (
        await c.execute(_CLOSE_SESSION, {"session": session_id, "new_status": status, "now": now, "summary": clean})
    ).first()
    if row is None:
        return False
    await c.execute(_NO_OUTPUT, {"session": session_id})
    await ledger.append(
        database,
        c,
        "session_closed",
        ticket_id=row.ticket_id,
        session_id=session_id,
        status=status,
        ended_at=now,
        summary=clean,
        head_seq=row.head_seq,
        head_hash=row.head_hash,
    )
    return True


def as_json(value: Any) -> str | None:
    """JSON for a column; None stays NULL."""
    return None if value is None else stored_json(value, str)
