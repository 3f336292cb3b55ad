"""Questions about single calls: asked under a claim, answered by a person, used once.

Every change locks the ticket first, so that the answer of a person, a cancellation, and the worker that parks or goes
on come one after the other. An answer is bound to its call: session, id, tool and hash of the arguments must be the
same, and who uses it must own the ticket. A question whose session has ended, or whose time is over, is closed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy import Integer, Text, and_, bindparam, func, insert, select, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import Select

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.claims import Claim, Claims
from operator_core.db.journal import Journal
from operator_core.db.schema import agent_sessions, approvals, tickets
from operator_core.db.schema import ledger as ledger_rows
from operator_core.db.ticket_rows import TicketRows
from operator_core.errors import ConfigError, Fenced, NotFound, TransitionRefused
from operator_core.model.approval import Approval, ApprovalState, arguments_hash
from operator_core.model.entry import Draft, EntryKind, stored_json
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.text import clip, printable

__all__ = ["Approvals", "Question", "Taken"]

MAX_NOTE = 2000
_SPARE_MS = 100
_MANY = 1000

_TIMES = ("asked_at", "expires_at", "answered_at", "used_at")
_ROWS = select(approvals, agent_sessions.c.status.label("session_status")).join(
    agent_sessions, agent_sessions.c.session_id == approvals.c.session_id
)
_IS_OPEN = and_(
    approvals.c.state == "pending",
    approvals.c.expires_at > bindparam("now", type_=Text),
    agent_sessions.c.status == "running",
)
_COUNT = (
    select(func.count())
    .select_from(approvals.join(agent_sessions, agent_sessions.c.session_id == approvals.c.session_id))
    .where(_IS_OPEN)
)
_BY_ID = _ROWS.where(approvals.c.id == bindparam("approval", type_=Text))
_TICKET_OF = select(approvals.c.ticket_id).where(approvals.c.id == bindparam("approval", type_=Text))
_LINKS = (
    select(ledger_rows.c.body)
    .join(approvals, approvals.c.ticket_id == ledger_rows.c.ticket_id)
    .where(
        approvals.c.id == bindparam("approval", type_=Text),
        approvals.c.expires_at > bindparam("now", type_=Text),
        ledger_rows.c.kind == "approval_link",
    )
)
_OF_CALL = select(approvals.c.id).where(
    approvals.c.session_id == bindparam("session", type_=Text), approvals.c.call_id == bindparam("call", type_=Text)
)
_ANSWER = (
    update(approvals)
    .where(approvals.c.id == bindparam("approval", type_=Text), approvals.c.state == "pending")
    .values(
        state=bindparam("new", type_=Text),
        answered_at=bindparam("now", type_=Text),
        answered_by=bindparam("by", type_=Text),
        note=bindparam("said", type_=Text),
    )
)
_USE = (
    update(approvals)
    .where(
        approvals.c.id == bindparam("approval", type_=Text),
        approvals.c.ticket_id == bindparam("ticket", type_=Integer),
        approvals.c.session_id == bindparam("session", type_=Text),
        approvals.c.call_id == bindparam("call", type_=Text),
        approvals.c.tool == bindparam("name", type_=Text),
        approvals.c.arguments_hash == bindparam("digest", type_=Text),
        approvals.c.fence <= bindparam("own_fence", type_=Integer),
        approvals.c.state == "approved",
        approvals.c.expires_at > bindparam("now", type_=Text),
    )
    .values(state="used", used_at=bindparam("now", type_=Text))
    .returning(approvals.c.id)
)
_EXPIRE = (
    update(approvals)
    .where(
        approvals.c.id == bindparam("approval", type_=Text),
        approvals.c.state.in_(["pending", "approved"]),
        approvals.c.expires_at <= bindparam("now", type_=Text),
    )
    .values(state="expired")
    .returning(approvals.c.id)
)


class Question(NamedTuple):
    """One call that needs a person's word, and why."""

    call_id: str
    tool: str
    arguments: dict[str, Any]
    why: str


