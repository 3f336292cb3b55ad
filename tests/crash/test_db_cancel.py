"""A caller that is cancelled in the middle of a transaction leaves no lock and nothing half-done behind."""

from __future__ import annotations

import asyncio
import random

import pytest
from sqlalchemy import select

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.queue import WorkQueue
from operator_core.db.schema import agent_sessions
from operator_core.db.tickets import TicketDB


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_session_whose_creator_is_cancelled_exists_once_or_not_at_all(store_url: str, seed: int) -> None:
    dice = random.Random(seed)
    async with Database.open(store_url) as database:
        audit, queue, tickets = AuditLogDB(database), WorkQueue(database), TicketDB(database)
        await queue.register("worker", 600)
        for _ in range(60):
            number = (await tickets.open_ticket("disk", "full")).id
            assert number is not None
            (claim,) = await queue.claim("worker")
            creating = asyncio.create_task(audit.create_session(number, claim=claim))
            await asyncio.sleep(dice.random() * 0.006)
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
            async with asyncio.timeout(10):  # SQLite would wait for a lock that is never released
                session = await audit.create_session(number, claim=claim)
            assert [s.session_id for s in await audit.sessions(ticket_id=number)] == [session]
            await tickets.cancel_ticket(number)
            await queue.release(claim)
        states = await database.fetch(select(agent_sessions.c.status).distinct())
        assert [row.status for row in states] == ["canceled"]
        assert (await verify(database)).ok
