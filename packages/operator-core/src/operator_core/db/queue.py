"""The work queue: who may work on which ticket now, and how it passes on when that worker dies.

A claim ties a ticket to one *incarnation* of a worker (a row that holds the lease) and gives it a fresh fence. Every
later write of the session carries that fence in the same statement. A worker row, once gone, never returns, and the
foreign key makes the database itself refuse a claim by a worker that was declared dead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import CTE, Integer, Text, and_, bindparam, case, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.claims import Claim, Claims, Move
from operator_core.db.fleet import Workers
from operator_core.db.schema import agent_log_entries, db_now_ms, tickets, workers
from operator_core.db.second_looks import give_back
from operator_core.db.ticket_rows import close_session_row, ticket_of
from operator_core.errors import Fenced
from operator_core.model.monitor import MONITOR_BLIND
from operator_core.model.ticket import Reason, TicketStatus

__all__ = ["Owned", "WorkQueue"]

_NOW = db_now_ms()
_own_name = bindparam("own_name", type_=Text)
_candidate = tickets.alias("candidate")
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
_OWNED = select(tickets.c.id, tickets.c.fence, tickets.c.cancel_requested, tickets.c.cancel_now, tickets.c.wake).where(
    tickets.c.owner == bindparam("worker", type_=Text), tickets.c.status == "running"
)
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
# Entries that a claim writes before it has done anything: a session that kills its workers writes them every time.
_NO_PROGRESS = ("resumed", "sandbox_report")
_FENCES = select(
    func.max(case((agent_log_entries.c.entry_type.not_in(_NO_PROGRESS), agent_log_entries.c.fence))).label("progress"),
    func.min(agent_log_entries.c.fence).label("first"),
).where(agent_log_entries.c.session_id == bindparam("session", type_=Text))


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


class WorkQueue(Workers, Claims):
    """Claims, leases and fences over a store: who gets a ticket, and who loses one."""

    async def retire(self, worker: str) -> None:
        """Leave in good order; whatever is still claimed becomes claimable at once."""
        async with self.database.begin() as c:
            # Before the ledger, as a drain does it.
            await c.execute(_LOCK_WORKER, {"worker": worker})
            await self._take_back(c, [worker], Reason.RELEASED)

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
                    move = Move("open", "running", Reason.CLAIMED.value, f"worker:{worker}")
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
                move = Move("open", "queued", Reason.QUEUED.value, f"worker:{name}")
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
                move = Move("queued", "open", Reason.PROMOTED.value, f"worker:{name}")
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
                await self._record(c, row.id, row.session_id, Move("waiting_for_input", "open", "deadline", "clock"))
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
            move = Move("running", row.status, Reason.BY_HAND.value if canceled else why.value, "reaper")
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
