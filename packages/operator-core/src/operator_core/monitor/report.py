"""What one cycle of the monitor found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from operator_core.model.ticket import Ticket

__all__ = ["CycleReport"]


@dataclass(frozen=True)
class CycleReport:
    """One cycle.

    Attributes:
        subject: Name of the subject.
        batch_key: ``batch-{iso}``, stored with every ticket that the cycle wrote.
        at: When it began (UTC-aware, the loop's clock).
        violations: Keys that do not hold, their grace period over.
        pending: Keys that do not hold, within their grace period.
        unknown: Keys that could not be looked at, each with the reason; the subject's name when nothing could.
        tickets: The tickets of ``violations`` and of the "monitor blind" incidents, as they are now.
        cleared: How many tickets were closed because the violation went away by itself.
        duration_s: Seconds of the loop's clock.
        error: Why the cycle could not be finished; None: it was.
    """

    subject: str
    batch_key: str
    at: datetime
    violations: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    tickets: tuple[Ticket, ...] = ()
    cleared: int = 0
    duration_s: float = 0.0
    error: str | None = None

    @property
    def line(self) -> str:
        """One line for people: ``Check complete: all passing`` when everything was seen and holds (2.1.4)."""
        if self.error is not None:
            return f"Check failed: {self.error}"
        notes = [f"{len(self.pending)} in grace"] if self.pending else []
        notes += [f"{len(self.unknown)} unknown"] if self.unknown else []
        if self.violations:
            return ", ".join([f"{len(self.violations)} violation(s) detected", *notes])
        return f"Check complete: {', '.join(notes) or 'all passing'}"
