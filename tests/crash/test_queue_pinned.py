"""Tickets that are pinned to a worker: it alone gets them, and while it is busy they wait without going back and forth.

Rows B-006 and B-013, and defect D-08: the original moved such a row between two states every ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.ledger import ticket_history
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.errors import Fenced, TransitionRefused
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from tests.support.store import column_of

EXAMPLES = int(os.environ.get("OPERATOR_MODEL_EXAMPLES", "150")) // 10
TASK = TaskSpec(name="count", prompt="Count the files.")


async def pinned(database: Database, name: str | None, n: int = 1, **values: Any) -> list[int]:
    tickets = TicketDB(database)
    return [(await tickets.submit_task(TASK, pinned_to=name, **values)).id or 0 for _ in range(n)]


async def states(database: Database) -> dict[int, str]:
    return {t.id or 0: t.status.value for t in await TicketDB(database).list_tickets()}


async def end(queue: WorkQueue, claim: Claim) -> None:
    await queue.finish(
        claim, TicketStatus.RESOLVED, Reason.VERIFIED, diagnosis="d", session_id=None, session_status="completed"
    )


async def test_only_the_worker_of_that_name_gets_it(store_url: str) -> None:
    async with Database.open(store_url) as database:
        queue = WorkQueue(database)
        for worker, name in (("w1", "alpha"), ("w2", "beta"), ("w3", "")):
            await queue.register(worker, 60, name)
        (ticket,) = await pinned(database, "alpha")
        (free,) = await pinned(database, None)
        assert [(w.id, w.name) for w in await queue.living()] == [("w1", "alpha"), ("w2", "beta"), ("w3", "")]
        assert [c.ticket_id for c in await queue.claim("w2", 5, "beta")] == [free]
        assert await queue.claim("w3", 5) == []
        assert [c.ticket_id for c in await queue.claim("w1", 5, "alpha")] == [ticket]
        await column_of(store_url, "UPDATE workers SET lease_until = 1 WHERE id = $1", "w1")
        assert [w.id for w in await queue.living()] == ["w2", "w3"]


async def test_exactly_the_oldest_becomes_open_and_nothing_while_busy(store_url: str) -> None:
    async with Database.open(store_url) as database:
        queue, tickets = WorkQueue(database), TicketDB(database)
        await queue.register("w", 60, "alpha")
        running, first, second, third = await pinned(database, "alpha", 4)
        (other,) = await pinned(database, "beta")
        (claim,) = await queue.claim("w", 1, "alpha")
        assert claim.ticket_id == running
        assert await queue.queue_busy("alpha") == 3
        assert await queue.queue_busy("alpha") == 0
        assert await states(database) == {running: "running", first: "queued", second: "queued", third: "queued",
                                          other: "open"}  # fmt: skip
        assert (await tickets.get_ticket(first)).reason == "queued"
        assert await queue.claim("w", 5, "alpha") == [], "what is queued is not claimed"
        assert await queue.promote("alpha", 0) == 0, "there is no free slot"
        await end(queue, claim)
        await tickets.hold_ticket(first)
        await tickets.cancel_ticket(third)
        assert await queue.promote("alpha") == 1
        assert await queue.promote("alpha") == 0, "one slot is filled by the one that was promoted already"
        assert await states(database) | {running: "?"} == {running: "?", first: "queued", second: "open",
                                                           third: "canceled", other: "open"}  # fmt: skip
        assert (await tickets.get_ticket(second)).reason == "promoted"
        assert await queue.queue_busy("alpha") == 0, "what was promoted is not queued again"
        assert [c.ticket_id for c in await queue.claim("w", 5, "alpha")] == [second]
        assert await queue.promote("alpha", 5) == 0
        await tickets.unhold_ticket(first)
        assert await queue.promote("alpha", 5) == 1
        assert (await verify(database)).ok


async def test_a_queued_ticket_keeps_its_session_and_ends_it_when_canceled(store_url: str) -> None:
    async with Database.open(store_url) as database:
        queue, tickets, audit = WorkQueue(database), TicketDB(database), AuditLogDB(database)
        await queue.register("w", 60, "alpha")
        (ticket,) = await pinned(database, "alpha")
        (claim,) = await queue.claim("w", 1, "alpha")
        session = await audit.create_session(ticket, claim=claim)
        assert await queue.park(claim, claim.wake)
        await tickets.reply(ticket, "yes")
        assert await queue.queue_busy("alpha") == 1
        assert await tickets.steer(ticket, "and hurry") is TicketStatus.QUEUED
        assert await queue.promote("alpha") == 1
        (claim,) = await queue.claim("w", 1, "alpha")
        assert claim.ticket.session_id == session
        messages, _ = await (await audit.journal(session, claim)).drain()
        assert [m.text for m in messages] == ["yes", "and hurry"]
        await queue.release(claim)
        assert await queue.queue_busy("alpha") == 1
        await tickets.cancel_ticket(ticket)
        assert (await audit.session(session)).status == "canceled"
        assert await queue.promote("alpha") == 0


# ---- never back and forth


def back_and_forth(history: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """How often a ticket was queued and promoted before each claim (and after the last one)."""
    counts = [(0, 0)]
    for move in history:
        queued, promoted = counts[-1]
        if move["new"] == "queued":
            counts[-1] = (queued + 1, promoted)
        elif move["old"] == "queued" and move["new"] == "open":
            counts[-1] = (queued, promoted + 1)
        elif move["new"] == "running":
            counts.append((0, 0))
    return counts


async def histories(database: Database) -> dict[int, list[dict[str, Any]]]:
    found = {}
    for ticket in await states(database):
        rows = await ticket_history(database, ticket)
        found[ticket] = [row.body for row in rows if row.kind == "transition"]
    return found


WORKERS = (("a1", "alpha", 1), ("a2", "alpha", 2), ("b1", "beta", 1))
STEP = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(["alpha", "alpha", "beta", None]), st.integers(0, 1)),
    st.tuples(st.sampled_from(["look", "look", "end", "release"]), st.integers(0, 2), st.just(0)),
    st.tuples(st.sampled_from(["hold", "unhold", "cancel"]), st.integers(0, 9), st.just(0)),
    st.tuples(st.sampled_from(["queue_busy", "promote"]), st.sampled_from(["alpha", "beta"]), st.integers(1, 3)),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "operator.db"

    async def make() -> None:
        async with Database.open(path):
            pass

    asyncio.run(make())
    return path


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate])
@given(steps=st.lists(STEP, min_size=15, max_size=40))
def test_no_ticket_goes_back_and_forth(template: Path, tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    """Whatever happens in whatever order, and even if somebody calls at the wrong moment."""
    path = tmp_path_factory.mktemp("play") / "operator.db"
    shutil.copy(template, path)
    asyncio.run(play(path, steps))
    shutil.rmtree(path.parent)


async def play(path: Path, steps: list[tuple[str, Any, int]]) -> None:
    async with Database.open(path) as database:
        queue, tickets = WorkQueue(database), TicketDB(database)
        jobs: dict[str, list[Claim]] = {}
        for worker, name, _ in WORKERS:
            await queue.register(worker, 600, name)
            jobs[worker] = []

        async def look(worker: str, name: str, slots: int) -> None:
            """As the worker does it."""
            for _ in range(2):
                free = slots - len(jobs[worker])
                if free:
                    jobs[worker] += await queue.claim(worker, free, name)
                    await queue.promote(name, slots - len(jobs[worker]))
            if len(jobs[worker]) == slots:
                await queue.queue_busy(name)

        for what, who, n in steps:
            known = list(await states(database))
            if what == "submit":
                await pinned(database, who, priority=n)
            elif what == "look":
                await look(*WORKERS[who])
            elif what in ("end", "release"):
                if jobs[WORKERS[who][0]]:
                    claim = jobs[WORKERS[who][0]].pop()
                    await (end(queue, claim) if what == "end" else queue.release(claim))
            elif what in ("hold", "unhold", "cancel"):
                if known:
                    change = getattr(tickets, f"{what}_ticket")
                    with contextlib.suppress(TransitionRefused):
                        await change(known[who % len(known)])
            elif what == "queue_busy":
                await queue.queue_busy(who)
            else:
                await queue.promote(who, n)
        for ticket, history in (await histories(database)).items():
            assert all(q <= 1 and p <= q for q, p in back_and_forth(history)), (ticket, history)
        # And nothing waits for ever: when the workers become free, all of it is done.
        for ticket in await tickets.list_tickets():
            if ticket.held and ticket.status != "canceled":
                await tickets.unhold_ticket(ticket.id or 0)
        for _ in range(len(steps) + 2):
            for worker, name, slots in WORKERS:
                while jobs[worker]:
                    await end(queue, jobs[worker].pop())
                await look(worker, name, slots)
            if set((await states(database)).values()) <= {"resolved", "canceled"}:
                break
        assert set((await states(database)).values()) <= {"resolved", "canceled"}
        assert (await verify(database)).ok


# ---- real processes

WORKER = """
import asyncio, random, sys
from operator_core.db.engine import Database
from operator_core.db.queue import WorkQueue
from operator_core.model.ticket import Reason, TicketStatus

