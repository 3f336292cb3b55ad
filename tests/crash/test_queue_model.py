"""The whole protocol of the work queue against a model of it, with a clock that the test turns.

``OPERATOR_MODEL_EXAMPLES`` (default 150) sets how many random histories are tried. The mutants break the queue on
purpose in ways that are easy to get wrong; a model that does not catch each of them proves nothing. Each has a short
history that shows it; with more than 150 examples they are also searched for at random.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import Engine, delete, event, insert, select, text, update

from operator_core.db import claims as claims_module
from operator_core.db import journal as journal_module
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim, Claims, Message
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.journal import Journal
from operator_core.db.queue import WorkQueue
from operator_core.db.schema import agent_log_entries, agent_sessions, inbox, tickets, workers
from operator_core.db.tickets import TicketDB
from operator_core.errors import Fenced, TransitionRefused
from operator_core.model.entry import Draft
from operator_core.model.ticket import Reason, TicketStatus
from tests.support.depth import DEEP

EXAMPLES = int(os.environ.get("OPERATOR_MODEL_EXAMPLES") or (150 if DEEP else 40))
TTL = 10
CLOSED = ("resolved", "canceled")
INDEX = st.integers(0, 7)


class T:
    """What the model knows of one ticket."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.status = "open"
        self.fence = self.seq = 0
        self.owner: str | None = None
        self.session: str | None = None
        self.box: list[str] = []
        self.sent = 0
        self.run_at = 0
        self.cancel = self.held = False


class W:
    """What the model knows of one worker."""

    def __init__(self, until: int) -> None:
        self.until = until
        self.dead = False


class Held(NamedTuple):
    claim: Claim
    journal: Journal


