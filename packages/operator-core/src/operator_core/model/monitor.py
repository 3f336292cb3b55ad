"""What the monitor remembers of an invariant between two cycles and across a restart."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple

__all__ = ["MONITOR_BLIND", "Light", "MonitorState"]

Light = Literal["green", "red", "unknown"]


class MonitorState(NamedTuple):
    """One invariant as last seen; all times are UTC-aware.

    Attributes:
        violation_key: Identity of the incident it would open.
        light: What the last look said; ``unknown`` when the look failed.
        since: When that light came on.
        first_seen: Start of the present red episode, which an unknown look neither starts nor ends; None while green.
        changes: Recent changes between green and red, oldest first.
        greens: Consecutive green looks.
        last_value: The newest value, as text.
    """

    violation_key: str
    invariant_name: str
    light: Light
    since: datetime
    first_seen: datetime | None
    changes: tuple[datetime, ...]
    greens: int
    last_value: str | None
    updated_at: datetime


MONITOR_BLIND = "monitor-blind"
"""Name of the incident "an invariant cannot be observed"; a person mends it, no worker claims it."""
