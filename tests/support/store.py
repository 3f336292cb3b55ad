"""Short ways to a ticket that is being worked on, for tests of the store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import make_url

from operator_core import clock
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.journal import Journal
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft
from operator_core.model.ticket import InvariantViolation, Reason, TicketStatus

__all__ = ["APPEND_ONLY_TRIGGERS", "Work", "column_of", "finish", "start_work", "violation"]

APPEND_ONLY_TRIGGERS = (
    "agent_log_entries_anchor",
    "agent_log_entries_frozen",
    "agent_log_entries_kept",
    "ledger_anchor",
    "ledger_frozen",
    "ledger_kept",
)


class Work(NamedTuple):
    """A claimed ticket with a session and its journal."""

    tickets: TicketDB
    audit: AuditLogDB
    queue: WorkQueue
    claim: Claim
    session_id: str
    journal: Journal


def violation(name: str = "disk", *, ago_s: float = 0.0, **values: Any) -> InvariantViolation:
    """A violation whose episode began ``ago_s`` seconds ago."""
    now = clock.now()
    fields = {"message": f"{name} is wrong", "first_seen": now - timedelta(seconds=ago_s), "last_seen": now, **values}
    return InvariantViolation(name, **fields)


async def start_work(database: Database, *, entries: int = 0, worker: str | None = None, lease_s: float = 60.0) -> Work:
    """Open a ticket by hand, claim it, start a session and write that many entries."""
    tickets, audit, queue = TicketDB(database), AuditLogDB(database), WorkQueue(database)
    worker = worker or clock.new_id()
    await queue.register(worker, lease_s)
    await tickets.open_ticket("disk", "the disk is full")
    (claim,) = await queue.claim(worker)
    session_id = await audit.create_session(claim.ticket_id, claim=claim)
    journal = await audit.journal(session_id, claim)
    for n in range(entries):
        body = {"role": "assistant", "content": [{"type": "text", "text": f"step {n} ✓"}]}
        await journal.append(
            Draft("reasoning", f"step {n}", f"step {n} in full", "shell", {"n": n}, n % 2, f"t{n}", "worker_1", body)
        )
    return Work(tickets, audit, queue, claim, session_id, journal)


async def finish(work: Work, status: TicketStatus = TicketStatus.RESOLVED, *, watch_s: float = 0.0) -> TicketStatus:
    """End the work, with the reason and the session status that go with it."""
    reason = Reason.VERIFIED if status is TicketStatus.RESOLVED else Reason.GAVE_UP
    ended = "completed" if status is TicketStatus.RESOLVED else "escalated"
    return await work.queue.finish(
        work.claim,
        status,
        reason,
        diagnosis="found",
        session_id=work.session_id,
        session_status=ended,
        watch_s=watch_s,
    )


async def column_of(url: str, statement: str, *values: Any) -> list[Any]:
    """The first column of a query, asked beside the product: with the driver alone. ``$1`` and so on are parameters."""
    if "://" not in url:
        with closing(sqlite3.connect(Path(url))) as connection:
            rows = [row[0] for row in connection.execute(statement.replace("$", "?"), values)]
            connection.commit()
            return rows
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    other = await asyncpg.connect(address)
    try:
        return [row[0] for row in await other.fetch(statement, *values)]
    finally:
        await other.close()
