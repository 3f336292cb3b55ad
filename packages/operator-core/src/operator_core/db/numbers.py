"""Numbers about the whole store, for metrics and health: a handful of counts in one look."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import and_, func, select

from operator_core.db.approvals import Approvals
from operator_core.db.engine import Database
from operator_core.db.schema import agent_sessions, db_now_ms, outbox, tickets, workers
from operator_core.model.ticket import TicketStatus

__all__ = ["Numbers", "numbers"]

_NOW = db_now_ms()
_TICKETS = select(tickets.c.status, func.count().label("n")).group_by(tickets.c.status)
_READY = and_(tickets.c.status == TicketStatus.OPEN.value, tickets.c.held.is_(False))
_OTHERS = select(
    select(func.count()).select_from(agent_sessions).where(agent_sessions.c.status == "running").scalar_subquery(),
    select(func.count()).select_from(workers).where(workers.c.lease_until >= _NOW).scalar_subquery(),
    select(func.count()).select_from(outbox).where(outbox.c.ended_at.is_(None)).scalar_subquery(),
    select(func.count()).select_from(tickets).where(_READY, tickets.c.run_at <= _NOW).scalar_subquery(),
)


class Numbers(NamedTuple):
    """Counts.

    Attributes:
        tickets: By state; a state without tickets is left out.
        sessions: That have not ended.
        workers: That live.
        outbox: Letters that have not gone out.
        approvals: Calls that wait for a person.
        ready: Tickets that a worker could take now.
    """

    tickets: dict[str, int]
    sessions: int
    workers: int
    outbox: int
    approvals: int
    ready: int


async def numbers(database: Database) -> Numbers:
    """Count now.

    Raises:
        StoreError: The store cannot be read.
    """
    async with database.read() as connection:
        states = {row.status: row.n for row in await connection.execute(_TICKETS)}
        sessions, alive, letters, ready = (await connection.execute(_OTHERS)).one()
    return Numbers(states, sessions, alive, letters, await Approvals(database).count_pending(), ready)