async def main(url, me, name, slots):
    dice = random.Random(me)
    async with Database.open(url) as database:
        queue = WorkQueue(database)
        await queue.register(me, 600, name)
        print("ready", flush=True)
        # Whoever leaves while tickets still come, leaves those behind that are pinned to it.
        all_there = asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
        jobs = []
        idle = 0
        while idle < 15 or not all_there.done():
            if len(jobs) < slots:
                claims = await queue.claim(me, slots - len(jobs), name)
                jobs += claims
                idle = 0 if claims or await queue.promote(name, slots - len(jobs)) else idle + 1
            if len(jobs) == slots:
                await queue.queue_busy(name)
            if jobs and dice.random() < 0.5:
                claim = jobs.pop(0)
                await queue.finish(claim, TicketStatus.RESOLVED, Reason.VERIFIED, diagnosis="d", session_id=None,
                                   session_status="completed")
                print(claim.ticket_id, await queue_is_ours(queue, claim), flush=True)
            await asyncio.sleep(0.01)

async def queue_is_ours(queue, claim):
    try:
        return await queue.canceled(claim)
    except Exception as error:
        return type(error).__name__

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
"""


async def test_processes_share_out_what_is_pinned(store_url: str) -> None:
    async with Database.open(store_url) as database:
        pipe = asyncio.subprocess.PIPE
        children = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", WORKER, store_url, worker, name, str(slots), stdin=pipe, stdout=pipe, stderr=pipe
            )
            for worker, name, slots in WORKERS
        ]
        for child in children:
            assert child.stdout is not None
            assert await child.stdout.readline() == b"ready\n"
        owners = {}
        for n in range(24):
            name = ("alpha", "beta", "alpha", None)[n % 4]
            (ticket,) = await pinned(database, name)
            owners[ticket] = name
        canceled = [t for t in owners if t % 5 == 0]
        for ticket in canceled:
            with contextlib.suppress(TransitionRefused):
                await TicketDB(database).cancel_ticket(ticket, now=True)
        answers = await asyncio.gather(*(child.communicate(b"") for child in children))
        assert [child.returncode for child in children] == [0, 0, 0], b"".join(a[1] for a in answers).decode()
        assert set((await states(database)).values()) <= {"resolved", "canceled"}
        moves = await histories(database)
        names = {f"worker:{worker}": name for worker, name, _ in WORKERS}
        for ticket, name in owners.items():
            claims = [m["actor"] for m in moves[ticket] if m["new"] == "running"]
            assert len(claims) <= 1
            assert ticket in canceled or len(claims) == 1
            assert name is None or all(names[actor] == name for actor in claims)
            assert all(q <= 1 and p <= q for q, p in back_and_forth(moves[ticket])), moves[ticket]
        assert any(m["new"] == "queued" for history in moves.values() for m in history), "nobody was ever busy"
        assert (await verify(database)).ok


CANCELER = """
import asyncio, json, sys
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.errors import TransitionRefused

