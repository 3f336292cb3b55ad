"""The work queue: who may work on which ticket now, and how it passes on when that worker dies.

A claim ties a ticket to one *incarnation* of a worker (a row that holds the lease) and gives it a fresh fence. Every
later write of the session carries that fence in the same statement. A worker row, once gone, never returns, and the
foreign key makes the database itself refuse a claim by a worker that was declared dead.
"""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import CTE, BigInteger, Integer, Text, and_, bindparam, case, delete, func, insert, or_, select, update
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.engine import Database
from operator_core.db.schema import agent_log_entries, db_now_ms, inbox, tickets, workers
from operator_core.db.second_looks import give_back
from operator_core.db.ticket_rows import close_session_row, ticket_of
from operator_core.errors import Fenced
from operator_core.model.monitor import MONITOR_BLIND
from operator_core.model.ticket import Reason, Ticket, TicketStatus, check_transition

__all__ = ["Claim", "LivingWorker", "Message", "Owned", "Room", "WorkQueue"]

_NOW = db_now_ms()
_FOREVER_MS = 2**53


class Claim(NamedTuple):
    """The right to work on one ticket.

    Attributes:
        ticket: As it was when it was claimed; ``ticket.session_id`` is the session to resume, if there is one.
        worker: The incarnation that holds the lease.
        fence: Carried by every write of this claim.
        wake: The message counter, for :meth:`WorkQueue.park`.
    """

    ticket: Ticket
    worker: str
    fence: int
    wake: int

    @property
    def ticket_id(self) -> int:
        """The ticket's number."""
        assert self.ticket.id is not None
        return self.ticket.id


class Owned(NamedTuple):
    """What the store says of a ticket that a worker has.

    Attributes:
        cancel: A person canceled it: stop at the next checkpoint.
        now: ... and does not want to wait for one: kill everything at once.
        wake: The message counter; it moves with every message.
    """

    cancel: bool
    now: bool
    wake: int


class LivingWorker(NamedTuple):
    """A worker whose lease has not run out."""

    id: str
    name: str
    host: str
    pid: int


class Room(NamedTuple):
    """What the workers of one name could still take.

    Attributes:
        free: Slots that no ticket needs; not above zero: none.
        draining: There are such workers, and all of them are to take nothing new.
    """

    free: int
    draining: bool


class _Move(NamedTuple):
    """One transition: from which state to which, why, and who did it."""

    old: str
    new: str
    reason: str
    actor: str


class Message(NamedTuple):
    """Something that was said to a session."""

    text: str
    actor: str


_mine = and_(
    tickets.c.id == bindparam("ticket", type_=Integer),
    tickets.c.fence == bindparam("own_fence", type_=Integer),
    tickets.c.status == "running",
)
_candidate = tickets.alias("candidate")
_own_name = bindparam("own_name", type_=Text)
_ready = and_(_candidate.c.status == "open", _candidate.c.held.is_(False), _candidate.c.run_at <= _NOW)
_claimable = and_(
    _ready,
    or_(_candidate.c.pinned_to.is_(None), _candidate.c.pinned_to == _own_name),
    # A monitor that cannot see is for a person to mend: nothing could prove an agent's repair of it.
    _candidate.c.invariant_name != MONITOR_BLIND,
)
# Locked, not only read: a drain that is being committed is waited for and seen, and one that comes later waits for the
# claim. So nothing is claimed after a drain was answered.
_me = (
    select(workers.c.draining)
    .where(workers.c.id == bindparam("worker", type_=Text))
    .with_for_update(read=True)
    .cte("me")
)
_takes = ~(select(_me.c.draining).where(_me.c.draining).correlate(None).exists())
_seems_to_take = ~(
    select(workers.c.id)
    .where(workers.c.id == bindparam("worker", type_=Text), workers.c.draining)
    .correlate(None)
    .exists()
)
_ANY_READY = select(_candidate.c.id).where(_claimable, _seems_to_take).limit(1)
_pick = (
    select(_candidate.c.id)
    .where(_claimable, _takes)
    .order_by(_candidate.c.priority.desc(), _candidate.c.id)
    .limit(bindparam("n", type_=Integer))
    .with_for_update(skip_locked=True)
    .cte("pick")
)
_CLAIM = (
    update(tickets)
    .where(tickets.c.id.in_(select(_pick.c.id)))
    .values(
        status="running",
        owner=bindparam("worker", type_=Text),
        fence=tickets.c.fence + 1,
        reason=Reason.CLAIMED.value,
        updated_at=bindparam("now", type_=Text),
    )
    .returning(tickets)
)
_is_promoted = and_(_ready, _candidate.c.pinned_to == _own_name, _candidate.c.reason == Reason.PROMOTED.value)
_overdue = and_(
    _ready,
    _candidate.c.pinned_to == _own_name,
    # What was promoted once waits for its claim: it never goes back and forth.
    or_(_candidate.c.reason.is_(None), _candidate.c.reason != Reason.PROMOTED.value),
)
_queued = and_(_candidate.c.status == "queued", _candidate.c.held.is_(False), _candidate.c.pinned_to == _own_name)
_ANY_OVERDUE = select(_candidate.c.id).where(_overdue).limit(1)
_ANY_QUEUED = select(_candidate.c.id).where(_queued, _seems_to_take).limit(1)
_COUNT_PROMOTED = select(func.count()).select_from(_candidate).where(_is_promoted)
_busy_pick = select(_candidate.c.id).where(_overdue).with_for_update(skip_locked=True).cte("pick")
# Nothing locked is passed over here: it must be exactly the oldest.
_next_pick = (
    select(_candidate.c.id)
    .where(_queued, _takes)
    .order_by(_candidate.c.priority.desc(), _candidate.c.id)
    .limit(bindparam("n", type_=Integer))
    .with_for_update()
    .cte("pick")
)


