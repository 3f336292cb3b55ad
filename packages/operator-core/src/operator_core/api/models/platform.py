"""What is not about one ticket: what is watched, who works, what it costs, whether the chain is whole."""

# Pydantic copies the lists and dicts that are defaults.
# ruff: noqa: RUF012
from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from operator_core.api.models.shape import Shape, Spent
from operator_core.model.monitor import Light

__all__ = ["AuditView", "Board", "CostRow", "InvariantView", "Mark", "Sample", "WorkerView"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at an invariant; no model as the others, because a page has tens of thousands of them."""

    at: datetime
    light: Light
    value: float | None = None


class Mark(Shape):
    """What happened to a ticket of an invariant."""

    at: datetime
    what: Literal["opened", "claimed", "verified", "escalated", "closed"]
    """``verified``: a verdict resolved it; ``closed``: it ended otherwise."""
    ticket_id: int


class InvariantView(Shape):
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


class WorkerView(Shape):
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


class CostRow(Shape):
    """What was spent on one ticket, model, phase or day."""

    key: str
    label: str
    spent: Spent
    sessions: int = 0
    verified: int = 0
    """Tickets among them that were resolved with a verdict ``verified``."""


class AuditView(Shape):
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


class Board(Shape):
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