async def main(url):
    async with Database.open(url) as database:
        tickets = TicketDB(database)
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                said = (await tickets.cancel_ticket(int(line), now=True)).status.value
            except TransitionRefused:
                said = "refused"
            print(said, flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("rounds", [20])
async def test_a_cancellation_by_another_process_is_never_overwritten(store_url: str, rounds: int) -> None:
    """Defect D-06: a canceled task ended as failed, or as completed."""
    stories = set()
    async with Database.open(store_url) as database:
        queue, tickets, audit = WorkQueue(database), TicketDB(database), AuditLogDB(database)
        await queue.register("w", 600, "alpha")
        pipe = asyncio.subprocess.PIPE
        person = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CANCELER, store_url, stdin=pipe, stdout=pipe
        )
        assert person.stdin is not None
        assert person.stdout is not None
        assert await person.stdout.readline() == b"ready\n"
        for number in range(rounds):
            (ticket,) = await pinned(database, "alpha")
            (claim,) = await queue.claim("w", 1, "alpha")
            session = await audit.create_session(ticket, claim=claim)
            person.stdin.write(f"{ticket}\n".encode())
            await person.stdin.drain()
            await asyncio.sleep((number % 7) * 0.002)
            waits = number % 2 == 0 and await queue.park(claim, claim.wake)
            if not waits:
                await queue.finish(claim, TicketStatus.RESOLVED, Reason.VERIFIED, diagnosis="d", session_id=session,
                                   session_status="completed")  # fmt: skip
            said = (await person.stdout.readline()).decode().strip()
            now = await tickets.get_ticket(ticket)
            stories.add((said, now.status.value, (await audit.session(session)).status))
            with pytest.raises(Fenced):
                await queue.canceled(claim)
        person.stdin.close()
        assert await person.wait() == 0
        assert (await verify(database)).ok
    assert stories <= {
        ("running", "canceled", "canceled"),  # it was asked, and won over the result
        ("canceled", "canceled", "canceled"),  # it waited, and was canceled at once
        ("refused", "resolved", "completed"),
    }
    assert ("running", "canceled", "canceled") in stories or ("canceled", "canceled", "canceled") in stories