class QueueMachine(RuleBasedStateMachine):
    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.folder = Path(tempfile.mkdtemp(prefix="operator-model-"))
        self.loop = asyncio.new_event_loop()
        event.listen(Engine, "connect", self._turn_clock)
        shutil.copy(self.template, self.folder / "operator.db")
        self.opening: AbstractAsyncContextManager[Database] = Database.open(self.folder / "operator.db")
        self.database = self.do(self.opening.__aenter__())
        self.queue, self.tickets, self.audit = self.make_queue(), TicketDB(self.database), AuditLogDB(self.database)
        self.T: dict[int, T] = {}
        self.W: dict[str, W] = {}
        self.held: list[Held] = []
        self.sessions: dict[str, str] = {}

    def make_queue(self) -> WorkQueue:
        return WorkQueue(self.database)

    def _turn_clock(self, connection: Any, record: Any) -> None:
        # The database's own clock is the only one that leases know.
        connection.create_function("julianday", 1, lambda _: 2440587.5 + self.now / 86_400)

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def attempt(self, coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
        try:
            return True, self.do(coroutine)
        except Fenced:
            return False, None

    def ticket(self, k: int) -> T:
        return list(self.T.values())[k % len(self.T)]

    def owned(self, k: int) -> tuple[Held, T, bool]:
        held = self.held[k % len(self.held)]
        t = self.T[held.claim.ticket_id]
        return held, t, t.status == "running" and t.fence == held.claim.fence

    def end_session(self, t: T, status: str) -> None:
        if t.session is not None and self.sessions[t.session] == "running":
            self.sessions[t.session] = status

    @initialize(started=st.booleans())
    def start(self, started: bool) -> None:
        if started:  # most of what can go wrong needs two workers and a ticket that one of them has
            for step in (self.open_ticket, self.open_ticket, self.new_worker, self.new_worker):
                step()
            self.claim(k=0, n=1)

    # ---- people

    @rule()
    def open_ticket(self) -> None:
        ticket = self.do(self.tickets.open_ticket("disk", "full"))
        self.T[ticket.id] = T(ticket.id)

    @rule(k=INDEX)
    def send(self, k: int) -> None:
        if self.T:
            self.send_to(self.ticket(k))

    def send_to(self, t: T) -> None:
        message = f"m{t.sent}"
        if t.status in ("escalated", *CLOSED):
            with pytest.raises(TransitionRefused):
                self.do(self.tickets.send(t.number, message))
            return
        status = self.do(self.tickets.send(t.number, message))
        t.box.append(message)
        t.sent += 1
        if t.status == "waiting_for_input":
            t.status, t.run_at = "open", 0
        assert status == t.status

    @rule(k=INDEX)
    def cancel(self, k: int) -> None:
        if not self.T:
            return
        t = self.ticket(k)
        if t.status in CLOSED:
            with pytest.raises(TransitionRefused):
                self.do(self.tickets.cancel_ticket(t.number))
            return
        self.do(self.tickets.cancel_ticket(t.number))
        if t.status == "running":
            t.cancel = True
        else:
            t.status = "canceled"
            self.end_session(t, "canceled")

    @rule(k=INDEX)
    def resolve_by_hand(self, k: int) -> None:
        if not self.T:
            return
        t = self.ticket(k)
        if t.status in ("running", *CLOSED):
            with pytest.raises(TransitionRefused):
                self.do(self.tickets.resolve_ticket(t.number))
            return
        self.do(self.tickets.resolve_ticket(t.number))
        t.status, t.held = "resolved", False
        self.end_session(t, "canceled")

    @rule(k=INDEX)
    def reopen(self, k: int) -> None:
        if not self.T:
            return
        t = self.ticket(k)
        if t.status not in ("escalated", *CLOSED):
            with pytest.raises(TransitionRefused):
                self.do(self.tickets.reopen_ticket(t.number))
            return
        self.do(self.tickets.reopen_ticket(t.number))
        t.status, t.session, t.cancel, t.held, t.run_at = "open", None, False, False, 0

    @rule(k=INDEX, held=st.booleans())
    def hold(self, k: int, held: bool) -> None:
        if not self.T:
            return
        t = self.ticket(k)
        call = self.tickets.hold_ticket if held else self.tickets.unhold_ticket
        if t.status in CLOSED:
            with pytest.raises(TransitionRefused):
                self.do(call(t.number))
            return
        self.do(call(t.number))
        t.held = held

    # ---- workers

    @rule()
    def new_worker(self) -> None:
        if len(self.W) < 4:
            name = f"w{len(self.W)}"
            self.do(self.queue.register(name, TTL))
            self.W[name] = W(self.now + TTL)

    @rule(k=st.integers(0, 3), n=st.integers(1, 3))
    def claim(self, k: int, n: int) -> None:
        if not self.W:
            return
        worker = list(self.W)[k % len(self.W)]
        ready = [t for t in self.T.values() if t.status == "open" and not t.held and t.run_at <= self.now]
        did, claims = self.attempt(self.queue.claim(worker, n))
        if self.W[worker].dead:
            assert not claims, "a dead worker claimed"
            assert did == (not ready)
            return
        assert did
        assert [c.ticket_id for c in claims] == [t.number for t in ready[:n]], "not the oldest ready ones"
        for claim, t in zip(claims, ready, strict=False):
            t.status, t.owner, t.fence = "running", worker, t.fence + 1
            assert claim.fence == t.fence
            assert claim.ticket.session_id == t.session, "another session than the one to resume"
            if t.session is None:
                t.session, t.seq = self.do(self.audit.create_session(t.number, claim=claim)), 0
                self.sessions[t.session] = "running"
            self.held.append(Held(claim, self.do(self.audit.journal(t.session, claim))))

    @rule(k=INDEX, n=st.integers(1, 3))
    def append(self, k: int, n: int) -> None:
        if not self.held:
            return
        held, t, ours = self.owned(k)
        did, _ = self.attempt(held.journal.append(*[Draft("note", str(t.seq + i)) for i in range(n)]))
        assert did == ours, "a zombie wrote" if did else "the owner was refused"
        t.seq += n * did

    @rule(k=INDEX, send_between=st.booleans(), wait_s=st.integers(1, 30))
    def drain_and_park(self, k: int, send_between: bool, wait_s: int) -> None:
        if not self.held:
            return
        held, t, ours = self.owned(k)
        did, got = self.attempt(held.journal.drain())
        assert did == ours
        if not did:
            assert not self.do(self.queue.park(held.claim, held.claim.wake)), "a zombie parked"
            return
        messages, seen = got
        assert [m.text for m in messages] == t.box, "messages lost, doubled or reordered"
        t.seq += len(t.box)
        t.box = []
        if send_between:
            self.send_to(t)
        parked = self.do(self.queue.park(held.claim, seen, wait_s=wait_s))
        assert parked == (not t.box and not t.cancel), "slept over a message" if parked else "would not park"
        if parked:
            t.status, t.owner, t.run_at = "waiting_for_input", None, self.now + wait_s

    @rule(k=INDEX, status=st.sampled_from([TicketStatus.RESOLVED, TicketStatus.ESCALATED]))
    def finish(self, k: int, status: TicketStatus) -> None:
        if not self.held:
            return
        held, t, ours = self.owned(k)
        ended = "completed" if status is TicketStatus.RESOLVED else "escalated"
        did, real = self.attempt(
            self.queue.finish(
                held.claim,
                status,
                Reason.VERIFIED,
                diagnosis="d",
                session_id=held.journal.session_id,
                session_status=ended,
            )
        )
        assert did == ours, "a zombie finished"
        if did:
            assert real == ("canceled" if t.cancel else status), "a late result won over a cancellation"
            t.status, t.owner, t.held = str(real), None, False
            self.end_session(t, "canceled" if t.cancel else ended)
            t.cancel = False

    @rule(k=INDEX, delay_s=st.sampled_from([0, 0, 5]))
    def release(self, k: int, delay_s: int) -> None:
        if not self.held:
            return
        held, t, ours = self.owned(k)
        did, _ = self.attempt(self.queue.release(held.claim, delay_s=delay_s))
        assert did == ours, "a zombie released"
        if did:
            self.give_back(t)
            t.run_at = self.now + delay_s if delay_s else 0

    @rule(k=st.integers(0, 3))
    def beat(self, k: int) -> None:
        if self.W:
            name = list(self.W)[k % len(self.W)]
            did, _ = self.attempt(self.queue.heartbeat(name, TTL))
            assert did == (not self.W[name].dead), "the dead came back"
            if did:
                self.W[name].until = self.now + TTL

    @rule(k=st.integers(0, 3))
    def retire(self, k: int) -> None:
        if self.W:
            name = list(self.W)[k % len(self.W)]
            self.do(self.queue.retire(name))
            self.bury(name)

    @rule(seconds=st.integers(1, 12))
    def tick(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def reap(self) -> None:
        self.do(self.queue.reap())
        for name, w in self.W.items():
            if w.until < self.now:
                self.bury(name)
        for t in self.T.values():
            if t.status == "waiting_for_input" and t.run_at <= self.now:
                t.status, t.run_at = "open", 0

    def bury(self, name: str) -> None:
        if not self.W[name].dead:
            self.W[name].dead = True
            for t in self.T.values():
                if t.status == "running" and t.owner == name:
                    self.give_back(t)
                    t.run_at = 0

    def give_back(self, t: T) -> None:
        t.owner = None
        t.status = "canceled" if t.cancel else "open"
        if t.cancel:
            self.end_session(t, "canceled")

    # ---- what must always hold

    @invariant()
    def the_store_agrees(self) -> None:
        async def look() -> tuple[dict[int, Any], dict[str, str]]:
            t = tickets.c
            rows = await self.database.fetch(select(t.id, t.status, t.fence, t.owner, t.session_id, t.held))
            sessions = await self.database.fetch(select(agent_sessions.c.session_id, agent_sessions.c.status))
            return {r.id: tuple(r)[1:] for r in rows}, {r.session_id: r.status for r in sessions}

        stored, sessions = self.do(look())
        assert stored == {t.number: (t.status, t.fence, t.owner, t.session, t.held) for t in self.T.values()}
        assert sessions == self.sessions

    def teardown(self) -> None:
        try:
            report = self.do(verify(self.database))
            assert report.ok, report.problem
            for t in self.T.values():
                if t.session is not None:
                    entries = self.do(self.audit.entries(t.session))
                    assert [e.seq for e in entries] == list(range(t.seq))
                    fences = [e.fence for e in entries]
                    assert fences == sorted(fences), "an older owner wrote after a newer one"
        finally:
            self.do(self.opening.__aexit__(None, None, None))
            self.loop.close()
            event.remove(Engine, "connect", self._turn_clock)
            shutil.rmtree(self.folder)


# ---- the queue, broken on purpose


class AppendWithoutFence(QueueMachine):
    """A journal that inserts and asks nothing."""

    def the_store_agrees(self) -> None:
        for held in self.held:
            held.journal._write_once = self._insert  # type: ignore[method-assign]
        super().the_store_agrees()

    async def _insert(self, rows: list[dict[str, Any]]) -> list[int]:
        async with self.database.begin() as c:
            result = await c.execute(insert(agent_log_entries).returning(agent_log_entries.c.id), rows)
            return [r.id for r in result]


class DrainDoubles(QueueMachine):
    """Messages are journaled and stay in the inbox."""

    def __init__(self) -> None:
        super().__init__()
        journal_module.Claims = type("BrokenClaims", (Claims,), {"letters": _letters_stay})  # type: ignore[misc]

    def teardown(self) -> None:
        journal_module.Claims = Claims  # type: ignore[misc]
        super().teardown()


def _without(name: str, method: Callable[..., Any]) -> type[QueueMachine]:
    broken = type("BrokenQueue", (WorkQueue,), {name: method})
    return type(name, (QueueMachine,), {"make_queue": lambda self: broken(self.database)})


async def _release_any(self: WorkQueue, claim: Claim, *, delay_s: float = 0.0) -> None:
    async with self.database.begin() as c:
        fence = select(tickets.c.fence).where(tickets.c.id == claim.ticket_id)
        current = (await c.execute(fence)).scalar_one()
    await WorkQueue.release(self, claim._replace(fence=current), delay_s=delay_s)


async def _park_asleep(self: WorkQueue, claim: Claim, seen: int, *, wait_s: float | None = None) -> bool:
    values = {"ticket": claim.ticket_id, "own_fence": claim.fence, "wait_ms": int((wait_s or 0) * 1000), "now": "x"}
    values["why"] = "x"
    async with self.database.begin() as c:
        await c.execute(claims_module._PARK, values)
    return True


async def _reap_the_living(self: WorkQueue) -> int:
    async with self.database.begin() as c:
        everybody = [r.id for r in (await c.execute(select(workers.c.id))).all()]
        return await self._take_back(c, everybody, Reason.LEASE_EXPIRED)


async def _reap_forgets(self: WorkQueue) -> int:
    async with self.database.begin() as c:
        await c.execute(text("PRAGMA defer_foreign_keys = ON"))
        dead = select(workers.c.id).where(workers.c.lease_until < claims_module._NOW)
        await c.execute(update(tickets).where(tickets.c.owner.in_(dead)).values(owner=None))
        await c.execute(delete(workers).where(workers.c.lease_until < claims_module._NOW))
    return 0


async def _beat_resurrects(self: WorkQueue, worker: str, lease_s: float) -> None:
    try:
        await WorkQueue.heartbeat(self, worker, lease_s)
    except Fenced:
        await self.register(worker, lease_s)


async def _letters_stay(self: Claims, c: Any, claim: Claim) -> tuple[list[Message], int]:
    rows = (
        await c.execute(select(inbox.c.body).where(inbox.c.ticket_id == claim.ticket_id).order_by(inbox.c.id))
    ).all()
    wake = (await c.execute(claims_module._SEE_MINE, {"ticket": claim.ticket_id, "own_fence": claim.fence})).scalar()
    if wake is None:
        raise Fenced
    return [Message(**json.loads(r.body)) for r in rows], int(wake)


async def _finish_over_cancel(self: WorkQueue, claim: Claim, *args: Any, **values: Any) -> TicketStatus:
    async with self.database.begin() as c:
        mine = (tickets.c.id == claim.ticket_id, tickets.c.fence == claim.fence)
        await c.execute(update(tickets).where(*mine).values(cancel_requested=False))
    return await WorkQueue.finish(self, claim, *args, **values)


async def _claim_held(self: WorkQueue, worker: str, n: int = 1) -> list[Claim]:
    async with self.database.begin() as c:
        held = [r.id for r in (await c.execute(select(tickets.c.id).where(tickets.c.held))).all()]
        await c.execute(update(tickets).values(held=False))
    claims = await WorkQueue.claim(self, worker, n)
    async with self.database.begin() as c:
        await c.execute(update(tickets).where(tickets.c.id.in_(held)).values(held=True))
    return claims


Step = tuple[str, dict[str, Any]]


def steps(text: str) -> list[Step]:
    """``"claim k=0 n=1; reap"`` as calls of rules, after two tickets, two workers and a claim by the first."""
    calls = [part.split() for part in text.split(";")]
    return [(name, {k: int(v) for k, v in (a.split("=") for a in arguments)}) for name, *arguments in calls]


TAKEN_OVER = "tick seconds=6; beat k=1; tick seconds=6; reap; claim k=1 n=1"
MUTANTS: dict[str, tuple[type[QueueMachine], list[Step]]] = {
    "append-without-fence": (AppendWithoutFence, steps(f"{TAKEN_OVER}; append k=0 n=1")),
    "release-without-fence": (_without("release", _release_any), steps(f"{TAKEN_OVER}; release k=0 delay_s=0")),
    "park-ignores-wake": (_without("park", _park_asleep), steps("drain_and_park k=0 send_between=1 wait_s=9")),
    "reap-the-living": (_without("reap", _reap_the_living), steps("tick seconds=6; reap; append k=0 n=1")),
    "reap-forgets-tickets": (_without("reap", _reap_forgets), steps("tick seconds=12; reap")),
    "heartbeat-resurrects": (_without("heartbeat", _beat_resurrects), steps("tick seconds=12; reap; beat k=0")),
    "drain-doubles": (
        DrainDoubles,
        steps("send k=0; drain_and_park k=0 send_between=1 wait_s=9; drain_and_park k=0 send_between=0 wait_s=9"),
    ),
    "finish-over-cancel": (_without("finish", _finish_over_cancel), steps("cancel k=0; finish k=0")),
    "claim-held": (_without("claim", _claim_held), steps("hold k=1 held=1; claim k=1 n=1")),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store of the newest schema: copying it is much faster than making it."""
    path = tmp_path_factory.mktemp("template") / "operator.db"

    async def make() -> None:
        async with Database.open(path):
            pass

    asyncio.run(make())
    return path


def run(machine: type[QueueMachine], template: Path, **options: Any) -> None:
    machine.template = template
    run_state_machine_as_test(
        machine,
        settings=settings(
            stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), database=None, **options
        ),
    )


def test_the_queue_is_what_the_model_says(template: Path) -> None:
    run(QueueMachine, template, max_examples=EXAMPLES)


def play(machine: type[QueueMachine], template: Path, history: list[Step]) -> None:
    machine.template = template
    run = machine()
    try:
        run.start(started=True)
        for name, values in history:
            if name == "finish":
                values = {**values, "status": TicketStatus.RESOLVED}
            getattr(run, name)(**values)
            run.the_store_agrees()
    finally:
        run.teardown()


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_catches_the_mutant(template: Path, name: str) -> None:
    mutant, history = MUTANTS[name]
    play(QueueMachine, template, history)
    with pytest.raises((AssertionError, ExceptionGroup)):
        play(mutant, template, history)
    if EXAMPLES > 150:
        with pytest.raises((AssertionError, ExceptionGroup)):
            run(mutant, template, max_examples=EXAMPLES, phases=[Phase.generate])
