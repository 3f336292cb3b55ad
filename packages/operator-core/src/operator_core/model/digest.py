"""What happened between two moments, in numbers and lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict

__all__ = ["Digest", "Line", "Often"]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Line(_Shape):
    """One ticket."""

    ticket_id: int
    kind: str
    name: str
    severity: str
    reason: str | None = None
    why: str | None = None
    """The headline of its closure report, or what was found out."""


class Often(_Shape):
    """An incident that came again and again."""

    name: str
    times: int


class Digest(_Shape):
    """What happened between two moments. Of each list the first ones are kept; the counts are exact."""

    since: AwareDatetime
    until: AwareDatetime
    proved: int = 0
    """Resolved with a verdict."""
    by_hand: int = 0
    """Resolved by a person."""
    escalated: int = 0
    """Came to need a person, and do so still."""
    opened: int = 0
    reopened: int = 0
    """Came back, or were given to the workers again."""
    canceled: int = 0
    cleared: int = 0
    """Went away before anybody worked on them."""
    waiting: int = 0
    """Wait for a person now."""
    escalated_now: int = 0
    """Need a person now, whenever that began."""
    untaken: int = 0
    """Are open now, and no worker has them."""
    stalled: str | None = None
    """Why nobody would take those, as things are."""
    resolved_lines: list[Line] = []
    escalated_lines: list[Line] = []
    waiting_lines: list[Line] = []
    untaken_lines: list[Line] = []
    top: list[Often] = []
    """Names that opened, or came back, most often; at least twice."""
    sessions: int = 0
    """Attempts that worked in this time."""
    cost_usd: float = 0.0
    """What those have cost, as far as the prices are known."""
    unpriced: int = 0
    """Calls whose price is not known."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Digest:
        """From JSON."""
        return cls.model_validate(body)
