"""The shapes of the API. Times are UTC; what agents and alerts wrote is text that nobody may trust."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from operator_core.model.approval import ApprovalState
from operator_core.model.monitor import Light
from operator_core.model.second_look import SecondLookState
from operator_core.model.ticket import TicketKind, TicketStatus

__all__ = [
    "ApprovalView",
    "AuditView",
    "Before",
    "Board",
    "CostRow",
    "EntryPage",
    "EntryView",
    "HistoryEvent",
    "InvariantView",
    "LiveOutput",
    "Mark",
    "Needs",
    "Observed",
    "Page",
    "ReportView",
    "Sample",
    "SecondLookView",
    "SessionDetail",
    "SessionView",
    "Spent",
    "Tick",
    "TicketBrief",
    "TicketDetail",
    "TicketView",
    "VerdictView",
    "WorkerView",
]

T = TypeVar("T")

Needs = Literal["answer", "approval", "decision"]
"""What a ticket needs of a person: an answer to its question, a word on a call, or a decision after an escalation."""


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Page(_Shape, Generic[T]):
    """A part of a list."""

    items: list[T]
    next: str | None = None
    """Cursor of the next part; None: this is the last one."""


class Spent(_Shape):
    """Tokens (counts) and money (USD) of model calls."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    """Of the calls whose price is known."""
    unpriced: int = 0
    """Calls whose price is not known; with any, the cost is at least ``cost_usd``."""


class TicketView(_Shape):
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


class HistoryEvent(_Shape):
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


class Observed(_Shape):
    """What an alert's sender said last about a ticket, for example that it went away: it proves nothing."""

    said: str
    by: str | None = None
    """Who, for example ``alerts (intake)``."""
    at: datetime
    """When it came."""
    detail: dict[str, Any] = {}


class TicketBrief(_Shape):
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


class Before(_Shape):
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


class VerdictView(_Shape):
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


class ReportView(_Shape):
    """The closure report of one session."""

    session_id: str
    headline: str
    markdown: str
    data: dict[str, Any] = {}


class SessionView(_Shape):
    """A session as it is listed."""

    session_id: str
    ticket_id: int | None = None
    invariant_name: str | None = None
    kind: str | None = None
    status: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome_summary: str | None = None
    entries: int
    """How many entries its journal has; their sequence numbers are 0 to ``entries - 1``."""
    spent: Spent = Spent()
    judges: str | None = None
    """Id of the session whose work it only judged again; None: it worked on the ticket."""


class ApprovalView(_Shape):
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


class SecondLookView(_Shape):
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


class EntryView(_Shape):
    """One entry of a journal."""

    seq: int
    timestamp: datetime
    phase: str | None = None
    entry_type: str
    content: str
    """One or two sentences for people."""
    raw_content: str | None = None
    """The full text; in lists cut to ``max_chars``, see ``cut``."""
    cut: int = 0
    """So many characters of ``raw_content`` were left out."""
    tool_name: str | None = None
    tool_params: dict[str, Any] | None = None
    tool_use_id: str | None = None
    exit_code: int | None = None
    fence: int | None = None
    body: Any = None
    """The structured payload; of messages to and from the model only on request."""
    meta: dict[str, Any] | None = None
    prev_hash: str
    hash: str


class EntryPage(_Shape):
    """Entries of one session, in order."""

    items: list[EntryView]
    head: int
    """Highest sequence number that there is now; -1: none."""
    ended: bool
    """Whether the session has ended, so that nothing will follow."""


class Tick(_Shape):
    """A place in a journal that stands out: an error, a verdict, the beginning of a phase, what a person said."""

    seq: int
    entry_type: str
    phase: str | None = None
    exit_code: int | None = None
    """Of a result that is one because it failed."""


class LiveOutput(_Shape):
    """The end of what the running command has printed so far."""

    tool_use_id: str
    tail: str
    total: int
    """Bytes so far."""
    updated_at: datetime


class SessionDetail(SessionView):
    """Everything about one session but its entries."""

    engine: str | None = None
    model: str | None = None
    phases: list[dict[str, Any]] = []
    """``phase``, ``seq`` of its first entry, ``started_at``, ``ended_at`` and ``state`` (``running``, ``done``)."""
    sandbox: dict[str, Any] | None = None
    """The newest sandbox report: ``backend``, ``level``, and ``controls`` with ``state`` and ``how`` of each."""
    limits: dict[str, float] = {}
    """``turns``, ``tokens``, ``cost_usd``, ``wall_clock_s``; 0 means none."""
    turns: int = 0
    """Answers of models, in all phases."""
    commands: int = 0
    """Calls of tools."""
    context_tokens: int | None = None
    context_limit: int | None = None
    question: str | None = None
    marks: dict[str, int] = {}
    """Sequence of ``first_change``, ``first_error``, ``verdict`` and the like, where there is one."""
    live: LiveOutput | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at an invariant; no model as the others, because a page has tens of thousands of them."""

    at: datetime
    light: Light
    value: float | None = None


class Mark(_Shape):
    """What happened to a ticket of an invariant."""

    at: datetime
    what: Literal["opened", "claimed", "verified", "escalated", "closed"]
    """``verified``: a verdict resolved it; ``closed``: it ended otherwise."""
    ticket_id: int


class InvariantView(_Shape):
    """One watched invariant."""

    key: str
    name: str
    subject: str | None = None
    severity: str | None = None
    light: Light
    since: datetime | None = None
    updated_at: datetime | None = None
    stale: bool = False
    """Nobody has looked for four of the monitor's intervals, and two minutes at least: the light is from before."""
    last_value: str | None = None
    flapping: bool = False
    ticket_id: int | None = None
    """The ticket that is open for it."""
    samples: list[Sample] = []
    """The newest looks, oldest first."""
    marks: list[Mark] = []
    """What happened meanwhile, oldest first."""


class WorkerView(_Shape):
    """One process that works."""

    id: str
    name: str
    host: str
    pid: int
    started_at: datetime
    alive: bool
    lease_left_s: float
    concurrency: int
    draining: bool = False
    tickets: list[int] = []
    """Those that it works on."""


class CostRow(_Shape):
    """What was spent on one ticket, model, phase or day."""

    key: str
    label: str
    spent: Spent
    sessions: int = 0
    verified: int = 0
    """Tickets among them that were resolved with a verdict ``verified``."""


class AuditView(_Shape):
    """What a check of the chain found; see :class:`operator_core.db.integrity.AuditReport`."""

    ok: bool
    summary: str
    sessions: int
    entries: int
    problems: list[dict[str, Any]] = []
    head_seq: int | None = None
    """Of the ledger."""
    head_hash: str | None = None
    at: datetime


class Board(_Shape):
    """Counts for the head of the board."""

    counts: dict[str, int] = Field(default_factory=dict)
    """Tickets by state."""
    needs_me: int = 0
    approvals: int = 0
    workers: int = 0
    takers: list[str] = []
    """Names of the workers that live and take tickets."""
    stalled: str | None = None
    """A sentence when tickets wait and no worker is there that could take any of them."""
    red: int = 0
    unknown: int = 0
    spent_today: Spent = Spent()
