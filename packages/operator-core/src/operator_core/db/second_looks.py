"""Requests to judge finished work once more: asked by a person, done by one worker, written down once.

A request has an owner as a ticket has one: the incarnation of a worker, whose row the database insists on, and a fence
that moves with each claim. When that row goes, in good order or not, the request waits again in the same transaction.
Every change locks the ticket first, because a ticket that was opened again is not judged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Integer, Text, and_, bindparam, exists, func, insert, or_, select, update
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.idempotency import Keys
from operator_core.db.schema import agent_log_entries, agent_sessions, db_now_ms, second_looks, tickets, workers
from operator_core.db.ticket_rows import TicketRows, close_session_row
from operator_core.errors import Fenced, TransitionRefused
from operator_core.model.entry import EntryKind
from operator_core.model.second_look import SecondLook
from operator_core.model.ticket import TicketStatus
from operator_core.text import printable

__all__ = ["JUDGED_AGAIN", "LookClaim", "SecondLooks", "Waiting", "give_back"]

JUDGED_AGAIN = frozenset({TicketStatus.RESOLVED, TicketStatus.ESCALATED, TicketStatus.CANCELED})
"""States in which the work on a ticket can be judged: it has ended."""

_MOST = 20
_PEEKED = 20
_NAMES = tuple(SecondLook.__dataclass_fields__)
_TIMES = ("asked_at", "begun_at", "ended_at")
_L = second_looks.c
_ticket = bindparam("ticket", type_=Integer)
_look = bindparam("look", type_=Text)
_worker = bindparam("worker", type_=Text)
_is_open = _L.ended_at.is_(None)
_waits = and_(_is_open, _L.owner.is_(None))
_mine = and_(_L.id == _look, _L.owner == _worker, _L.fence == bindparam("own_fence", type_=Integer), _is_open)


def _has(kind: EntryKind) -> Any:
    return exists().where(
        agent_log_entries.c.session_id == agent_sessions.c.session_id, agent_log_entries.c.entry_type == kind.value
    )


_WORK = (
    select(agent_sessions.c.session_id)
    .where(agent_sessions.c.ticket_id == _ticket, _has(EntryKind.BASELINE), _has(EntryKind.OUTCOME))
    .limit(1)
)
_COUNT_WAITING = select(func.count()).where(_waits)
_OPEN = select(second_looks).where(_L.ticket_id == _ticket, _is_open)
_OF_TICKET = (
    select(second_looks)
    .where(_L.ticket_id == _ticket)
    .order_by(_L.asked_at.desc(), _L.id.desc())
    .limit(bindparam("most", type_=Integer))
)
_for_me = (
    select(_L.id, _L.ticket_id)
    .select_from(second_looks.join(tickets, tickets.c.id == _L.ticket_id))
    .where(
        _is_open,
        or_(tickets.c.pinned_to.is_(None), tickets.c.pinned_to == bindparam("own_name", type_=Text)),
        ~_L.passed_by.contains(_worker),
    )
)
_WAITING = (
    _for_me.where(_L.owner.is_(None), ~exists().where(workers.c.id == _worker, workers.c.draining))
    .order_by(_L.asked_at, _L.id)
    .limit(_PEEKED)
)
_LEFT = _for_me.limit(1)
_LOCK_WAITING = select(second_looks).where(_L.id == _look, _waits).with_for_update()
# Locked, so that a drain that is being committed is waited for: nothing is taken after it was answered.
_ME = select(workers.c.draining).where(workers.c.id == _worker).with_for_update(read=True)
_OTHERS = select(workers.c.id).where(
    workers.c.lease_until >= db_now_ms(),
    workers.c.draining.is_(False),
    or_(bindparam("pin", type_=Text).is_(None), workers.c.name == bindparam("pin", type_=Text)),
)
_TAKE = (
    update(second_looks)
    .where(_L.id == _look)
    .values(owner=_worker, fence=_L.fence + 1, begun_at=bindparam("now", type_=Text))
    .returning(second_looks)
)
_PASS = update(second_looks).where(_L.id == _look).values(passed_by=bindparam("passed", type_=Text))
_TIE = update(second_looks).where(_mine).values(session_id=bindparam("session", type_=Text)).returning(_L.id)
_LOCK_MINE = select(second_looks).where(_mine).with_for_update()
_END = (
    update(second_looks)
    .where(_L.id == _look)
    .values(
        owner=None,
        ended_at=bindparam("now", type_=Text),
        verdict=bindparam("new_verdict", type_=Text),
        why=bindparam("new_why", type_=Text),
        unchanged=bindparam("new_unchanged", type_=second_looks.c.unchanged.type),
    )
)
_OWNED = (
    select(_L.id, _L.fence, tickets.c.status)
    .select_from(second_looks.join(tickets, tickets.c.id == _L.ticket_id))
    .where(_L.owner == _worker, _is_open)
)
_GIVE_BACK = (
    update(second_looks)
    .where(_is_open, _L.owner.in_(bindparam("dead", expanding=True)))
    .values(owner=None, lost=_L.lost + bindparam("more_lost", type_=Integer))
    .returning(_L.id, _L.ticket_id, _L.session_id, _L.fence)
)
_GIVE_ONE_BACK = update(second_looks).where(_mine).values(owner=None, lost=_L.lost + 1).returning(_L.id)


class Waiting(NamedTuple):
    """A request that this worker may take, if it has the workspace."""

    id: str
    ticket_id: int


class LookClaim(NamedTuple):
    """The right to do what was asked.

    Attributes:
        look: The request, as it was claimed; its ``session_id`` is that of a try that was broken off.
        worker: The incarnation that has it.
    """

    look: SecondLook
    worker: str


class SecondLooks(TicketRows):
    """The requests of a store."""

    # ---- people

    async def of_ticket(self, ticket_id: int, *, most: int = _MOST) -> list[SecondLook]:
        """What was asked about a ticket, newest first."""
        return [_of(row) for row in await self.database.fetch(_OF_TICKET, ticket=ticket_id, most=most)]

    async def ask(
        self, ticket_id: int, *, checks_only: bool = False, actor: str = "person", key: tuple[str, str] | None = None
    ) -> None:
        """Ask that the newest work on a ticket be judged again; the ticket stays as it is.

        Args:
            checks_only: Without the verifier agent.
            key: Principal and idempotency key (:mod:`operator_core.db.idempotency`).

        Raises:
            NotFound: There is no such ticket.
            TransitionRefused: Its work has not ended, nothing of it can be judged, or it is asked for already.
        """
        async with self.database.begin() as c:
            ticket = await self._lock(c, ticket_id)
            if key is not None and not await Keys(self.database).use(c, *key):
                return
            if ticket.status not in JUDGED_AGAIN:
                raise TransitionRefused(
                    f"Ticket #{ticket_id} is {ticket.status.value}; it is judged when its work has ended, or cancel it "
                    "first."
                )
            already = (await c.execute(_OPEN, {"ticket": ticket_id})).first()
            if already is not None:
                raise TransitionRefused(
                    f"Ticket #{ticket_id} is to be judged again already: {printable(already.asked_by)} asked for it at "
                    f"{already.asked_at[:16].replace('T', ' ')} UTC; wait for that."
                )
            if (await c.execute(_WORK, {"ticket": ticket_id})).first() is None:
                raise TransitionRefused(
                    f"Nobody has finished any work on ticket #{ticket_id} whose journal is here, so there is nothing "
                    "to judge."
                )
            look_id = clock.new_id()
            row = {
                "id": look_id,
                "ticket_id": ticket_id,
                "checks_only": checks_only,
                "asked_by": self.database.redactor.column(actor),
                "asked_at": clock.iso(),
            }
            await c.execute(insert(second_looks), row)
            await self._note(c, "asked", look_id, ticket_id, None, actor, checks_only=checks_only)
            await self.database.notify(c)

    # ---- workers

    async def count_waiting(self) -> int:
        """How many requests no worker has taken yet."""
        return int((await self.database.fetch(_COUNT_WAITING))[0][0])

    async def waiting(self, worker: str, name: str) -> list[Waiting]:
        """What this worker may take, the oldest first: not what is pinned to others, nor what it has passed by."""
        rows = await self.database.fetch(_WAITING, worker=worker, own_name=name)
        return [Waiting(row.id, row.ticket_id) for row in rows]

    async def take(self, waiting: Waiting, worker: str, *, lost_after: int) -> LookClaim | None:
        """Claim a request; exactly one worker gets it.

        Args:
            lost_after: So many lost workers are enough; the request then fails.

        Returns:
            None: another one has it, this worker drains, or it has ended now.

        Raises:
            Fenced: This worker was declared dead.
        """
        try:
            async with self.database.begin() as c:
                drains = await self._drains(c, worker)
                ticket = await self._lock(c, waiting.ticket_id)
                row = (await c.execute(_LOCK_WAITING, {"look": waiting.id})).first()
                if drains or row is None:
                    return None
                why = None
                if ticket.status not in JUDGED_AGAIN:
                    why = "The ticket was opened again before a worker came; ask again when its work has ended."
                elif row.lost >= lost_after:
                    why = f"{row.lost} workers were lost while they judged it; look at what they said, then ask again."
                if why is not None:
                    await self._close(c, row, f"worker:{worker}", None, why, None, "failed")
                    return None
                taken = (await c.execute(_TAKE, {"look": waiting.id, "worker": worker, "now": clock.iso()})).one()
                await self._note(
                    c, "claimed", row.id, row.ticket_id, row.session_id, f"worker:{worker}", fence=taken.fence
                )
        except IntegrityError:
            raise Fenced("This worker was declared dead because its lease ran out; it stops.") from None
        return LookClaim(_of(taken), worker)

    async def pass_by(self, waiting: Waiting, worker: str, why: str) -> None:
        """Say that this worker cannot do it; when no worker is left that has not said so, the request fails.

        Args:
            why: What the person is told then.
        """
        async with self.database.begin() as c:
            await self._drains(c, worker)
            ticket = await self._lock(c, waiting.ticket_id)
            row = (await c.execute(_LOCK_WAITING, {"look": waiting.id})).first()
            if row is None:
                return
            passed = f"{row.passed_by} {worker}".strip()
            others = {r.id for r in (await c.execute(_OTHERS, {"pin": ticket.pinned_to})).all()}
            if others <= {*passed.split()}:
                await self._close(c, row, f"worker:{worker}", None, why, None, "failed")
            else:
                await c.execute(_PASS, {"look": row.id, "passed": passed})
                await self.database.notify(c)

    async def tie(self, c: AsyncConnection, claim: LookClaim, session_id: str) -> None:
        """Say which session does it, in the transaction that makes the session.

        Raises:
            Fenced: Another worker has it now.
        """
        if (await c.execute(_TIE, {**_ours(claim), "session": session_id})).first() is None:
            raise Fenced

    async def end(
        self,
        claim: LookClaim,
        *,
        why: str,
        verdict: str | None = None,
        unchanged: bool | None = None,
        session_status: str = "failed",
        summary: str | None = None,
    ) -> None:
        """Write down what came of it, and close its session, in one transaction.

        A ticket that was opened again meanwhile has no verdict by this: what was judged is not what is worked on now.

        Args:
            why: Why that verdict, or why there is none.
            verdict: Its kind; None: it could not be judged.
            session_status: Of the session, if it still runs.
            summary: Of the session; None: ``why``.

        Raises:
            Fenced: Another worker has it now; nothing was changed.
        """
        async with self.database.begin() as c:
            ticket = await self._lock(c, claim.look.ticket_id)
            row = (await c.execute(_LOCK_MINE, _ours(claim))).first()
            if row is None:
                raise Fenced
            if verdict is not None and ticket.status not in JUDGED_AGAIN:
                why, verdict = f"The ticket was opened again while it was judged ({verdict}: {why}).", None
            actor = f"worker:{claim.worker}"
            await self._close(c, row, actor, verdict, why, unchanged, session_status, summary)

    async def owned(self, worker: str) -> dict[tuple[str, int], bool]:
        """What the store says this worker is at, by request and fence; False: its ticket was opened again."""
        rows = await self.database.fetch(_OWNED, worker=worker)
        return {(row.id, row.fence): row.status in JUDGED_AGAIN for row in rows}

    async def disown(self, look_id: str, worker: str, fence: int) -> None:
        """Give back what nothing in this process works on; it counts as lost."""
        async with self.database.begin() as c:
            values = {"look": look_id, "worker": worker, "own_fence": fence}
            if (await c.execute(_GIVE_ONE_BACK, values)).first() is not None:
                await self.database.notify(c)

    async def left(self, worker: str, name: str) -> bool:
        """Whether something is open that this worker may take, now or when the one that has it is lost."""
        return bool(await self.database.fetch(_LEFT, worker=worker, own_name=name))

    # ---- inside of a transaction

    async def _drains(self, c: AsyncConnection, worker: str) -> bool:
        me = (await c.execute(_ME, {"worker": worker})).first()
        if me is None:
            raise Fenced("This worker was declared dead because its lease ran out; it stops.")
        return bool(me.draining)

    async def _close(
        self,
        c: AsyncConnection,
        row: Row[Any],
        actor: str,
        verdict: str | None,
        why: str,
        unchanged: bool | None,
        session_status: str,
        summary: str | None = None,
    ) -> None:
        clean = self.database.redactor.column(why)
        values = {"look": row.id, "now": clock.iso(), "new_verdict": verdict, "new_why": clean}
        await c.execute(_END, {**values, "new_unchanged": unchanged})
        if row.session_id is not None:
            await close_session_row(self.database, c, row.session_id, session_status, summary or why)
        more = {"verdict": verdict, "why": clean, "unchanged": unchanged}
        await self._note(c, "ended", row.id, row.ticket_id, row.session_id, actor, **more)

    async def _note(
        self,
        c: AsyncConnection,
        event: str,
        look_id: str,
        ticket_id: int,
        session_id: str | None,
        actor: str,
        **more: Any,
    ) -> None:
        kind = f"second_look_{event}"
        await ledger.append(
            self.database, c, kind, ticket_id=ticket_id, session_id=session_id, look=look_id, actor=actor, **more
        )


async def give_back(c: AsyncConnection, owners: Collection[str], *, lost: bool) -> Sequence[Row[Any]]:
    """Let the requests of these workers wait again, in the transaction in which their rows go.

    Args:
        lost: They did not leave in good order.

    Returns:
        ``id``, ``ticket_id``, ``session_id`` and ``fence`` of each.
    """
    return (await c.execute(_GIVE_BACK, {"dead": list(owners), "more_lost": int(lost)})).all()


def _ours(claim: LookClaim) -> dict[str, Any]:
    return {"look": claim.look.id, "worker": claim.worker, "own_fence": claim.look.fence}


def _of(row: Row[Any]) -> SecondLook:
    values = {name: getattr(row, name) for name in _NAMES}
    for name in _TIMES:
        values[name] = clock.parse_iso(values[name]) if values[name] else None
    return SecondLook(**values)
