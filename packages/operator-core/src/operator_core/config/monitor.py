"""How subjects are watched."""

from __future__ import annotations

from pydantic import Field

from operator_core.config.section import Section

__all__ = ["MonitorSettings"]


class MonitorSettings(Section):
    """How the monitor watches."""

    interval_s: float = Field(default=30.0, gt=0)
    """Time between two cycles."""
    blind_after_s: float = Field(default=120.0, ge=0)
    """How long an invariant may be unknown before a "monitor blind" incident opens."""
    flap_changes: int = Field(default=6, ge=2)
    """So many changes between green and red ..."""
    flap_window_s: float = Field(default=600.0, gt=0)
    """... within so many seconds are flapping."""
    clear_after: int = Field(default=2, ge=1)
    """Green cycles after which a ticket that nobody has worked on is closed as cleared."""
