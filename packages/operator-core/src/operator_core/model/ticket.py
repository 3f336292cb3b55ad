"""Tickets, their states and the one table of allowed transitions."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from operator_core.errors import TransitionRefused

__all__ = [
    "DATAVERSE_CODES",
    "TERMINAL",
    "TRANSITIONS",
    "InvariantViolation",
    "Reason",
    "Ticket",
    "TicketKind",
    "TicketStatus",
    "check_transition",
    "make_violation_key",
    "plain_diagnosis",
]


class TicketKind(StrEnum):
    """Who opened the ticket: a monitor or alert (incident), or a person (task)."""

    INCIDENT = "incident"
    TASK = "task"


class TicketStatus(StrEnum):
    """The life cycle of ``design.md``; ``running`` means that a live lease exists."""

    OPEN = "open"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING_FOR_INPUT = "waiting_for_input"
    RESOLVED = "resolved"
    ESCALATED = "escalated"
    CANCELED = "canceled"


class Reason(StrEnum):
    """Why a ticket is where it is. Those up to ``LOST_WORKER`` are the reasons of an escalation."""

    GAVE_UP = "gave_up"
    REFUTED = "refuted"
    UNPROVEN = "unproven"
    INCONCLUSIVE = "inconclusive"
    ITERATIONS = "iterations"
    BUDGET = "budget"
    ERROR = "error"
    LOST_WORKER = "lost_worker"
    VERIFIED = "verified"
    BY_HAND = "by_hand"
    CLEARED = "cleared"
    VIOLATION = "violation"
    RECURRED = "recurred"
    NEW_FINGERPRINT = "new_fingerprint"
    CLAIMED = "claimed"
    RELEASED = "released"
    LEASE_EXPIRED = "lease_expired"
    ASKED_A_PERSON = "asked_a_person"
    NEEDS_APPROVAL = "needs_approval"
    ANSWERED = "answered"
    QUEUED = "queued"
    PROMOTED = "promoted"


DATAVERSE_CODES: dict[TicketStatus, int] = {
    TicketStatus.OPEN: 1,
    TicketStatus.QUEUED: 3,
    TicketStatus.RUNNING: 5,
    TicketStatus.WAITING_FOR_INPUT: 6,
    TicketStatus.RESOLVED: 7,
    TicketStatus.ESCALATED: 8,
    TicketStatus.CANCELED: 9,
}

TERMINAL = frozenset({TicketStatus.RESOLVED, TicketStatus.CANCELED})
"""States in which the same violation would open a new ticket. ``escalated`` is not among them: it is sticky."""

_S = TicketStatus
TRANSITIONS: dict[TicketStatus, frozenset[TicketStatus]] = {
    _S.OPEN: frozenset({_S.QUEUED, _S.RUNNING, _S.RESOLVED, _S.CANCELED}),
    _S.QUEUED: frozenset({_S.OPEN, _S.RUNNING, _S.RESOLVED, _S.CANCELED}),
    _S.RUNNING: frozenset({_S.OPEN, _S.WAITING_FOR_INPUT, _S.RESOLVED, _S.ESCALATED, _S.CANCELED}),
    _S.WAITING_FOR_INPUT: frozenset({_S.OPEN, _S.RESOLVED, _S.CANCELED}),
    _S.RESOLVED: frozenset({_S.OPEN}),
    _S.ESCALATED: frozenset({_S.OPEN, _S.RESOLVED, _S.CANCELED}),
    _S.CANCELED: frozenset({_S.OPEN}),
}


_MARKED = re.compile(r"ESCALATED: [a-z_]+:\s*")


def plain_diagnosis(diagnosis: str | None) -> str | None:
    """A diagnosis without the mark ``ESCALATED: reason:`` before it, for where state and reason stand beside it."""
    return None if diagnosis is None else _MARKED.sub("", diagnosis, count=1) if _MARKED.match(diagnosis) else diagnosis


def check_transition(ticket_id: int, old: TicketStatus, new: TicketStatus) -> None:
    """Raise :class:`TransitionRefused` unless the table allows ``old -> new``."""
    if new not in TRANSITIONS[old]:
        stands = f"{old} already" if new is old else f"{old} and cannot become {new}"
        raise TransitionRefused(f"Ticket #{ticket_id} is {stands}; see `operator tickets show {ticket_id}`.")


@dataclass(frozen=True)
class InvariantViolation:
    """One invariant that does not hold, as a checker reports it.

    Attributes:
        invariant_name: Name of the invariant.
        message: What is wrong, for people and for the model.
        first_seen: When this episode began (UTC-aware).
        last_seen: The newest observation that showed it (UTC-aware).
        store_id: The entity concerned, if there are several (the name is historical).
        severity: ``critical``, ``warning`` or ``info``.
        fingerprint: What makes this violation *this* one; a new value reopens an escalated ticket. None: the
            invariant's name, entity and severity.
    """

    invariant_name: str
    message: str
    first_seen: datetime
    last_seen: datetime
    store_id: str | None = None
    severity: str = "warning"
    fingerprint: str | None = None


def make_violation_key(violation: InvariantViolation) -> str:
    """``{invariant_name}:{store_id}``, or the name alone; two violations with one key are one incident."""
    if violation.store_id:
        return f"{violation.invariant_name}:{violation.store_id}"
    return violation.invariant_name


@dataclass
class Ticket:
    """One piece of work: an incident or a task. Times are UTC-aware.

    The fields up to ``updated_at`` are the seed's, in its order; the others belong to the queue and to verification.

    Attributes:
        held: A person keeps workers and the monitor's clean-up away from it.
        metric_snapshot: The observation that fired.
        fence: Grows by one with every claim; a write with an older fence is refused.
        check_spec: What counts as its proof, frozen by ``check_hash`` (SHA-256, hex) when it opened: the invariant of
            an incident (``CheckSpec``), the whole ``TaskSpec`` of a task.
        reopened_from: The session whose claimed fix did not last.
        watch_until: Until then the same violation reopens this ticket instead of opening a new one.
        flapping: The invariant changes state too often; the ticket stays open until it is quiet.
        pinned_to: Name of the only worker that may take it (`[worker] name`); None: any.
        cancel_now: The cancellation does not wait for a checkpoint: everything that runs is killed.
        labels: What the alert or the person says about it, by name; rules of notifications and filters use them.
    """

    id: int | None
    violation_key: str
    invariant_name: str
    message: str
    severity: str
    first_seen_at: datetime
    last_seen_at: datetime
    status: TicketStatus = TicketStatus.OPEN
    store_id: str | None = None
    held: bool = False
    batch_key: str | None = None
    occurrence_count: int = 1
    resolved_at: datetime | None = None
    diagnosis: str | None = None
    metric_snapshot: dict[str, Any] | None = None
    subject_context: str | None = None
    variant_model: str | None = None
    variant_system_prompt: str | None = None
    variant_tools_config: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    kind: TicketKind = TicketKind.INCIDENT
    reason: str | None = None
    priority: int = 0
    fence: int = 0
    owner: str | None = None
    cancel_requested: bool = False
    session_id: str | None = None
    fingerprint: str | None = None
    check_spec: dict[str, Any] | None = field(default=None, repr=False)
    check_hash: str | None = None
    reopen_count: int = 0
    reopened_from: str | None = None
    watch_until: datetime | None = None
    flapping: bool = False
    pinned_to: str | None = None
    cancel_now: bool = False
    labels: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: states as strings, times as ISO 8601."""
        out = asdict(self)
        for key, value in out.items():
            if isinstance(value, datetime):
                out[key] = value.isoformat()
            elif isinstance(value, StrEnum):
                out[key] = value.value
        return out
