"""Claims: the right to work on one ticket, and what its owner does with it until it ends, rests or is given back.

Every statement carries the fence of the claim: who has lost it writes nothing.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Integer, Text, and_, bindparam, delete, select, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.client import StoreClient
from operator_core.db.schema import db_now_ms, inbox, tickets
from operator_core.db.ticket_rows import close_session_row
from operator_core.errors import Fenced
from operator_core.model.ticket import Reason, Ticket, TicketStatus, check_transition

__all__ = ["Claim", "Claims", "Message", "Move"]

_NOW = db_now_ms()
_FOREVER_MS = 2**53
_mine = and_(
    tickets.c.id == bindparam("ticket", type_=Integer),
    tickets.c.fence == bindparam("own_fence", type_=Integer),
    tickets.c.status == "running",
)
_IS_CANCELED = select(tickets.c.cancel_requested).where(_mine)
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


class Claim(NamedTuple):
    """The right to work on one ticket.

    Attributes:
        ticket: As it was when it was claimed; ``ticket.session_id`` is the session to resume, if there is one.
        worker: The incarnation that holds the lease.
        fence: Carried by every write of this claim.
        wake: The message counter, for :meth:`Claims.park`.
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


class Message(NamedTuple):
    """Something that was said to a session."""

    text: str
    actor: str


class Move(NamedTuple):
    """One transition: from which state to which, why, and who did it."""

    old: str
    new: str
    reason: str
    actor: str


class Claims(StoreClient):
    """What the owner of a claim does with its ticket."""

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
            row = await self.hold_in(c, claim)
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
            lost: The session broke off here, as if its worker had died; :meth:`WorkQueue.lost_in_a_row` counts it.

        Raises:
            Fenced: Somebody else owns the ticket.
        """
        async with self.database.begin() as c:
            row = await self.hold_in(c, claim)
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

    async def _leave(
        self, c: AsyncConnection, claim: Claim, session_id: str | None, status: TicketStatus, reason: Reason
    ) -> None:
        move = Move("running", status.value, reason.value, f"worker:{claim.worker}")
        await self._record(c, claim.ticket_id, session_id, move, claim.fence)

    async def _record(
        self, c: AsyncConnection, ticket_id: int, session_id: str | None, move: Move, fence: int | None = None
    ) -> None:
        """Write a transition into the ledger; last in every transaction, because it locks the ledger's head."""
        body = move._asdict() if fence is None else {**move._asdict(), "fence": fence}
        await ledger.append(self.database, c, "transition", ticket_id=ticket_id, session_id=session_id, **body)
