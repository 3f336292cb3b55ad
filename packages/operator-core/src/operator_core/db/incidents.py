"""Incidents in the store: what monitors report, what goes away by itself, and what a monitor remembers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import Boolean, Integer, Text, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger, samples
from operator_core.db.schema import monitor_states, tickets
from operator_core.db.ticket_rows import INSERT, ROW, TicketRows, as_json, ticket_of
from operator_core.errors import StoreError
from operator_core.model.invariant import CheckSpec
from operator_core.model.monitor import MonitorState
from operator_core.model.ticket import (
    TERMINAL,
    InvariantViolation,
    Reason,
    Ticket,
    TicketStatus,
    make_violation_key,
)

__all__ = ["Incidents", "Recorded"]

_CLOSED = [s.value for s in TERMINAL]
_RECUR = (
    update(tickets)
    .where(tickets.c.violation_key == bindparam("key"), tickets.c.status.not_in(_CLOSED))
    .values(
        occurrence_count=tickets.c.occurrence_count + bindparam("more", type_=Integer),
        message=bindparam("new_message", type_=Text),
        severity=bindparam("new_severity", type_=Text),
        last_seen_at=bindparam("seen", type_=Text),
        batch_key=bindparam("batch", type_=Text),
        flapping=bindparam("new_flapping", type_=Boolean),
        updated_at=bindparam("now", type_=Text),
    )
    .returning(*ROW)
)
_NEWEST_CLOSED = (
    select(*ROW)
    .where(tickets.c.violation_key == bindparam("key"), tickets.c.status.in_(_CLOSED))
    .order_by(tickets.c.id.desc())
    .limit(1)
    .with_for_update()
)
_CLEARABLE = select(*ROW).where(
    tickets.c.status.in_(["open", "queued"]),
    tickets.c.kind == "incident",
    tickets.c.held.is_(False),
    tickets.c.session_id.is_(None),
)


class Recorded(NamedTuple):
    """What became of a violation.

    Attributes:
        what: ``opened`` or ``reopened``; ``counted``, an open ticket has one more occurrence; ``seen``, it was known
            already; ``stands``, what was decided about this very episode stands.
    """

    ticket: Ticket
    what: Literal["opened", "reopened", "counted", "seen", "stands"]


class Incidents(TicketRows):
    """What monitors do with tickets."""

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
        for _ in range(8):
            try:
                async with self.database.begin() as c:
                    recorded = await self.record_in(
                        c,
                        violation,
                        metric_snapshot,
                        batch_key,
                        subject_context,
                        check=check,
                        flapping=flapping,
                    )
                    return recorded.ticket
            except IntegrityError:
                continue  # another monitor opened it between our look and our insert
        raise StoreError(
            f"The ticket for {make_violation_key(violation)} cannot be written; another process keeps changing it, "
            "try again."
        )

    async def record_in(
        self,
        c: AsyncConnection,
        violation: InvariantViolation,
        metric_snapshot: dict[str, Any] | None = None,
        batch_key: str | None = None,
        subject_context: str | None = None,
        *,
        check: CheckSpec | None = None,
        flapping: bool = False,
        again: bool = True,
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
        actor: str = "monitor",
    ) -> Recorded:
        """As :meth:`create_or_update_ticket`, in the caller's transaction.

        Args:
            again: Whether this is another occurrence. A repeated message about one that is known counts nothing, and
                reopens nothing that was resolved meanwhile: while the watch period lasts it may be old news.
            labels: Kept from the first time, like ``priority``.

        Raises:
            IntegrityError: Another process has just opened a ticket with this key; begin the transaction again.
        """
        key = make_violation_key(violation)
        fingerprint = violation.fingerprint or f"{key}|{violation.severity}|{check.digest if check else ''}"
        now = clock.now()
        clean = self.database.redactor
        common = {
            "message": clean.column(violation.message),
            "severity": violation.severity,
            "last_seen_at": clock.iso(violation.last_seen),
            "batch_key": batch_key,
            "flapping": flapping,
        }
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
                    "more": int(again),
                },
            )
        ).first()
        if found is not None:
            ticket = ticket_of(found)
            if ticket.status is TicketStatus.ESCALATED and ticket.fingerprint != fingerprint:
                moved = await self._move(
                    c, ticket, TicketStatus.OPEN, Reason.NEW_FINGERPRINT, actor, fingerprint=fingerprint
                )
                return Recorded(moved, "reopened")
            return Recorded(ticket, "counted" if again else "seen")
        row = (await c.execute(_NEWEST_CLOSED, {"key": key})).first()
        closed = ticket_of(row) if row is not None else None
        if closed is not None and _decided_by_hand(closed, violation):
            return Recorded(closed, "stands")
        if closed is not None and _is_watched(closed, now):
            if not again:
                return Recorded(closed, "stands")
            moved = await self._move(
                c,
                closed,
                TicketStatus.OPEN,
                Reason.RECURRED,
                actor,
                reopened_from=closed.session_id or closed.reopened_from,
                reopen_count=closed.reopen_count + 1,
                occurrence_count=closed.occurrence_count + 1,
                **common,
            )
            return Recorded(moved, "reopened")
        row = (
            await c.execute(
                INSERT,
                {
                    **common,
                    "violation_key": key,
                    "invariant_name": violation.invariant_name,
                    "store_id": violation.store_id,
                    "first_seen_at": clock.iso(violation.first_seen),
                    "metric_snapshot": as_json(clean.tree(metric_snapshot)),
                    "subject_context": clean.column(subject_context) if subject_context else None,
                    "fingerprint": fingerprint,
                    "check_spec": as_json(check.model_dump(mode="json")) if check else None,
                    "check_hash": check.digest if check else None,
                    "priority": priority,
                    "labels": as_json(clean.tree(dict(labels))) if labels else None,
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
            actor=actor,
            detail=common["message"],
        )
        await self.database.notify(c)
        return Recorded(ticket_of(row), "opened")

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
        """Remember these, and that there was a look at each; others stay as they are."""
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
            await samples.add_looks(self.database, c, states)


def _decided_by_hand(closed: Ticket, violation: InvariantViolation) -> bool:
    """Whether a person closed it during the very episode that is reported."""
    return (
        closed.reason == Reason.BY_HAND and closed.updated_at is not None and violation.first_seen <= closed.updated_at
    )


def _is_watched(closed: Ticket, now: datetime) -> bool:
    return closed.status is TicketStatus.RESOLVED and closed.watch_until is not None and closed.watch_until > now
