"""``TicketDB``: what monitors and people do with tickets. Claims and leases are in :mod:`operator_core.db.queue`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Boolean, Integer, Text, bindparam, insert, or_, select, update
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.client import StoreClient
from operator_core.db.engine import Database
from operator_core.db.messages import why_not_answered, why_not_heard, why_not_steered
from operator_core.db.schema import agent_sessions, inbox, monitor_states, tickets
from operator_core.errors import ConfigError, NotFound, StoreError, TransitionRefused
from operator_core.model.entry import stored_json
from operator_core.model.invariant import CheckSpec
from operator_core.model.monitor import MonitorState
from operator_core.model.task import MAX_PROMPT, TaskSpec
from operator_core.model.ticket import (
    TERMINAL,
    InvariantViolation,
    Reason,
    Ticket,
    TicketKind,
    TicketStatus,
    check_transition,
    make_violation_key,
)

__all__ = ["TicketDB", "close_session_row", "ticket_of"]

_TIMES = ("first_seen_at", "last_seen_at", "resolved_at", "created_at", "updated_at", "watch_until")
_FIELDS = tuple(Ticket.__dataclass_fields__)
_CLOSED = [s.value for s in TERMINAL]
_ROW = [tickets.c[name] for name in _FIELDS]

_BY_ID = select(*_ROW).where(tickets.c.id == bindparam("ticket", type_=Integer))
_LOCKED = _BY_ID.with_for_update()
_LIST = (
    select(*_ROW)
    .where(
        or_(bindparam("status", type_=Text).is_(None), tickets.c.status == bindparam("status", type_=Text)),
        or_(bindparam("kind", type_=Text).is_(None), tickets.c.kind == bindparam("kind", type_=Text)),
    )
    .order_by(tickets.c.id.desc())
    .limit(bindparam("limit", type_=Integer))
)
_RECUR = (
    update(tickets)
    .where(tickets.c.violation_key == bindparam("key"), tickets.c.status.not_in(_CLOSED))
    .values(
        occurrence_count=tickets.c.occurrence_count + 1,
        message=bindparam("new_message", type_=Text),
        severity=bindparam("new_severity", type_=Text),
        last_seen_at=bindparam("seen", type_=Text),
        batch_key=bindparam("batch", type_=Text),
        flapping=bindparam("new_flapping", type_=Boolean),
        updated_at=bindparam("now", type_=Text),
    )
    .returning(*_ROW)
)
_NEWEST_CLOSED = (
    select(*_ROW)
    .where(tickets.c.violation_key == bindparam("key"), tickets.c.status.in_(_CLOSED))
    .order_by(tickets.c.id.desc())
    .limit(1)
    .with_for_update()
)
_INSERT = insert(tickets).returning(*_ROW)
_CLEARABLE = select(*_ROW).where(
    tickets.c.status.in_(["open", "queued"]),
    tickets.c.kind == "incident",
    tickets.c.held.is_(False),
    tickets.c.session_id.is_(None),
)
_CLOSE_SESSION = (
    update(agent_sessions)
    .where(agent_sessions.c.session_id == bindparam("session"), agent_sessions.c.status == "running")
    .values(
        status=bindparam("new_status", type_=Text),
        ended_at=bindparam("now", type_=Text),
        outcome_summary=bindparam("summary", type_=Text),
    )
    .returning(agent_sessions.c.ticket_id, agent_sessions.c.head_seq, agent_sessions.c.head_hash)
)


def ticket_of(row: Row[Any]) -> Ticket:
    """The ticket in a row that holds at least the ticket's columns."""
    values = {name: getattr(row, name) for name in _FIELDS}
    for name in _TIMES:
        values[name] = clock.parse_iso(values[name]) if values[name] else None
    for name in ("metric_snapshot", "check_spec"):
        values[name] = json.loads(values[name]) if values[name] else None
    values["status"] = TicketStatus(values["status"])
    values["kind"] = TicketKind(values["kind"])
    return Ticket(**values)