async def test_a_fresh_look_at_a_cancellation(store_url: str) -> None:
    async with Database.open(store_url) as database:
        queue, tickets = WorkQueue(database), TicketDB(database)
        await queue.register("w", 60)
        (ticket,) = await pinned(database, None)
        (claim,) = await queue.claim("w")
        assert await queue.canceled(claim) is False
        await tickets.cancel_ticket(ticket)
        assert await queue.canceled(claim) is True
        assert (await queue.owned("w"))[ticket, claim.fence] == (True, False, 1)
        await tickets.cancel_ticket(ticket, now=True)
        await tickets.cancel_ticket(ticket)
        assert (await queue.owned("w"))[ticket, claim.fence] == (True, True, 3), "who said now is not overruled"
        with pytest.raises(Fenced):
            await queue.canceled(claim._replace(fence=claim.fence + 1))
        await end(queue, claim)
        ended = await tickets.get_ticket(ticket)
        assert (ended.status, ended.cancel_requested, ended.cancel_now) == (TicketStatus.CANCELED, False, False)
        with pytest.raises(Fenced):
            await queue.canceled(claim)
        again = await tickets.reopen_ticket(ticket)
        assert (again.status, again.session_id, again.cancel_requested) == (TicketStatus.OPEN, None, False)
        kinds = [json.dumps(r.body) for r in await ticket_history(database, ticket) if r.kind == "cancel_requested"]
        assert ["true" in body for body in kinds] == [False, True, False]


async def test_parking_is_not_slept_over_by_an_older_message(store_url: str) -> None:
    async with Database.open(store_url) as database:
        queue, tickets, audit = WorkQueue(database), TicketDB(database), AuditLogDB(database)
        await queue.register("w", 60)
        (ticket,) = await pinned(database, None)
        (claim,) = await queue.claim("w")
        session = await audit.create_session(ticket, claim=claim)
        await queue.release(claim)
        await tickets.steer(ticket, "before the claim")
        (claim,) = await queue.claim("w")
        assert not await queue.park(claim, claim.wake), "the counter had moved before, but nobody took the message out"
        _, seen = await (await audit.journal(session, claim)).drain()
        assert await queue.park(claim, seen)
