"""Tickets: as they are listed, with all there is to know, and what was judged, asked and said about them."""

# Pydantic copies the lists and dicts that are defaults.
# ruff: noqa: RUF012
from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from operator_core.api.models.sessions import SessionView
from operator_core.api.models.shape import Shape, Spent
from operator_core.model.approval import ApprovalState
from operator_core.model.second_look import SecondLookState
from operator_core.model.ticket import TicketKind, TicketStatus

__all__ = [
    "ApprovalView",
    "Before",
    "HistoryEvent",
    "Needs",
    "Observed",
    "ReportView",
    "SecondLookView",
    "TicketBrief",
    "TicketDetail",
    "TicketView",
    "VerdictView",
]

Needs = Literal["answer", "approval", "decision"]
"""What a ticket needs of a person: an answer to its question, a word on a call, or a decision after an escalation."""


class TicketView(Shape):
    """A ticket as it is listed."""

    id: int
    kind: TicketKind
    status: TicketStatus
    reason: str | None = None
    invariant_name: str
    """Of a task: its name."""
    message: str
    """Of a task: its prompt. In lists at most 500 characters."""
    severity: str
    labels: dict[str, str] = {}
    priority: int = 0
    held: bool = False
    flapping: bool = False
    pinned_to: str | None = None
    occurrence_count: int = 1
    reopen_count: int = 0
    first_seen_at: datetime
    last_seen_at: datetime
    updated_at: datetime | None = None
    resolved_at: datetime | None = None
    session_id: str | None = None
    """Of the attempt that runs or rests; None: none does."""
    cancel_requested: bool = False
    needs: Needs | None = None
    worker: str | None = None
    """Name of the worker that has it."""
    phase: str | None = None
    doing: str | None = None
    """The last command, the question, or why it needs a person; one line."""
    spent: Spent = Spent()
    verdict: str | None = None
    """Kind of the newest verdict."""


class HistoryEvent(Shape):
    """One row of the ledger about a ticket."""

    seq: int
    at: datetime
    kind: str
    old: str | None = None
    new: str | None = None
    reason: str | None = None
    actor: str | None = None
    session_id: str | None = None
    detail: dict[str, Any] = {}


class Observed(Shape):
    """What an alert's sender said last about a ticket, for example that it went away: it proves nothing."""

    said: str
    by: str | None = None
    """Who, for example ``alerts (intake)``."""
    at: datetime
    """When it came."""
    detail: dict[str, Any] = {}


class TicketBrief(Shape):
    """What a ticket is about, for whoever has to decide about a call of its agent."""

    kind: TicketKind
    status: TicketStatus
    invariant_name: str
    """Of a task: its name."""
    message: str
    """Of a task: its prompt. At most 500 characters."""
    severity: str
    labels: dict[str, str] = {}
    observed: Observed | None = None
    """None: nobody said anything since the incident was seen last."""


class Before(Shape):
    """What the platform saw before an attempt began to work; by its journal, so it is there before any verdict."""

    session_id: str
    seq: int
    """Sequence of its entry."""
    at: datetime
    seen_red: bool | None = None
    """Of an incident: whether the violation was seen before the work. None: a task."""
    observation: dict[str, Any] | None = None
    """Of an incident: what its probe saw; None: it has none, or an alert or a plug-in saw it."""
    checks: list[dict[str, str]] = []
    """Of a task, of each check: ``command`` and how it ``was``: ``red``, ``green``, ``vacuous`` (green even in an empty
    folder) or ``could_not_look``.
    """


class VerdictView(Shape):
    """One decision of the platform; see :class:`operator_core.model.verdict.Verdict`."""

    session_id: str
    seq: int
    """Sequence of its entry."""
    at: datetime
    phase: str | None = None
    kind: str
    why: str
    check_hash: str | None = None
    clauses: list[dict[str, Any]] = []
    """``clause``, ``state``, ``required``, ``why`` and ``evidence``: what, expected, observed, ok, at, how."""
    failed: list[str] = []


class ReportView(Shape):
    """The closure report of one session."""

    session_id: str
    headline: str
    markdown: str
    data: dict[str, Any] = {}


class ApprovalView(Shape):
    """One call of an agent that a person has to allow."""

    id: str
    ticket_id: int
    session_id: str
    phase: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    """Secrets are masked; the hash is of what will be executed."""
    arguments_hash: str
    why: str
    state: ApprovalState
    asked_at: datetime
    expires_at: datetime
    answered_at: datetime | None = None
    answered_by: str | None = None
    note: str | None = None
    used_at: datetime | None = None
    ticket: TicketBrief | None = None
    """None inside of a ticket, which says all that itself."""


class SecondLookView(Shape):
    """A person asked that finished work be judged again."""

    id: str
    state: SecondLookState
    """``waiting`` for a worker, ``running``, ``judged``, or ``failed``: it could not be judged."""
    checks_only: bool
    """Without the verifier agent, and so without a model."""
    asked_by: str
    asked_at: datetime
    stalled: str | None = None
    """While it waits: a sentence when no worker is there that could take it."""
    lost: int = 0
    """How many workers were lost while they were at it."""
    session_id: str | None = None
    """Where it is journaled."""
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    verdict: str | None = None
    """Kind of the new verdict."""
    why: str | None = None
    """Why that verdict, or why it could not be judged."""
    unchanged: bool | None = None
    """Whether the workspace is still what was judged before; None: not known."""
    disagrees: bool = False
    """The ticket is resolved, and the new verdict does not prove it."""


class TicketDetail(TicketView):
    """Everything about one ticket."""

    violation_key: str
    subject_context: str | None = None
    metric_snapshot: dict[str, Any] | None = None
    diagnosis: str | None = None
    check_spec: dict[str, Any] | None = None
    """What counts as its proof, without what looks secret in it."""
    check_hash: str | None = None
    reopened_from: str | None = None
    watch_until: datetime | None = None
    observed: Observed | None = None
    """What was said about it since it was seen last; None: nothing."""
    stalled: str | None = None
    """Why it waits for nobody: a sentence when no worker is there that could take it; None: one is, or none should."""
    question: str | None = None
    """What a session that waits for input wants to know."""
    folder: str | None = None
    """Session folder of the newest attempt, on the machine of its worker."""
    report: ReportView | None = None
    """Of the newest attempt."""
    before: list[Before] = []
    """Of the newest attempt and of those with a verdict, newest first."""
    verdicts: list[VerdictView] = []
    """Of all attempts, newest first."""
    sessions: list[SessionView] = []
    history: list[HistoryEvent] = []
    approvals: list[ApprovalView] = []
    second_looks: list[SecondLookView] = []
    """What was asked about its finished work, newest first; at most 20."""

    @property
    def attempt(self) -> SessionView | None:
        """The newest attempt, which a session that only judged its work again is not; None: nobody has begun."""
        return next((session for session in self.sessions if session.judges is None), None)