class TicketDB(StoreClient):
    """Tickets in a store.

    Args:
        where: An open :class:`Database`, or a path or URL that this object then opens and closes itself::

            async with TicketDB("operator.db") as db:
                open_tickets = await db.list_tickets("open")
    """

    # ---- monitors

    async def create_or_update_ticket(
        self,
        violation: InvariantViolation,
        metric_snapshot: dict[str, Any] | None = None,
        batch_key: str | None = None,
        subject_context: str | None = None,
        *,
        check: CheckSpec | None = None,
        flapping: bool = False,
    ) -> Ticket:
        """Record a violation: one incident per key, however many monitors report it.

        An open ticket counts one more occurrence. An escalated one stays escalated, unless the violation's fingerprint
        is new. A ticket resolved less than its watch period ago is reopened and linked to the session that claimed the
        fix. If a person canceled or resolved a ticket during this very episode, that stands: nothing is opened, and
        that ticket is returned.

        Args:
            metric_snapshot: The observation that fired; kept from the first time.
            check: The invariant, frozen into the ticket; what a repair is verified against.
        """
        key = make_violation_key(violation)
        check_hash = check.digest if check else None
        fingerprint = violation.fingerprint or f"{key}|{violation.severity}|{check_hash or ''}"
        for _ in range(8):
            try:
                return await self._record(
                    violation, key, fingerprint, metric_snapshot, batch_key, subject_context, check, flapping
                )
            except IntegrityError:
                continue  # another monitor opened it between our look and our insert
        raise StoreError(f"The ticket for {key} cannot be written; another process keeps changing it, try again.")

    async def _record(
        self,
        violation: InvariantViolation,
        key: str,
        fingerprint: str,
        metric_snapshot: dict[str, Any] | None,
        batch_key: str | None,
        subject_context: str | None,
        check: CheckSpec | None,
        flapping: bool,
    ) -> Ticket:
        now = clock.now()
        clean = self.database.redactor
        common = {
            "message": clean.column(violation.message),
            "severity": violation.severity,
            "last_seen_at": clock.iso(violation.last_seen),
            "batch_key": batch_key,
            "flapping": flapping,
        }
        async with self.database.begin() as c:
            found = (
                await c.execute(
                    _RECUR,
                    {
                        "key": key,
                        "new_message": common["message"],
                        "new_severity": violation.severity,
                        "seen": common["last_seen_at"],
                        "batch": batch_key,
                        "new_flapping": flapping,
                        "now": clock.iso(now),
                    },
                )
            ).first()
            if found is not None:
                ticket = ticket_of(found)
                if ticket.status is TicketStatus.ESCALATED and ticket.fingerprint != fingerprint:
                    return await self._move(
                        c, ticket, TicketStatus.OPEN, Reason.NEW_FINGERPRINT, "monitor", fingerprint=fingerprint
                    )
                return ticket
            row = (await c.execute(_NEWEST_CLOSED, {"key": key})).first()
            closed = ticket_of(row) if row is not None else None
            if closed is not None and _decided_by_hand(closed, violation):
                return closed
            if closed is not None and _is_watched(closed, now):
                return await self._move(
                    c,
                    closed,
                    TicketStatus.OPEN,
                    Reason.RECURRED,
                    "monitor",
                    reopened_from=closed.session_id or closed.reopened_from,
                    reopen_count=closed.reopen_count + 1,
                    occurrence_count=closed.occurrence_count + 1,
                    **common,
                )
            row = (
                await c.execute(
                    _INSERT,
                    {
                        **common,
                        "violation_key": key,
                        "invariant_name": violation.invariant_name,
                        "store_id": violation.store_id,
                        "first_seen_at": clock.iso(violation.first_seen),
                        "metric_snapshot": _json(clean.tree(metric_snapshot)),
                        "subject_context": clean.column(subject_context) if subject_context else None,
                        "fingerprint": fingerprint,
                        "check_spec": _json(check.model_dump(mode="json")) if check else None,
                        "check_hash": check.digest if check else None,
                        "created_at": clock.iso(now),
                        "updated_at": clock.iso(now),
                    },
                )
            ).one()
            await ledger.append(
                self.database,
                c,
                "transition",
                ticket_id=row.id,
                old=None,
                new="open",
                reason=Reason.VIOLATION.value,
                actor="monitor",
                detail=common["message"],
            )
            await self.database.notify(c)
            return ticket_of(row)

    async def auto_resolve_cleared(
        self,
        current_keys: set[str],
        *,
        unknown_keys: set[str] | frozenset[str] = frozenset(),
        only_keys: set[str] | frozenset[str] | None = None,
    ) -> int:
        """Close incidents whose violation went away before anybody worked on them; returns how many.

        They end ``canceled`` with the reason ``cleared``: nothing was repaired, so nothing is called resolved. Held and
        escalated tickets, and those a session has touched, are left alone.

        Args:
            current_keys: Keys that are still violated (or not yet green for long enough).
            unknown_keys: Keys that could not be looked at: unknown is not healthy.
            only_keys: Consider only these (a monitor speaks for its own subject); None: all.
        """
        count = 0
        async with self.database.begin() as c:
            for row in (await c.execute(_CLEARABLE.with_for_update())).all():
                key = row.violation_key
                if key in current_keys or key in unknown_keys or (only_keys is not None and key not in only_keys):
                    continue
                await self._move(c, ticket_of(row), TicketStatus.CANCELED, Reason.CLEARED, "monitor")
                count += 1
        return count

    async def monitor_states(self) -> dict[str, MonitorState]:
        """What monitors remember, by violation key."""
        return {
            r.violation_key: MonitorState(
                r.violation_key,
                r.invariant_name,
                r.light,
                clock.parse_iso(r.since),
                clock.parse_iso(r.first_seen) if r.first_seen else None,
                tuple(clock.parse_iso(t) for t in json.loads(r.changes)),
                r.greens,
                r.last_value,
                clock.parse_iso(r.updated_at),
            )
            for r in await self.database.fetch(select(monitor_states))
        }

    async def save_monitor_states(self, states: list[MonitorState]) -> None:
        """Remember these; others stay as they are."""
        for _ in range(8):
            try:
                return await self._save_states(states)
            except IntegrityError:
                continue  # another monitor saved a new key between our look and our insert
        raise StoreError("What the monitor saw cannot be written; another process keeps changing it, try again.")

    async def _save_states(self, states: list[MonitorState]) -> None:
        async with self.database.begin() as c:
            for state in sorted(states, key=lambda s: s.violation_key):
                values = {
                    "invariant_name": state.invariant_name,
                    "light": state.light,
                    "since": clock.iso(state.since),
                    "first_seen": clock.iso(state.first_seen) if state.first_seen else None,
                    "changes": json.dumps([clock.iso(t) for t in state.changes]),
                    "greens": state.greens,
                    "last_value": self.database.redactor.column(state.last_value) if state.last_value else None,
                    "updated_at": clock.iso(state.updated_at),
                }
                key = monitor_states.c.violation_key == state.violation_key
                done = await c.execute(
                    update(monitor_states).where(key).values(**values).returning(monitor_states.c.violation_key)
                )
                if done.first() is None:
                    await c.execute(insert(monitor_states).values(violation_key=state.violation_key, **values))

    # ---- people

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
        actor: str = "person",
    ) -> Ticket:
        """Open a ticket by hand. Without a check its work can be done but never proved.

        Args:
            key: Violation key; None: one of its own, so that it is never merged with another ticket.

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
            "check_spec": _json(check.model_dump(mode="json")) if check else None,
            "check_hash": check.digest if check else None,
            "kind": kind.value,
            "priority": priority,
            "first_seen_at": now,
            "last_seen_at": now,
            "created_at": now,
            "updated_at": now,
        }
        try:
            async with self.database.begin() as c:
                row = (await c.execute(_INSERT, values)).one()
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
        self, spec: TaskSpec, *, priority: int = 0, pinned_to: str | None = None, actor: str = "person"
    ) -> Ticket:
        """Open a task; :func:`operator_core.work.submit.submit_task` makes its spec.

        Args:
            spec: Frozen with the ticket; its digest is also in the ledger, which nobody can change.
            pinned_to: Name of the only worker that may take it; None: any.

        Raises:
            ConfigError: Something in the spec looks like a secret, which is never stored.
        """
        stored = spec.model_dump(mode="json")
        clean = self.database.redactor
        if clean.tree(stored) != stored:
            raise ConfigError(
                "Something in this task looks like a secret, which would be stored; take it out, and let the check "
                "read it from a file."
            )
        now = clock.iso()
        values = {
            "violation_key": f"task:{clock.new_id()}",
            "invariant_name": clean.column(spec.name),
            "message": clean.column(spec.prompt),
            "severity": "info",
            "check_spec": _json(stored),
            "check_hash": spec.digest,
            "kind": TicketKind.TASK.value,
            "priority": priority,
            "pinned_to": pinned_to,
            "first_seen_at": now,
            "last_seen_at": now,
            "created_at": now,
            "updated_at": now,
        }
        async with self.database.begin() as c:
            row = (await c.execute(_INSERT, values)).one()
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

    async def get_ticket(self, ticket_id: int) -> Ticket:
        """One ticket.

        Raises:
            NotFound: There is none with that number.
        """
        rows = await self.database.fetch(_BY_ID, ticket=ticket_id)
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

    async def reply(self, ticket_id: int, text: str, *, actor: str = "person") -> TicketStatus:
        """Answer the question of a session that waits for input: the same session goes on.

        Raises:
            TransitionRefused: It does not wait for an answer.
            ConfigError: The answer says nothing, or too much.
        """
        return await self._send(ticket_id, text, actor, why_not_answered)

    async def steer(self, ticket_id: int, text: str, *, actor: str = "person") -> TicketStatus:
        """Say something to a session that works, or will go on working, without being asked.

        Raises:
            TransitionRefused: It waits for an answer, has not begun, or has ended.
            ConfigError: The text says nothing, or too much.
        """
        return await self._send(ticket_id, text, actor, why_not_steered)

    async def _send(
        self, ticket_id: int, message: str, actor: str, refuse: Callable[[Ticket], str | None]
    ) -> TicketStatus:
        if not message.strip():
            raise ConfigError("The message must say something; write it behind the number of the ticket.")
        if len(message) > MAX_PROMPT:
            raise ConfigError(f"The message has {len(message)} characters; {MAX_PROMPT} is the most.")
        now = clock.iso()
        async with self.database.begin() as c:
            # The lock comes first: a session that is about to park then sees the counter move.
            ticket = await self._lock(c, ticket_id)
            if refused := refuse(ticket):
                raise TransitionRefused(refused)
            body = json.dumps({"text": self.database.redactor.column(message), "actor": actor})
            await c.execute(insert(inbox).values(ticket_id=ticket_id, body=body, created_at=now))
            await ledger.append(self.database, c, "message", ticket_id=ticket_id, actor=actor)
            await self._set(c, ticket_id, wake=tickets.c.wake + 1)
            if ticket.status is not TicketStatus.WAITING_FOR_INPUT:
                return ticket.status
            keep = {"session_id": ticket.session_id}
            return (await self._move(c, ticket, TicketStatus.OPEN, Reason.ANSWERED, actor, **keep)).status

    # ---- inside a transaction

    async def _lock(self, c: AsyncConnection, ticket_id: int) -> Ticket:
        row = (await c.execute(_LOCKED, {"ticket": ticket_id})).first()
        if row is None:
            raise NotFound(f"There is no ticket #{ticket_id}; list them with `operator tickets list`.")
        return ticket_of(row)

    async def _set(self, c: AsyncConnection, ticket_id: int, **values: Any) -> Ticket:
        statement = (
            update(tickets).where(tickets.c.id == ticket_id).values(updated_at=clock.iso(), **values).returning(*_ROW)
        )
        return ticket_of((await c.execute(statement)).one())

    async def _move(
        self, c: AsyncConnection, ticket: Ticket, new: TicketStatus, reason: Reason, actor: str, **values: Any
    ) -> Ticket:
        assert ticket.id is not None
        check_transition(ticket.id, ticket.status, new)
        if new is TicketStatus.OPEN:
            # A new attempt: the old session stays in the journal, linked by the ledger.
            values = {
                "session_id": None,
                "resolved_at": None,
                "watch_until": None,
                "cancel_requested": False,
                "cancel_now": False,
                "run_at": 0,
                **values,
            }
        moved = await self._set(c, ticket.id, status=new.value, reason=reason.value, **values)
        await ledger.append(
            self.database,
            c,
            "transition",
            ticket_id=ticket.id,
            session_id=ticket.session_id,
            old=ticket.status.value,
            new=new.value,
            reason=reason.value,
            actor=actor,
        )
        if new is TicketStatus.OPEN:
            await self.database.notify(c)
        return moved


async def close_session_row(database: Database, c: AsyncConnection, session_id: str, status: str, summary: str) -> bool:
    """Close a running session in the caller's transaction and anchor the head of its journal in the ledger.

    Returns:
        False when it was closed already.
    """
    clean = database.redactor.column(summary)
    now = clock.iso()
    row = (
        await c.execute(_CLOSE_SESSION, {"session": session_id, "new_status": status, "now": now, "summary": clean})
    ).first()
    if row is None:
        return False
    await ledger.append(
        database,
        c,
        "session_closed",
        ticket_id=row.ticket_id,
        session_id=session_id,
        status=status,
        ended_at=now,
        summary=clean,
        head_seq=row.head_seq,
        head_hash=row.head_hash,
    )
    return True


def _decided_by_hand(closed: Ticket, violation: InvariantViolation) -> bool:
    """Whether a person closed it during the very episode that is reported."""
    return (
        closed.reason == Reason.BY_HAND and closed.updated_at is not None and violation.first_seen <= closed.updated_at
    )


def _is_watched(closed: Ticket, now: datetime) -> bool:
    return closed.status is TicketStatus.RESOLVED and closed.watch_until is not None and closed.watch_until > now


def _json(value: Any) -> str | None:
    return None if value is None else stored_json(value, str)
