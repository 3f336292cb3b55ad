"""``TicketDB``: what people do with tickets, and what monitors do (:mod:`operator_core.db.incidents`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Integer, Text, bindparam, insert, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.idempotency import Keys
from operator_core.db.incidents import Incidents
from operator_core.db.links import Links
from operator_core.db.messages import question_of, why_not_answered, why_not_heard, why_not_steered
from operator_core.db.schema import inbox, tickets
from operator_core.db.ticket_rows import BY_ID, INSERT, ROW, as_json, close_session_row, ticket_of
from operator_core.errors import ConfigError, NotFound, TransitionRefused
from operator_core.model.invariant import CheckSpec
from operator_core.model.task import MAX_PROMPT, TaskSpec
from operator_core.model.ticket import (
    TERMINAL,
    Reason,
    Ticket,
    TicketKind,
    TicketStatus,
)

__all__ = ["TicketDB"]

_LIST = (
    select(*ROW)
    .where(
        or_(bindparam("status", type_=Text).is_(None), tickets.c.status == bindparam("status", type_=Text)),
        or_(bindparam("kind", type_=Text).is_(None), tickets.c.kind == bindparam("kind", type_=Text)),
    )
    .order_by(tickets.c.id.desc())
    .limit(bindparam("limit", type_=Integer))
)

_GUID_HEAD = re.compile(r"[0-9a-f]{8}-", re.IGNORECASE)


def _task_key(link: tuple[str, str] | None) -> str:
    """A key of its own; it begins as the id elsewhere does, because the session folder is named by its first digits."""
    key = clock.new_id()
    found = _GUID_HEAD.match(link[1]) if link else None
    return f"task:{found[0][:8].lower()}{key[8:]}" if found else f"task:{key}"


class TicketDB(Incidents):
    """Tickets in a store.

    Args:
        where: An open :class:`Database`, or a path or URL that this object then opens and closes itself::

            async with TicketDB("operator.db") as db:
                open_tickets = await db.list_tickets("open")
    """

    async def open_ticket(
        self,
        invariant_name: str,
        message: str,
        *,
        severity: str = "warning",
        subject_context: str | None = None,
        check: CheckSpec | None = None,
        kind: TicketKind = TicketKind.INCIDENT,
        priority: int = 0,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        actor: str = "person",
        link: tuple[str, str] | None = None,
    ) -> Ticket:
        """Open a ticket by hand. Without a check its work can be done but never proved.

        Args:
            key: Violation key; None: one of its own, so that it is never merged with another ticket.
            link: As of :meth:`submit_task`.

        Raises:
            TransitionRefused: A ticket with that key is open already.
        """
        now = clock.iso()
        clean = self.database.redactor
        values = {
            "violation_key": key or f"{invariant_name}:{clock.new_id()[:8]}",
            "invariant_name": invariant_name,
            "message": clean.column(message),
            "severity": severity,
            "subject_context": clean.column(subject_context) if subject_context else None,
            "check_spec": as_json(check.model_dump(mode="json")) if check else None,
            "check_hash": check.digest if check else None,
            "kind": kind.value,
            "priority": priority,
            "labels": as_json(clean.tree(dict(labels))) if labels else None,
            "first_seen_at": now,
            "last_seen_at": now,
            "created_at": now,
            "updated_at": now,
        }
        try:
            async with self.database.begin() as c:
                linked = None if link is None else await self._ticket_of_link(c, link)
                if linked is not None:
                    return linked
                row = (await c.execute(INSERT, values)).one()
                if link is not None:
                    await Links(self.database).tie(c, *link, row.id)
                await ledger.append(
                    self.database, c, "transition", ticket_id=row.id, old=None, new="open", reason="opened", actor=actor
                )
                await self.database.notify(c)
                return ticket_of(row)
        except IntegrityError:
            raise TransitionRefused(
                f"A ticket for {values['violation_key']} is open already; find it with `operator tickets list`."
            ) from None

    async def submit_task(
        self,
        spec: TaskSpec,
        *,
        priority: int = 0,
        pinned_to: str | None = None,
        labels: Mapping[str, str] | None = None,
        actor: str = "person",
        link: tuple[str, str] | None = None,
    ) -> Ticket:
        """Open a task; :func:`operator_core.work.submit.submit_task` makes its spec.

        Args:
            spec: Frozen with the ticket; its digest is also in the ledger, which nobody can change.
            pinned_to: Name of the only worker that may take it; None: any.
            link: Source and id of what it stands for elsewhere (:mod:`operator_core.db.links`). A second submission
                with the same link opens nothing: it is answered with the ticket of the first one.

        Raises:
            ConfigError: Something in the spec looks like a secret, which is never stored.
        """
        async with self.database.begin() as c:
            linked = None if link is None else await self._ticket_of_link(c, link)
            if linked is not None:
                return linked
            return await self.submit_task_in(
                c, spec, priority=priority, pinned_to=pinned_to, labels=labels, actor=actor, link=link
            )

    async def submit_task_in(
        self,
        c: AsyncConnection,
        spec: TaskSpec,
        *,
        priority: int = 0,
        pinned_to: str | None = None,
        labels: Mapping[str, str] | None = None,
        actor: str = "person",
        link: tuple[str, str] | None = None,
    ) -> Ticket:
        """As :meth:`submit_task`, in the caller's transaction, who has locked the link and found no ticket in it."""
        stored = spec.model_dump(mode="json")
        clean = self.database.redactor
        if clean.tree(stored) != stored:
            raise ConfigError(
                "Something in this task looks like a secret, which would be stored; take it out, and let the check "
                "read it from a file."
            )
        now = clock.iso()
        values = {
            "violation_key": _task_key(link),
            "invariant_name": clean.column(spec.name),
            "message": clean.column(spec.prompt),
            "severity": "info",
            "check_spec": as_json(stored),
            "check_hash": spec.digest,
            "kind": TicketKind.TASK.value,
            "priority": priority,
            "pinned_to": pinned_to,
            "labels": as_json(clean.tree(dict(labels))) if labels else None,
            "first_seen_at": now,
            "last_seen_at": now,
            "created_at": now,
            "updated_at": now,
        }
        row = (await c.execute(INSERT, values)).one()
        if link is not None:
            await Links(self.database).tie(c, *link, row.id)
        await ledger.append(
            self.database,
            c,
            "transition",
            ticket_id=row.id,
            old=None,
            new="open",
            reason="submitted",
            actor=actor,
            check_hash=spec.digest,
        )
        await self.database.notify(c)
        return ticket_of(row)

    async def _ticket_of_link(self, c: AsyncConnection, link: tuple[str, str]) -> Ticket | None:
        links = Links(self.database)
        # Made first, so that of two that submit at once the second one waits here and finds the ticket of the first.
        await links.begin_in(c, *link, owner="", state={})
        found = await links.lock(c, *link)
        return None if found is None or found.ticket_id is None else await self._lock(c, found.ticket_id)

    async def get_ticket(self, ticket_id: int) -> Ticket:
        """One ticket.

        Raises:
            NotFound: There is none with that number.
        """
        rows = await self.database.fetch(BY_ID, ticket=ticket_id)
        if not rows:
            raise NotFound(f"There is no ticket #{ticket_id}; list them with `operator tickets list`.")
        return ticket_of(rows[0])

    async def list_tickets(
        self, status: TicketStatus | str | None = None, *, kind: TicketKind | str | None = None, limit: int = 1000
    ) -> list[Ticket]:
        """Tickets, newest first."""
        return [ticket_of(r) for r in await self.database.fetch(_LIST, status=status, kind=kind, limit=limit)]

    async def hold_ticket(self, ticket_id: int, *, actor: str = "person") -> Ticket:
        """Keep workers and the monitor's clean-up away from a ticket. A session that runs already goes on."""
        return await self._set_held(ticket_id, True, actor)

    async def unhold_ticket(self, ticket_id: int, *, actor: str = "person") -> Ticket:
        """Give it back."""
        return await self._set_held(ticket_id, False, actor)

    async def _set_held(self, ticket_id: int, held: bool, actor: str) -> Ticket:
        async with self.database.begin() as c:
            ticket = await self._lock(c, ticket_id)
            if ticket.status in TERMINAL:
                raise TransitionRefused(f"Ticket #{ticket_id} is {ticket.status}; only an open one can be held.")
            await ledger.append(self.database, c, "held" if held else "unheld", ticket_id=ticket_id, actor=actor)
            await self.database.notify(c)
            return await self._set(c, ticket_id, held=held)

    async def resolve_ticket(self, ticket_id: int, *, note: str = "", actor: str = "person") -> Ticket:
        """A person says it is done; recorded as such, and it overrides a hold.

        Raises:
            TransitionRefused: A session is running (cancel it first), or the ticket is closed.
        """
        now = clock.now()
        async with self.database.begin() as c:
            ticket = await self._lock(c, ticket_id)
            if ticket.status is TicketStatus.RUNNING:
                raise TransitionRefused(
                    f"A session works on ticket #{ticket_id}; stop it first with `operator tickets cancel {ticket_id}`."
                )
            if ticket.session_id:
                await close_session_row(self.database, c, ticket.session_id, "canceled", "a person resolved the ticket")
            watch = float(((ticket.check_spec or {}).get("invariant") or {}).get("watch_s", 0))
            extra: dict[str, Any] = {"diagnosis": self.database.redactor.column(note)} if note else {}
            return await self._move(
                c,
                ticket,
                TicketStatus.RESOLVED,
                Reason.BY_HAND,
                actor,
                held=False,
                resolved_at=clock.iso(now),
                watch_until=clock.iso(now + timedelta(seconds=watch)) if watch else None,
                **extra,
            )

    async def cancel_ticket(self, ticket_id: int, *, now: bool = False, actor: str = "person") -> Ticket:
        """Cancel; it wins over any late result. A running session is asked to stop and then ends as canceled.

        Args:
            now: A running session does not stop at its next checkpoint only: everything that it runs is killed.
        """
        async with self.database.begin() as c:
            ticket = await self._lock(c, ticket_id)
            if ticket.status is TicketStatus.RUNNING:
                await ledger.append(self.database, c, "cancel_requested", ticket_id=ticket_id, actor=actor, now=now)
                await self.database.notify(c)
                asked = {"cancel_requested": True, "cancel_now": now or ticket.cancel_now}
                return await self._set(c, ticket_id, **asked, wake=tickets.c.wake + 1)
            if ticket.session_id:
                await close_session_row(self.database, c, ticket.session_id, "canceled", "canceled by a person")
            return await self._move(c, ticket, TicketStatus.CANCELED, Reason.BY_HAND, actor)

    async def reopen_ticket(self, ticket_id: int, *, actor: str = "person") -> Ticket:
        """Give a closed or escalated ticket to the workers again; the next claim starts a new session.

        Raises:
            TransitionRefused: It is not closed, or another ticket with its key is open.
        """
        try:
            async with self.database.begin() as c:
                ticket = await self._lock(c, ticket_id)
                if ticket.status not in TERMINAL | {TicketStatus.ESCALATED}:
                    # The table allows it, for a worker that gives a ticket back; a person would tear it away.
                    raise TransitionRefused(
                        f"Ticket #{ticket_id} is {ticket.status}; only a closed or escalated one can be reopened."
                    )
                count = ticket.reopen_count + 1
                return await self._move(
                    c, ticket, TicketStatus.OPEN, Reason.BY_HAND, actor, held=False, reopen_count=count
                )
        except IntegrityError:
            raise TransitionRefused(
                f"Another ticket for the same violation is open, so ticket #{ticket_id} stays closed."
            ) from None

    async def update_diagnosis(self, ticket_id: int, text: str) -> Ticket:
        """Store what was found out; the state does not change by it."""
        async with self.database.begin() as c:
            await self._lock(c, ticket_id)
            return await self._set(c, ticket_id, diagnosis=self.database.redactor.column(text))

    async def send(self, ticket_id: int, message: str, *, actor: str = "person") -> TicketStatus:
        """Leave a message for the ticket's session; one that waits for input becomes claimable and goes on.

        For programs: what people say goes through :meth:`reply` and :meth:`steer`, which know when the other one is
        meant. A session that has not begun yet reads it when it does.

        Returns:
            The state after it.

        Raises:
            TransitionRefused: The ticket is closed or escalated, so nobody would read it.
            ConfigError: It says nothing, or too much.
        """
        return await self._send(ticket_id, message, actor, why_not_heard)

    async def reply(
        self, ticket_id: int, text: str, *, actor: str = "person", key: tuple[str, str] | None = None
    ) -> TicketStatus:
        """Answer the question of a session that waits for input: the same session goes on.

        Args:
            key: Principal and idempotency key (:mod:`operator_core.db.idempotency`): said again with the same one, it
                changes nothing.

        Raises:
            TransitionRefused: It does not wait for an answer.
            ConfigError: The answer says nothing, or too much.
        """
        return await self._send(ticket_id, text, actor, why_not_answered, key)

    async def steer(
        self, ticket_id: int, text: str, *, actor: str = "person", key: tuple[str, str] | None = None
    ) -> TicketStatus:
        """Say something to a session that works, or will go on working, without being asked.

        Args:
            key: As of :meth:`reply`.

        Raises:
            TransitionRefused: It waits for an answer, has not begun, or has ended.
            ConfigError: The text says nothing, or too much.
        """
        return await self._send(ticket_id, text, actor, why_not_steered, key)

    async def _send(
        self,
        ticket_id: int,
        message: str,
        actor: str,
        refuse: Callable[[Ticket, str | None], str | None],
        key: tuple[str, str] | None = None,
    ) -> TicketStatus:
        if not message.strip():
            raise ConfigError("The message must say something; write it behind the number of the ticket.")
        if len(message) > MAX_PROMPT:
            raise ConfigError(f"The message has {len(message)} characters; {MAX_PROMPT} is the most.")
        now = clock.iso()
        async with self.database.begin() as c:
            # The lock comes first: a session that is about to park then sees the counter move.
            ticket = await self._lock(c, ticket_id)
            if key is not None and not await Keys(self.database).use(c, *key):
                return ticket.status
            if refused := refuse(ticket, await question_of(c, ticket)):
                raise TransitionRefused(refused)
            body = json.dumps({"text": self.database.redactor.column(message), "actor": actor})
            await c.execute(insert(inbox).values(ticket_id=ticket_id, body=body, created_at=now))
            await ledger.append(self.database, c, "message", ticket_id=ticket_id, actor=actor)
            await self._set(c, ticket_id, wake=tickets.c.wake + 1)
            if ticket.status is not TicketStatus.WAITING_FOR_INPUT:
                return ticket.status
            keep = {"session_id": ticket.session_id}
            return (await self._move(c, ticket, TicketStatus.OPEN, Reason.ANSWERED, actor, **keep)).status