class Taken(NamedTuple):
    """What became of the attempt to use an answer.

    Attributes:
        state: ``used``: the call may start, now and once. ``pending``: nobody has answered. ``spent``: it was used
            before. ``unfit``: it was given for another call. ``canceled``: the ticket was.
        draft: What was journaled; only with ``used``.
    """

    state: Literal["used", "pending", "denied", "expired", "spent", "unfit", "canceled"]
    approval: Approval
    draft: Draft | None = None


class Approvals(TicketRows):
    """The questions of a store."""

    # ---- reading

    async def listed(
        self, *, pending: bool = True, ticket_id: int | None = None, session_id: str | None = None, limit: int = 100
    ) -> list[Approval]:
        """Questions; those that can be answered, the most urgent first, or all, the newest first."""
        statement: Select[Any] = _ROWS.limit(max(1, min(limit, _MANY)))
        if pending:
            statement = statement.where(_IS_OPEN).order_by(approvals.c.expires_at, approvals.c.id)
        else:
            statement = statement.order_by(approvals.c.asked_at.desc(), approvals.c.id)
        if ticket_id is not None:
            statement = statement.where(approvals.c.ticket_id == ticket_id)
        if session_id is not None:
            statement = statement.where(approvals.c.session_id == session_id)
        values = {"now": clock.iso()} if pending else {}
        return [_approval(row) for row in await self.database.fetch(statement, **values)]

    async def count_pending(self) -> int:
        """How many can be answered."""
        return int((await self.database.fetch(_COUNT, now=clock.iso()))[0][0])

    async def get(self, approval_id: str) -> Approval:
        """One question.

        Raises:
            NotFound: There is none with that id.
        """
        rows = await self.database.fetch(_BY_ID, approval=approval_id)
        if not rows:
            raise _unknown(approval_id)
        return _approval(rows[0])

    async def was_offered(self, approval_id: str, digest: str) -> bool:
        """Whether a link with that hash was made for the question, which has not expired yet."""
        rows = await self.database.fetch(_LINKS, approval=approval_id, now=clock.iso())
        bodies = [ledger.body_of(row) for row in rows]
        return any(body.get("approval") == approval_id and body.get("digest") == digest for body in bodies)

    # ---- a person

    async def offer(self, approval_id: str, digest: str, channel: str) -> bool:
        """Put on record that a link to the question goes out; False: there is none that anybody could answer.

        Args:
            digest: Hash of the link, which alone is kept.
            channel: Where it is sent.
        """
        async with self.database.begin() as c:
            row = (await c.execute(_BY_ID, {"approval": approval_id})).first()
            if row is None or (found := _approval(row)).state != "pending":
                return False
            await self._note(c, found, "link", digest=digest, reason=f"sent to {channel}", actor="notify")
        return True

    async def decide(self, approval_id: str, approve: bool, *, note: str = "", actor: str = "person") -> Approval:
        """Answer a question. The first answer counts; the same one again by the same person changes nothing.

        The session goes on if it waits for this, and then looks at the answer itself.

        Args:
            note: Told to the agent.
            actor: Who answers; in the ledger.

        Raises:
            NotFound: There is no such question.
            TransitionRefused: It was answered by now, its time is over, or its session has ended.
            ConfigError: The note is too long.
        """
        if len(note) > MAX_NOTE:
            raise ConfigError(f"The note has {len(note)} characters; {MAX_NOTE} is the most.")
        said = self.database.redactor.column(note.strip()) or None
        state: ApprovalState = "approved" if approve else "denied"
        now = clock.now()
        async with self.database.begin() as c:
            ticket_id = (await c.execute(_TICKET_OF, {"approval": approval_id})).scalar()
            if ticket_id is None:
                raise _unknown(approval_id)
            ticket = await self._lock(c, ticket_id)
            found = _approval((await c.execute(_BY_ID, {"approval": approval_id})).one(), now)
            given = "approved" if found.state == "used" else found.state
            if given == state and found.answered_by == actor and found.note == said:
                return found
            if found.state != "pending" or ticket.session_id != found.session_id:
                raise TransitionRefused(_why_not(found))
            answer = {"approval": approval_id, "new": state, "now": clock.iso(now), "by": actor, "said": said}
            await c.execute(_ANSWER, answer)
            await self._note(c, found, state, actor=actor, note=said)
            waiting = ticket.status is TicketStatus.WAITING_FOR_INPUT
            if waiting and ticket.reason == Reason.NEEDS_APPROVAL:
                keep = {"session_id": ticket.session_id}
                await self._move(c, ticket, TicketStatus.OPEN, Reason.ANSWERED, actor, **keep)
            else:
                await self._set(c, ticket_id, wake=tickets.c.wake + 1)
        return replace(found, state=state, answered_at=now, answered_by=actor, note=said)

    # ---- the worker

    async def ask(
        self, journal: Journal, questions: Sequence[Question], held: Sequence[str], expire_s: float
    ) -> list[Draft]:
        """Ask about calls that were not started, all or none.

        Args:
            held: Ids of all calls that wait now, in order: those, and what comes behind the first of them.

        Returns:
            What was journaled, one entry for each question.

        Raises:
            Fenced: Somebody else owns the ticket now.
            TransitionRefused: The id of a call was used for another one before.
        """
        claim = journal.claim
        assert claim is not None
        now = clock.now()
        ends = clock.iso(now + timedelta(seconds=expire_s))

        async def write(c: AsyncConnection, ticket: Row[Any]) -> list[Draft]:
            drafts = []
            for question in questions:
                call = {"session": journal.session_id, "call": question.call_id}
                if (await c.execute(_OF_CALL, call)).first() is not None:
                    raise TransitionRefused(f"The id {question.call_id!r} of a call was used before; make it again.")
                digest = arguments_hash(question.tool, question.arguments)
                row = {
                    "id": clock.new_id(),
                    "ticket_id": claim.ticket_id,
                    "session_id": journal.session_id,
                    "phase": journal.phase or "",
                    "call_id": question.call_id,
                    "tool": question.tool,
                    "arguments": stored_json(question.arguments),
                    "arguments_hash": digest,
                    "fence": claim.fence,
                    "why": question.why,
                    "state": "pending",
                    "asked_at": clock.iso(now),
                    "expires_at": ends,
                }
                await c.execute(insert(approvals), row)
                body = {"event": "asked", "approval": row["id"], "call": question.call_id, "held": list(held)}
                drafts.append(
                    Draft(
                        EntryKind.APPROVAL,
                        clip(f"a person is asked about {question.tool}: {question.why}"),
                        question.why,
                        tool_name=question.tool,
                        tool_use_id=question.call_id,
                        body={**body, "arguments_hash": digest, "expires_at": ends},
                    )
                )
                await ledger.append(
                    self.database,
                    c,
                    "approval_asked",
                    ticket_id=claim.ticket_id,
                    session_id=journal.session_id,
                    tool=question.tool,
                    why=question.why,
                    approval=row["id"],
                    call=question.call_id,
                    arguments_hash=digest,
                    expires_at=ends,
                )
            return drafts

        return await journal.append_with(write)

    async def take(
        self, journal: Journal, approval_id: str, call_id: str, tool: str, arguments: dict[str, Any], place: str
    ) -> Taken:
        """Use an answer, at the last moment before the call starts; it can be used once.

        Args:
            place: Where the call will run; journaled.

        Raises:
            Fenced: Somebody else owns the ticket now.
        """
        claim = journal.claim
        assert claim is not None
        now = clock.now()
        bound = {
            "approval": approval_id,
            "ticket": claim.ticket_id,
            "session": journal.session_id,
            "call": call_id,
            "name": tool,
            "digest": arguments_hash(tool, arguments),
            "own_fence": claim.fence,
            "now": clock.iso(now),
        }
        taken: Taken | None = None

        async def write(c: AsyncConnection, ticket: Row[Any]) -> list[Draft]:
            nonlocal taken
            if ticket.cancel_requested:
                taken = Taken("canceled", _approval((await c.execute(_BY_ID, {"approval": approval_id})).one(), now))
                return []
            used = (await c.execute(_USE, bound)).first() is not None
            row = (await c.execute(_BY_ID, {"approval": approval_id})).first()
            if row is None:
                raise _unknown(approval_id)
            found = _approval(row, now)
            if used:
                await self._note(c, found, "used", actor=f"worker:{claim.worker}", fence=claim.fence)
                text = f"{found.answered_by} approved this call" + (f": {found.note}" if found.note else "")
                body = {"event": "used", "approval": approval_id, "call": call_id, "place": place}
                by = {"by": found.answered_by, "note": found.note}
                draft = Draft(
                    EntryKind.APPROVAL, clip(text), text, tool_name=tool, tool_use_id=call_id, body={**body, **by}
                )
                taken = Taken("used", found, draft)
                return [draft]
            if found.state == "expired":
                expired = await c.execute(_EXPIRE, {"approval": approval_id, "now": clock.iso(now)})
                if expired.first() is not None:
                    await self._note(c, found, "expired", actor="clock")
            taken = Taken(_meaning(found.state), found)
            return []

        await journal.append_with(write)
        assert taken is not None
        return taken

    async def park(self, claim: Claim, approval_id: str) -> bool:
        """Wait for the answer, for days if need be: no process, no lease, no cost; wakes when the time is over.

        Returns:
            False when it was answered meanwhile, its time is over, a person canceled, or the ticket is not ours.
        """
        async with self.database.begin() as c:
            claims = Claims(self.database)
            try:
                ticket = await claims.hold_in(c, claim)
            except Fenced:
                return False
            now = clock.now()
            row = (await c.execute(_BY_ID, {"approval": approval_id})).first()
            found = None if row is None else _approval(row, now)
            if found is None or found.state != "pending" or ticket.cancel_requested:
                return False
            wait_ms = int((found.expires_at - now) / timedelta(milliseconds=1)) + _SPARE_MS
            await claims.rest_in(c, claim, ticket.session_id, Reason.NEEDS_APPROVAL, wait_ms)
            return True

    async def _note(self, c: AsyncConnection, approval: Approval, event: str, **more: Any) -> None:
        await ledger.append(
            self.database,
            c,
            f"approval_{event}",
            ticket_id=approval.ticket_id,
            session_id=approval.session_id,
            approval=approval.id,
            call=approval.call_id,
            tool=approval.tool,
            arguments_hash=approval.arguments_hash,
            **more,
        )


