"""Sessions, and the entries of their journals."""

# Pydantic copies the lists and dicts that are defaults.
# ruff: noqa: RUF012
from __future__ import annotations

from datetime import datetime
from typing import Any

from operator_core.api.models.shape import Shape, Spent

__all__ = ["EntryPage", "EntryView", "LiveOutput", "SessionDetail", "SessionView", "Tick"]


class SessionView(Shape):
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


class Tick(Shape):
    """A place in a journal that stands out: an error, a verdict, the beginning of a phase, what a person said."""

    seq: int
    entry_type: str
    phase: str | None = None
    exit_code: int | None = None
    """Of a result that is one because it failed."""


class LiveOutput(Shape):
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


class EntryView(Shape):
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


class EntryPage(Shape):
    """Entries of one session, in order."""

    items: list[EntryView]
    head: int
    """Highest sequence number that there is now; -1: none."""
    ended: bool
    """Whether the session has ended, so that nothing will follow."""