def _shift(pick: CTE, status: TicketStatus, reason: Reason) -> ReturningUpdate[Any]:
    return (
        update(tickets)
        .where(tickets.c.id.in_(select(pick.c.id)))
        .values(status=status.value, reason=reason.value, updated_at=bindparam("now", type_=Text))
        .returning(tickets.c.id, tickets.c.session_id)
    )


_QUEUE_BUSY = _shift(_busy_pick, TicketStatus.QUEUED, Reason.QUEUED)
_PROMOTE = _shift(_next_pick, TicketStatus.OPEN, Reason.PROMOTED)
_LIVING = (
    select(workers.c.id, workers.c.name, workers.c.host, workers.c.pid)
    .where(workers.c.lease_until >= _NOW, workers.c.draining.is_(False))
    .order_by(workers.c.started_at, workers.c.id)
)
_is_pinned = and_(tickets.c.status.in_(["open", "queued"]), tickets.c.pinned_to == _own_name)
_is_worked_on = and_(tickets.c.status == "running", workers.c.name == _own_name)
_count_needed = (
    select(func.count())
    .select_from(tickets.outerjoin(workers, workers.c.id == tickets.c.owner))
    .where(tickets.c.held.is_(False))
)
_TAKEN = _count_needed.where(or_(_is_pinned, _is_worked_on))
_NEEDED = _count_needed.where(or_(_is_pinned, and_(_is_worked_on, workers.c.draining.is_(False))))
_HANDS = (
    select(func.count().label("every"), func.count(case((workers.c.draining.is_(False), 1))).label("taking"))
    .select_from(workers)
    .where(workers.c.name == _own_name, workers.c.lease_until >= _NOW)
)
_REGISTER = insert(workers).values(lease_until=_NOW + bindparam("ttl", type_=BigInteger))
_BEAT = (
    update(workers)
    .where(workers.c.id == bindparam("worker", type_=Text))
    .values(lease_until=_NOW + bindparam("ttl", type_=BigInteger))
    .returning(workers.c.id)
)
_OWNED = select(tickets.c.id, tickets.c.fence, tickets.c.cancel_requested, tickets.c.cancel_now, tickets.c.wake).where(
    tickets.c.owner == bindparam("worker", type_=Text), tickets.c.status == "running"
)
_IS_CANCELED = select(tickets.c.cancel_requested).where(_mine)
_DEAD = select(workers.c.id).where(workers.c.lease_until < _NOW).with_for_update(skip_locked=True)
_ANY_DUE = select(workers.c.id.label("id")).where(workers.c.lease_until < _NOW).limit(1)
_ANY_WAITER = select(tickets.c.id).where(tickets.c.status == "waiting_for_input", tickets.c.run_at <= _NOW).limit(1)
_TAKE_BACK = (
    update(tickets)
    .where(tickets.c.status == "running", tickets.c.owner.in_(bindparam("dead", expanding=True)))
    .values(
        status=case((tickets.c.cancel_requested, "canceled"), else_="open"),
        reason=case((tickets.c.cancel_requested, Reason.BY_HAND.value), else_=bindparam("why", type_=Text)),
        owner=None,
        run_at=0,
        updated_at=bindparam("now", type_=Text),
    )
    .returning(tickets.c.id, tickets.c.status, tickets.c.session_id, tickets.c.fence)
)
_LOCK_WORKER = select(workers.c.id).where(workers.c.id == bindparam("worker", type_=Text)).with_for_update()
_BURY = delete(workers).where(workers.c.id.in_(bindparam("dead", expanding=True)))
_WAKE_DUE = (
    update(tickets)
    .where(tickets.c.status == "waiting_for_input", tickets.c.run_at <= _NOW)
    .values(status="open", run_at=0, updated_at=bindparam("now", type_=Text))
    .returning(tickets.c.id, tickets.c.session_id)
)
_LOCK_MINE = select(tickets).where(_mine).with_for_update()
_SEE_MINE = select(tickets.c.wake).where(_mine).with_for_update(read=True)
_PARK = (
    update(tickets)
    .where(_mine)
    .values(
        status="waiting_for_input",
        reason=bindparam("why", type_=Text),
        owner=None,
        run_at=_NOW + bindparam("wait_ms", type_=BigInteger),
        updated_at=bindparam("now", type_=Text),
    )
)
_LETTERS = (
    select(inbox.c.id, inbox.c.body).where(inbox.c.ticket_id == bindparam("ticket", type_=Integer)).order_by(inbox.c.id)
)
# Entries that a claim writes before it has done anything: a session that kills its workers writes them every time.
_NO_PROGRESS = ("resumed", "sandbox_report")
_FENCES = select(
    func.max(case((agent_log_entries.c.entry_type.not_in(_NO_PROGRESS), agent_log_entries.c.fence))).label("progress"),
    func.min(agent_log_entries.c.fence).label("first"),
).where(agent_log_entries.c.session_id == bindparam("session", type_=Text))


