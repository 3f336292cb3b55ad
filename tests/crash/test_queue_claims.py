"""Claims, leases and fences when workers die, wake up late, or do two things at the same moment."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from operator_core.db import ledger
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.entry_rows import COLUMNS, append_statement, entry_rows
from operator_core.db.integrity import verify
from operator_core.db.queue import Owned, WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.errors import Fenced, TransitionRefused
from operator_core.model.entry import Draft
from operator_core.model.ticket import Reason, TicketStatus
from tests.support.store import column_of, finish, start_work


async def expire(store_url: str, worker: str) -> None:
    """As if so much time had passed that the lease is over."""
    await column_of(store_url, "UPDATE workers SET lease_until = 1 WHERE id = $1", worker)


async def test_a_dead_workers_ticket_goes_to_another_with_its_session(store_url: str) -> None:
    async with Database.open(store_url) as database:
        dead = await start_work(database, entries=2, worker="dead")
        await dead.queue.register("heir", 60)
        assert await dead.queue.reap() == 0, "a living worker must not be reaped"
        await expire(store_url, "dead")
        assert await dead.queue.reap() == 1
        assert await dead.queue.reap() == 0
        (claim,) = await dead.queue.claim("heir")
        assert (claim.fence, claim.ticket.session_id) == (dead.claim.fence + 1, dead.session_id)
        journal = await dead.audit.journal(dead.session_id, claim)
        await journal.append(Draft("resumed", "I go on"))
        # The dead one was only asleep. Whatever it tries now, nothing of it is written.
        for attempt in (
            dead.journal.append(Draft("note", "late")),
            dead.journal.drain(),
            dead.queue.heartbeat("dead", 60),
            dead.queue.claim("dead"),
            dead.queue.release(dead.claim),
            finish(dead),
            dead.audit.create_session(dead.claim.ticket_id, claim=dead.claim),
        ):
            if attempt.__name__ == "claim":
                await dead.tickets.open_ticket("disk", "another one")
            with pytest.raises(Fenced):
                await attempt
        assert not await dead.queue.park(dead.claim, 0)
        assert [e.fence for e in await dead.audit.entries(dead.session_id)] == [1, 1, 2]
        assert (await dead.tickets.get_ticket(dead.claim.ticket_id)).owner == "heir"
        assert (await verify(database)).ok
        assert len(await dead.audit.sessions()) == 1, "a refused session must not be left behind"


async def test_the_database_refuses_a_claim_by_a_worker_that_is_gone(store_url: str) -> None:
    async with Database.open(store_url) as database:
        work = await start_work(database)
        ticket = await work.tickets.open_ticket("disk", "waits")
        with pytest.raises(Fenced, match="was declared dead because its lease ran out"):
            await work.queue.claim("ghost")
        with pytest.raises(IntegrityError, match=r"(?i)foreign key"):
            async with database.begin() as c:
                await c.execute(text("UPDATE tickets SET owner = 'ghost' WHERE status = 'open'"))
        assert (await work.tickets.get_ticket(ticket.id or 0)).status is TicketStatus.OPEN


async def test_a_late_write_of_a_zombie_comes_before_the_heirs_first_look(fresh_postgres: str) -> None:
    """The fence is checked, and held, by the write itself: a takeover waits until the write is visible."""
    async with Database.open(fresh_postgres) as database, Database.open(fresh_postgres) as other:
        zombie = await start_work(database, entries=1, worker="zombie")
        queue, audit = WorkQueue(other), AuditLogDB(other)
        await queue.register("heir", 60)
        await expire(fresh_postgres, "zombie")

        async def take_over() -> list[str]:
            await queue.reap()
            (claim,) = await queue.claim("heir")
            assert claim.ticket.session_id == zombie.session_id
            return [e.content for e in await audit.entries(zombie.session_id)]

        head = (await audit.entries(zombie.session_id))[-1].hash
        (row,) = entry_rows(
            zombie.audit.database.redactor, zombie.session_id, [Draft("note", "late")], 1, head, zombie.claim.fence
        )
        values = {f"{column}_0": row[column] for column in COLUMNS}
        async with database.begin() as c:
            done = await c.execute(
                append_statement(1, True),
                {"own_ticket": zombie.claim.ticket_id, "own_fence": zombie.claim.fence, **values},
            )
            assert len(done.all()) == 1, "it was still the owner when it wrote"
            heir = asyncio.create_task(take_over())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(heir), 0.5)
            assert not heir.done(), "taken over while the old owner's write was on its way"
        assert await heir == ["step 0", "late"]
        with pytest.raises(Fenced):
            await zombie.journal.append(Draft("note", "later still"))
        assert (await verify(database)).ok


async def test_cancel_beats_a_late_result(store_url: str) -> None:
    async with Database.open(store_url) as database:
        work = await start_work(database, entries=1)
        await work.tickets.cancel_ticket(work.claim.ticket_id)
        assert await work.queue.owned(work.claim.worker) == {(work.claim.ticket_id, 1): Owned(True, False, 1)}
        assert await finish(work) is TicketStatus.CANCELED
        ticket = await work.tickets.get_ticket(work.claim.ticket_id)
        assert (ticket.status, ticket.reason, ticket.resolved_at) == (TicketStatus.CANCELED, Reason.BY_HAND, None)
        assert (await work.audit.session(work.session_id)).status == "canceled"
        with pytest.raises(Fenced):
            await finish(work)


@pytest.mark.parametrize("rounds", [15])
async def test_cancel_and_result_at_the_same_moment_leave_one_of_two_stories(store_url: str, rounds: int) -> None:
    stories = set()
    async with Database.open(store_url) as database, Database.open(store_url) as other:
        people = TicketDB(other)
        for number in range(rounds):
            work = await start_work(database)

            async def cancel(ticket: int = work.claim.ticket_id, first: bool = number % 2 == 0) -> str:
                await asyncio.sleep(0 if first else 0.003)
                with contextlib.suppress(TransitionRefused):
                    return (await people.cancel_ticket(ticket)).status
                return "refused"

            canceled, real = await asyncio.gather(cancel(), finish(work))
            ticket = await work.tickets.get_ticket(work.claim.ticket_id)
            session = await work.audit.session(work.session_id)
            stories.add((canceled, str(real), str(ticket.status), session.status))
        assert (await verify(database)).ok
    assert stories <= {
        ("running", "canceled", "canceled", "canceled"),
        ("refused", "resolved", "resolved", "completed"),
    }


@pytest.mark.parametrize("rounds", [20])
async def test_a_message_at_the_moment_of_parking_is_not_slept_over(store_url: str, rounds: int) -> None:
    async with Database.open(store_url) as database, Database.open(store_url) as other:
        people = TicketDB(other)
        parked = 0
        for number in range(rounds):
            work = await start_work(database)
            _, seen = await work.journal.drain()

            async def answer(ticket: int = work.claim.ticket_id, wait: float = (number % 3) / 1000) -> None:
                await asyncio.sleep(wait)
                await people.send(ticket, "yes")

            _, asleep = await asyncio.gather(answer(), work.queue.park(work.claim, seen))
            ticket = await work.tickets.get_ticket(work.claim.ticket_id)
            assert ticket.status is (TicketStatus.OPEN if asleep else TicketStatus.RUNNING), "slept over a message"
            parked += asleep
            if asleep:
                (claim,) = await work.queue.claim(work.claim.worker)
                messages, _ = await (await work.audit.journal(work.session_id, claim)).drain()
            else:
                messages, _ = await work.journal.drain()
            assert [m.text for m in messages] == ["yes"]
            await work.queue.retire(work.claim.worker)
            await work.tickets.cancel_ticket(work.claim.ticket_id)
        assert (await verify(database)).ok


async def test_waiting_costs_no_worker_and_ends_by_itself_when_asked_to(store_url: str) -> None:
    async with Database.open(store_url) as database:
        work = await start_work(database)
        _, seen = await work.journal.drain()
        assert await work.queue.park(work.claim, seen, wait_s=0.05)
        await work.queue.retire(work.claim.worker)
        assert await column_of(store_url, "SELECT count(*) FROM workers") == [0]
        await asyncio.sleep(0.1)
        assert await work.queue.reap() == 1
        await work.queue.register("next", 60)
        (claim,) = await work.queue.claim("next")
        assert claim.ticket.session_id == work.session_id


async def test_workers_lost_without_progress_are_counted(store_url: str) -> None:
    async with Database.open(store_url) as database:
        work = await start_work(database, entries=1, worker="w1")
        counts = []
        claim = work.claim
        for number in range(2, 6):
            await expire(store_url, claim.worker)
            await work.queue.reap()
            await work.queue.register(f"w{number}", 60)
            (claim,) = await work.queue.claim(f"w{number}")
            counts.append(await work.queue.lost_in_a_row(claim))
        assert counts == [0, 1, 2, 3]
        await (await work.audit.journal(work.session_id, claim)).append(Draft("note", "progress"))
        await expire(store_url, claim.worker)
        await work.queue.reap()
        await work.queue.register("w6", 60)
        (claim,) = await work.queue.claim("w6")
        assert await work.queue.lost_in_a_row(claim) == 0


async def test_order_is_priority_then_age_and_later_is_later(store_url: str) -> None:
    async with Database.open(store_url) as database:
        tickets, queue = TicketDB(database), WorkQueue(database)
        await queue.register("w", 60)
        ids = [(await tickets.open_ticket("disk", "x", priority=p)).id for p in (0, 5, 0, 5)]
        claims = await queue.claim("w", 3)
        assert [c.ticket_id for c in claims] == [ids[1], ids[3], ids[0]]
        await queue.release(claims[0], delay_s=60)
        assert [c.ticket_id for c in await queue.claim("w", 3)] == [ids[2]]
        assert await queue.claim("w", 3) == []


async def test_the_reaper_and_an_answer_do_not_wait_for_each_other(fresh_postgres: str) -> None:
    """Both lock tickets before the ledger; the other way round it was a deadlock that the person was told about."""
    async with Database.open(fresh_postgres) as database, Database.open(fresh_postgres) as other:
        waiting = await start_work(database)
        assert await waiting.queue.park(waiting.claim, 0, wait_s=0.0)
        await waiting.queue.register("dead", 60)
        await waiting.tickets.open_ticket("other", "x")
        await waiting.queue.claim("dead")
        await expire(fresh_postgres, "dead")
        locked, go_on = asyncio.Event(), asyncio.Event()

        async def answer() -> None:
            async with other.begin() as c:
                await TicketDB(other)._lock(c, waiting.claim.ticket_id)
                locked.set()
                await go_on.wait()
                await ledger.append(other, c, "message", ticket_id=waiting.claim.ticket_id, actor="person")

        answering = asyncio.create_task(answer())
        await locked.wait()
        reaping = asyncio.create_task(waiting.queue.reap())
        await asyncio.sleep(0.3)
        go_on.set()
        assert await asyncio.gather(answering, reaping) == [None, 2]