def _approval(row: Row[Any], now: datetime | None = None) -> Approval:
    """The question in a row; what nobody can answer or use any more is ``expired``."""
    values = {name: getattr(row, name) for name in Approval.__dataclass_fields__}
    for name in _TIMES:
        values[name] = clock.parse_iso(values[name]) if values[name] else None
    values["arguments"] = json.loads(values["arguments"])
    over = row.session_status != "running" or values["expires_at"] <= (now or clock.now())
    if over and values["state"] in ("pending", "approved"):
        values["state"] = "expired"
    return Approval(**values)


def _meaning(state: ApprovalState) -> Literal["pending", "denied", "expired", "spent", "unfit"]:
    if state in ("pending", "denied", "expired"):
        return state
    return "spent" if state == "used" else "unfit"


def _why_not(found: Approval) -> str:
    if found.state in ("approved", "used"):
        return f"{printable(found.answered_by or 'Somebody')} has approved this call already; nothing was changed."
    if found.state == "denied":
        return f"{printable(found.answered_by or 'Somebody')} has denied this call already; nothing was changed."
    return (
        f"The time for this answer is over, or its session has ended; look at ticket #{found.ticket_id} to see what "
        "became of it."
    )


def _unknown(approval_id: str) -> NotFound:
    return NotFound(
        f"There is no approval {clip(printable(approval_id), 40)!r}; list them with `operator approvals list`."
    )