class WorkQueue:
    """Claims, leases and fences over a store."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # ---- a worker process

    async def register(self, worker: str, lease_s: float, name: str = "", concurrency: int = 0) -> None:
        """Announce one incarnation of a worker; its lease runs from now.

        Args:
            name: What tickets are pinned to (`[worker] name`); several processes may share one.
            concurrency: How many tickets it works on at once; 0: it does not say.
        """
        row = {"id": worker, "host": socket.gethostname(), "pid": os.getpid(), "started_at": clock.iso(), "name": name}
        row["concurrency"] = concurrency
        async with self.database.begin() as c:
            await c.execute(_REGISTER, {**row, "ttl": int(lease_s * 1000)})

    async def heartbeat(self, worker: str, lease_s: float) -> None:
        """Renew the lease of everything this process works on, with one row.

        Raises:
            Fenced: It was declared dead; the process must stop at once.
        """
        if not await self.database.one(_BEAT, urgent=True, worker=worker, ttl=int(lease_s * 1000)):
            raise Fenced("This worker was declared dead because its lease ran out; it stops and writes nothing more.")

    async def retire(self, worker: str) -> None:
        """Leave in good order; whatever is still claimed becomes claimable at once."""
        async with self.database.begin() as c:
            # Before the ledger, as a drain does it.
            await c.execute(_LOCK_WORKER, {"worker": worker})
            await self._take_back(c, [worker], Reason.RELEASED)

    async def living(self) -> list[LivingWorker]:
        """The workers that could take a ticket now, oldest first."""
        return [LivingWorker(r.id, r.name, r.host, r.pid) for r in await self.database.fetch(_LIVING)]

    async def taken(self, name: str) -> int:
        """How many slots of the workers with this name are taken, or will be by what is pinned to it."""
        return int((await self.database.fetch(_TAKEN, own_name=name))[0][0])

    async def room(self, name: str, concurrency: int) -> Room:
        """What the workers with this name could still take; one that drains has no slots.

        Args:
            concurrency: Slots of each of them. While none is registered, one is counted that soon will be.
        """
        (hands,) = await self.database.fetch(_HANDS, own_name=name)
        (needed,) = await self.database.fetch(_NEEDED, own_name=name)
        free = concurrency * (hands.taking if hands.every else 1) - needed[0]
        return Room(free, hands.every > 0 and not hands.taking)

    async def claim(self, worker: str, n: int = 1, name: str = "") -> list[Claim]:
        """Take up to ``n`` tickets, highest priority first, then oldest; each goes to exactly one worker.

        A worker that is draining gets none.

        Args:
            name: Of tickets that are pinned, only those pinned to this name are taken.

        Raises:
            Fenced: This worker was declared dead.
        """
        if not await self.database.fetch(_ANY_READY, own_name=name, worker=worker):
            return []
        values = {"worker": worker, "n": n, "own_name": name, "now": clock.iso()}
        try:
            async with self.database.begin() as c:
                rows = (await c.execute(_CLAIM, values)).all()
                for row in rows:
                    move = _Move("open", "running", Reason.CLAIMED.value, f"worker:{worker}")
                    await self._record(c, row.id, row.session_id, move, row.fence)
        except IntegrityError:
            raise Fenced("This worker was declared dead because its lease ran out; it stops.") from None
        rows = sorted(rows, key=lambda r: (-r.priority, r.id))
        return [Claim(ticket_of(r), worker, r.fence, r.wake) for r in rows]

    async def queue_busy(self, name: str) -> int:
        """Say of the tickets that wait for this worker, which has no free slot, that they do (row B-006).

        What was promoted already stays as it is.

        Returns:
            How many became ``queued``.
        """
        if not await self.database.fetch(_ANY_OVERDUE, own_name=name):
            return 0
        async with self.database.begin() as c:
            rows = (await c.execute(_QUEUE_BUSY, {"own_name": name, "now": clock.iso()})).all()
            for row in rows:
                move = _Move("open", "queued", Reason.QUEUED.value, f"worker:{name}")
                await self._record(c, row.id, row.session_id, move)
            return len(rows)

    async def promote(self, name: str, n: int = 1, *, worker: str = "") -> int:
        """Make room for the next ones that wait for this worker: highest priority first, then oldest (row B-013).

        Args:
            n: Free slots. Those that were promoted and are not claimed yet fill them first.
            worker: The incarnation that has them; while it is draining it makes no room.

        Returns:
            How many became ``open``.
        """
        if n <= 0 or not await self.database.fetch(_ANY_QUEUED, own_name=name, worker=worker):
            return 0
        async with self.database.begin() as c:
            n -= (await c.execute(_COUNT_PROMOTED, {"own_name": name})).scalar_one()
            if n <= 0:
                return 0
            rows = (await c.execute(_PROMOTE, {"own_name": name, "n": n, "worker": worker, "now": clock.iso()})).all()
            for row in rows:
                move = _Move("queued", "open", Reason.PROMOTED.value, f"worker:{name}")
                await self._record(c, row.id, row.session_id, move)
            if rows:
                await self.database.notify(c)
            return len(rows)

    async def owned(self, worker: str) -> dict[tuple[int, int], Owned]:
        """What the store says this worker has, by ticket and fence."""
        rows = await self.database.fetch(_OWNED, worker=worker)
        return {(r.id, r.fence): Owned(r.cancel_requested, r.cancel_now, r.wake) for r in rows}

    async def reap(self) -> int:
        """Take back the tickets of dead workers and wake those whose waiting time is over.

        Any worker may do it at any time, any number of times; there is no leader.

        Returns:
            How many tickets became claimable.
        """
        if not await self.database.fetch(_ANY_DUE) and not await self.database.fetch(_ANY_WAITER):
            return 0
        async with self.database.begin() as c:
            dead = [r.id for r in (await c.execute(_DEAD)).all()]
            # All tickets before the ledger, which `_take_back` locks.
            woken = (await c.execute(_WAKE_DUE, {"now": clock.iso()})).all()
            count = await self._take_back(c, dead, Reason.LEASE_EXPIRED) if dead else 0
            for row in woken:
                await self._record(c, row.id, row.session_id, _Move("waiting_for_input", "open", "deadline", "clock"))
                count += 1
            if count:
                await self.database.notify(c)
            return count

    async def _take_back(self, c: AsyncConnection, dead: list[str], why: Reason) -> int:
        count = 0
        values = {"dead": dead, "why": why.value, "now": clock.iso()}
        rows = (await c.execute(_TAKE_BACK, values)).all()
        # Before the ledger, too.
        looks = await give_back(c, dead, lost=why is Reason.LEASE_EXPIRED)
        for row in rows:
            canceled = row.status == TicketStatus.CANCELED
            if canceled and row.session_id:
                await close_session_row(self.database, c, row.session_id, "canceled", "canceled by a person")
            move = _Move("running", row.status, Reason.BY_HAND.value if canceled else why.value, "reaper")
            await self._record(c, row.id, row.session_id, move, row.fence)
            count += not canceled
        await c.execute(_BURY, {"dead": dead})
        if count or looks:
            await self.database.notify(c)
        return count

    async def lost_in_a_row(self, claim: Claim) -> int:
        """How many workers in a row, before this one, were lost without bringing the session any further.

        One that gave the ticket back in good order is not among them.
        """
        if claim.ticket.session_id is None:
            return 0
        (row,) = await self.database.fetch(_FENCES, session=claim.ticket.session_id)
        last = row.progress
        if last is None:
            last = claim.fence - 1 if row.first is None else row.first - 1
        ends = [row.body for row in await ledger.ticket_history(self.database, claim.ticket_id)]
        return sum(end.get("reason") == Reason.LEASE_EXPIRED and end["fence"] > last for end in ends)

    async def _record(
        self, c: AsyncConnection, ticket_id: int, session_id: str | None, move: _Move, fence: int | None = None
    ) -> None:
        """Write a transition into the ledger; last in every transaction, because it locks the ledger's head."""
        body = move._asdict() if fence is None else {**move._asdict(), "fence": fence}
        await ledger.append(self.database, c, "transition", ticket_id=ticket_id, session_id=session_id, **body)

    async def _leave(
        self, c: AsyncConnection, claim: Claim, session_id: str | None, status: TicketStatus, reason: Reason
    ) -> None:
        move = _Move("running", status.value, reason.value, f"worker:{claim.worker}")
        await self._record(c, claim.ticket_id, session_id, move, claim.fence)

    # ---- the owner of a claim

    async def canceled(self, claim: Claim) -> bool:
        """Whether a person canceled the ticket, looked up now (rows B-026 to B-028).

        Raises:
            Fenced: Somebody else owns the ticket, or nobody does.
        """
        rows = await self.database.fetch(_IS_CANCELED, ticket=claim.ticket_id, own_fence=claim.fence)
        if not rows:
            raise Fenced
        return bool(rows[0].cancel_requested)

    async def finish(
        self,
        claim: Claim,
        status: TicketStatus,
        reason: Reason,
        *,
        diagnosis: str,
        session_id: str | None,
        session_status: str,
        watch_s: float = 0.0,
    ) -> TicketStatus:
        """End the work on a ticket: its state, its session and the ledger change together.

        A cancellation that arrived meanwhile wins: the ticket is then ``canceled``, whatever the result was.

        Returns:
            The state that the ticket really has now.

        Raises:
            Fenced: Somebody else owns the ticket.
        """
        now = clock.now()
        async with self.database.begin() as c:
            row = (await c.execute(_LOCK_MINE, {"ticket": claim.ticket_id, "own_fence": claim.fence})).first()
            if row is None:
                raise Fenced
            if row.cancel_requested and status is not TicketStatus.CANCELED:
                status, reason, session_status = TicketStatus.CANCELED, Reason.BY_HAND, "canceled"
            check_transition(claim.ticket_id, TicketStatus.RUNNING, status)
            resolved = status is TicketStatus.RESOLVED
            await c.execute(
                update(tickets)
                .where(tickets.c.id == claim.ticket_id)
                .values(
                    status=status.value,
                    reason=reason.value,
                    owner=None,
                    held=False,
                    cancel_requested=False,
                    cancel_now=False,
                    diagnosis=self.database.redactor.column(diagnosis),
                    resolved_at=clock.iso(now) if resolved else None,
                    watch_until=clock.iso(now + timedelta(seconds=watch_s)) if resolved and watch_s else None,
                    updated_at=clock.iso(now),
                )
            )
            if session_id is not None:
                await close_session_row(self.database, c, session_id, session_status, diagnosis)
            await self._leave(c, claim, session_id, status, reason)
        return status

    async def release(self, claim: Claim, *, delay_s: float = 0.0, lost: bool = False) -> None:
        """Give a ticket back unfinished; any worker resumes its session, not before ``delay_s``.

        Args:
            lost: The session broke off here, as if its worker had died; :meth:`lost_in_a_row` counts it.

        Raises:
            Fenced: Somebody else owns the ticket.
        """
        async with self.database.begin() as c:
            row = (await c.execute(_LOCK_MINE, {"ticket": claim.ticket_id, "own_fence": claim.fence})).first()
            if row is None:
                raise Fenced
            status = TicketStatus.CANCELED if row.cancel_requested else TicketStatus.OPEN
            reason = Reason.LEASE_EXPIRED if lost else Reason.RELEASED
            reason = Reason.BY_HAND if row.cancel_requested else reason
            await c.execute(
                update(tickets)
                .where(tickets.c.id == claim.ticket_id)
                .values(
                    status=status.value,
                    reason=reason.value,
                    owner=None,
                    run_at=_NOW + int(delay_s * 1000) if delay_s else 0,
                    updated_at=clock.iso(),
                )
            )
            if row.cancel_requested and row.session_id:
                await close_session_row(self.database, c, row.session_id, "canceled", "canceled by a person")
            await self._leave(c, claim, row.session_id, status, reason)
            if status is TicketStatus.OPEN:
                await self.database.notify(c)

    async def park(self, claim: Claim, seen: int, *, wait_s: float | None = None) -> bool:
        """Wait for a person, for days if need be: no process, no lease, no cost.

        Args:
            seen: The message counter of the last look into the inbox.
            wait_s: Wake by itself after so many seconds; None: never.

        Returns:
            False when a message or a cancellation arrived since, when one from before was never taken out, or when the
            ticket is no longer ours; look again.
        """
        wait_ms = _FOREVER_MS // 2 if wait_s is None else int(wait_s * 1000)
        ours = {"ticket": claim.ticket_id, "own_fence": claim.fence}
        async with self.database.begin() as c:
            row = (await c.execute(_LOCK_MINE, ours)).first()
            if row is None or row.wake != seen or row.cancel_requested:
                return False
            # Only under the lock, which every sender takes first, does an empty inbox mean anything.
            if (await c.execute(_LETTERS, {"ticket": claim.ticket_id})).first() is not None:
                return False
            await self.rest_in(c, claim, row.session_id, Reason.ASKED_A_PERSON, wait_ms)
            return True

    async def hold_in(self, c: AsyncConnection, claim: Claim) -> Row[Any]:
        """Lock the ticket of a claim in the caller's transaction; its row.

        Raises:
            Fenced: Somebody else owns the ticket, or nobody does.
        """
        row = (await c.execute(_LOCK_MINE, {"ticket": claim.ticket_id, "own_fence": claim.fence})).first()
        if row is None:
            raise Fenced
        return row

    async def rest_in(
        self, c: AsyncConnection, claim: Claim, session_id: str | None, reason: Reason, wait_ms: int
    ) -> None:
        """Let a ticket wait for a person, in the caller's transaction, which has locked it."""
        ours = {"ticket": claim.ticket_id, "own_fence": claim.fence, "why": reason.value}
        await c.execute(_PARK, {**ours, "wait_ms": wait_ms, "now": clock.iso()})
        await self._leave(c, claim, session_id, TicketStatus.WAITING_FOR_INPUT, reason)

    async def has_letters(self, claim: Claim) -> bool:
        """Whether somebody said something that the session has not taken yet."""
        return bool(await self.database.fetch(_LETTERS, ticket=claim.ticket_id))

    async def letters(self, c: AsyncConnection, claim: Claim) -> tuple[list[Message], int]:
        """Take the messages out of the inbox, inside the transaction that journals them.

        Returns:
            The messages, oldest first, and the message counter to :meth:`park` with.

        Raises:
            Fenced: Somebody else owns the ticket.
        """
        wake = (await c.execute(_SEE_MINE, {"ticket": claim.ticket_id, "own_fence": claim.fence})).scalar()
        if wake is None:
            raise Fenced
        rows = (await c.execute(_LETTERS, {"ticket": claim.ticket_id})).all()
        if rows:
            await c.execute(delete(inbox).where(inbox.c.id.in_([r.id for r in rows])))
        return [Message(**json.loads(r.body)) for r in rows], int(wake)
