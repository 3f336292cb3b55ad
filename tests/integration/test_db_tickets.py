"""What becomes of a violation that is reported again: merged, reopened, suppressed, or a new ticket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from operator_core import clock
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.ledger import ticket_history
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, TransitionRefused
from operator_core.model.task import MAX_PROMPT, TaskSpec
from operator_core.model.ticket import InvariantViolation, Reason, Ticket, TicketStatus
from tests.support.store import column_of, start_work


@pytest.fixture
async def db(store_url: str) -> AsyncIterator[TicketDB]:
    async with Database.open(store_url) as database:
        yield TicketDB(database)


def seen(*, first: datetime | None = None, severity: str = "warning") -> InvariantViolation:
    now = clock.now()
    return InvariantViolation("disk", "it is full", first or now, now, severity=severity)


async def end(db: TicketDB, status: TicketStatus, reason: Reason, watch_s: float = 60.0) -> tuple[Ticket, str]:
    """A worker takes the ticket and ends it; the ticket and its session."""
    queue, audit = WorkQueue(db.database), AuditLogDB(db.database)
    worker = clock.new_id()
    await queue.register(worker, 60)
    (claim,) = await queue.claim(worker)
    session = await audit.create_session(claim.ticket_id, claim=claim)
    await queue.finish(
        claim, status, reason, diagnosis="d", session_id=session, session_status="completed", watch_s=watch_s
    )
    return await db.get_ticket(claim.ticket_id), session


async def test_a_recurrence_in_the_watch_period_reopens_and_names_the_session(db: TicketDB) -> None:
    await db.create_or_update_ticket(seen())
    done, session = await end(db, TicketStatus.RESOLVED, Reason.VERIFIED)
    again = await db.create_or_update_ticket(seen())
    assert (again.id, again.status, again.reason) == (done.id, TicketStatus.OPEN, "recurred")
    assert (again.reopened_from, again.reopen_count, again.session_id) == (session, 1, None)
    last = (await ticket_history(db.database, done.id or 0))[-1]
    assert (last.kind, last.session_id, last.body["reason"]) == ("transition", session, "recurred")


async def test_a_recurrence_after_it_is_a_new_incident(db: TicketDB) -> None:
    await db.create_or_update_ticket(seen())
    done, _ = await end(db, TicketStatus.RESOLVED, Reason.VERIFIED, watch_s=0)
    again = await db.create_or_update_ticket(seen())
    assert again.id != done.id
    assert (await db.get_ticket(done.id or 0)).status is TicketStatus.RESOLVED


async def test_an_escalation_is_sticky_until_the_violation_is_another_one(db: TicketDB) -> None:
    await db.create_or_update_ticket(seen())
    done, _ = await end(db, TicketStatus.ESCALATED, Reason.GAVE_UP)
    same = await db.create_or_update_ticket(seen())
    assert (same.id, same.status, same.diagnosis) == (done.id, TicketStatus.ESCALATED, "d")
    assert same.occurrence_count == 2
    worse = await db.create_or_update_ticket(seen(severity="critical"))
    assert (worse.id, worse.status, worse.reason) == (done.id, TicketStatus.OPEN, "new_fingerprint")


@pytest.mark.parametrize("word", ["cancel", "resolve"])
async def test_what_a_person_decided_stands_for_this_episode(db: TicketDB, word: str) -> None:
    began = clock.now()
    ticket = await db.create_or_update_ticket(seen(first=began))
    assert ticket.id is not None
    closed = await (db.cancel_ticket(ticket.id) if word == "cancel" else db.resolve_ticket(ticket.id))
    again = await db.create_or_update_ticket(seen(first=began))
    assert (again.id, again.status) == (ticket.id, closed.status)
    later = await db.create_or_update_ticket(seen(first=clock.now() + timedelta(seconds=1)))
    assert later.status is TicketStatus.OPEN
    assert len(await db.list_tickets("open")) == 1


async def test_only_what_nobody_has_touched_is_cleared(db: TicketDB) -> None:
    names = ("gone", "held", "unknown", "violated", "elsewhere", "worked")
    tickets: dict[str, Ticket] = {}
    now = clock.now()
    for name in names:
        tickets[name] = await db.create_or_update_ticket(InvariantViolation(name, "m", now, now))
    await db.hold_ticket(tickets["held"].id or 0)
    queue, worker = WorkQueue(db.database), clock.new_id()
    await queue.register(worker, 60)
    for claim in await queue.claim(worker, n=10):
        if claim.ticket.invariant_name == "worked":
            await AuditLogDB(db.database).create_session(claim.ticket_id, claim=claim)
        await queue.release(claim)
    count = await db.auto_resolve_cleared({"violated"}, unknown_keys={"unknown"}, only_keys=set(names) - {"elsewhere"})
    assert count == 1
    states = {t.invariant_name: (t.status.value, t.reason) for t in await db.list_tickets()}
    assert states.pop("gone") == ("canceled", "cleared")
    assert {status for status, _ in states.values()} == {"open"}


async def test_a_ticket_that_cleared_by_itself_comes_back_as_a_new_one(db: TicketDB) -> None:
    first = await db.create_or_update_ticket(seen())
    assert await db.auto_resolve_cleared(set()) == 1
    again = await db.create_or_update_ticket(seen(first=first.first_seen_at))
    assert (again.id != first.id, again.status) == (True, TicketStatus.OPEN)


# ---- what people say to a session


async def test_whom_one_can_answer_and_whom_one_can_steer(db: TicketDB, store_url: str) -> None:
    """One who waits is answered, one who works is told; and where nobody would read it, it is not taken."""
    fresh = await db.submit_task(TaskSpec(name="n", prompt="p"))
    await db.cancel_ticket((await db.submit_task(TaskSpec(name="n", prompt="p"))).id or 0)
    await db.hold_ticket(fresh.id or 0)
    running = await start_work(db.database)
    waiting = await start_work(db.database)
    assert await waiting.queue.park(waiting.claim, 0)
    given_back = await start_work(db.database)
    await given_back.queue.release(given_back.claim)
    await db.hold_ticket(given_back.claim.ticket_id)
    escalated = await start_work(db.database)
    await escalated.queue.finish(
        escalated.claim,
        TicketStatus.ESCALATED,
        Reason.GAVE_UP,
        diagnosis="d",
        session_id=escalated.session_id,
        session_status="escalated",
    )
    refusals = [
        (fresh.id, "reply", "Nobody has begun"),
        (fresh.id, "steer", "Nobody has begun"),
        ((fresh.id or 0) + 1, "reply", "`operator tickets reopen 2`"),
        ((fresh.id or 0) + 1, "steer", "`operator tickets reopen 2`"),
        (escalated.claim.ticket_id, "reply", "is escalated, so nobody reads"),
        (escalated.claim.ticket_id, "steer", "is escalated, so nobody reads"),
        (running.claim.ticket_id, "reply", f'`operator steer {running.claim.ticket_id} "…"`'),
        (given_back.claim.ticket_id, "reply", f'`operator steer {given_back.claim.ticket_id} "…"`'),
        (waiting.claim.ticket_id, "steer", f'`operator reply {waiting.claim.ticket_id} "…"`'),
    ]
    for number, word, sentence in refusals:
        with pytest.raises(TransitionRefused) as caught:
            await getattr(db, word)(number, "hello")
        assert sentence in str(caught.value)
    for words in (" \n", "x" * (MAX_PROMPT + 1)):
        with pytest.raises(ConfigError):
            await db.steer(running.claim.ticket_id, words)
    assert await column_of(store_url, "SELECT count(*) FROM inbox") == [0], "what is refused is not kept"

    assert await db.steer(running.claim.ticket_id, "hurry") is TicketStatus.RUNNING
    assert await db.steer(given_back.claim.ticket_id, "look twice") is TicketStatus.OPEN
    assert await db.reply(waiting.claim.ticket_id, "port 80") is TicketStatus.OPEN
    messages, _ = await running.journal.drain()
    assert [m.text for m in messages] == ["hurry"]
    queue = running.queue
    (claim,) = await queue.claim(running.claim.worker)
    assert (claim.ticket_id, claim.ticket.session_id) == (waiting.claim.ticket_id, waiting.session_id)
    messages, _ = await (await running.audit.journal(waiting.session_id, claim)).drain()
    assert [m.text for m in messages] == ["port 80"]


async def test_a_ticket_that_waits_is_canceled_at_once_with_its_session(db: TicketDB) -> None:
    work = await start_work(db.database)
    assert await work.queue.park(work.claim, 0)
    ticket = await db.cancel_ticket(work.claim.ticket_id)
    assert (ticket.status, (await work.audit.session(work.session_id)).status) == ("canceled", "canceled")
    with pytest.raises(TransitionRefused):
        await db.reply(work.claim.ticket_id, "too late")


async def test_a_task_that_is_reopened_is_a_new_attempt(db: TicketDB) -> None:
    task = await db.submit_task(TaskSpec(name="n", prompt="p"), pinned_to="alpha")
    queue, audit = WorkQueue(db.database), AuditLogDB(db.database)
    await queue.register("w", 60, "alpha")
    sessions = []
    for _ in range(2):
        (claim,) = await queue.claim("w", 1, "alpha")
        sessions.append(await audit.create_session(claim.ticket_id, claim=claim))
        await db.cancel_ticket(task.id or 0, now=True)
        await queue.release(claim)
        again = await db.reopen_ticket(task.id or 0)
        assert (again.status, again.session_id, again.cancel_requested, again.cancel_now) == (
            "open",
            None,
            False,
            False,
        )
        assert (again.pinned_to, again.check_hash) == ("alpha", task.check_hash)
    assert len(set(sessions)) == 2
    assert {s.status for s in await audit.sessions(ticket_id=task.id)} == {"canceled"}
    assert await db.auto_resolve_cleared(set()) == 0, "a monitor says nothing about tasks"
