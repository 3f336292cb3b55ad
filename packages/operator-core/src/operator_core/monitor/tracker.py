"""What is remembered of a light from one cycle to the next: pure functions over :class:`MonitorState`."""

from __future__ import annotations

from datetime import datetime, timedelta

from operator_core.model.monitor import Light, MonitorState

__all__ = ["advance", "is_due", "is_flapping"]

_MOST_CHANGES = 200


def advance(
    before: MonitorState | None,
    key: str,
    invariant_name: str,
    light: Light,
    now: datetime,
    *,
    window_s: float,
    value: str | None = None,
    began: datetime | None = None,
) -> MonitorState:
    """The state after one more look.

    An episode begins with a red look and ends with a green one; unknown looks neither begin nor end it, but they do
    interrupt a row of green ones. A change is counted when red follows green or green follows red, whatever unknown
    lies between.

    Args:
        before: The state before it; None: the first look ever.
        window_s: Changes older than this many seconds are forgotten.
        began: When the episode began according to the checker; the older of the two beginnings counts.
    """
    was_red = before is not None and before.first_seen is not None
    changes = before.changes if before is not None else ()
    first_seen = before.first_seen if before is not None else None
    if light == "red":
        first_seen = min(t for t in (first_seen, began, now) if t is not None)
    elif light == "green":
        first_seen = None
    if before is not None and light != "unknown" and was_red != (light == "red"):
        changes = (*changes, now)
    oldest = now - timedelta(seconds=window_s)
    same = before is not None and before.light == light
    return MonitorState(
        violation_key=key,
        invariant_name=invariant_name,
        light=light,
        since=min(before.since, now) if before is not None and same else now,
        first_seen=first_seen,
        changes=tuple(t for t in changes[-_MOST_CHANGES:] if t > oldest),
        greens=(before.greens if before is not None and same else 0) + 1 if light == "green" else 0,
        last_value=value if light != "unknown" or before is None else before.last_value,
        updated_at=now,
    )


def is_due(state: MonitorState, now: datetime, grace_s: float) -> bool:
    """Whether it is red, and its episode has lasted for the grace period."""
    return state.light == "red" and state.first_seen is not None and (now - state.first_seen).total_seconds() >= grace_s


def is_flapping(state: MonitorState, now: datetime, *, changes: int, window_s: float) -> bool:
    """Whether it changed so often within the window that ends now."""
    oldest = now - timedelta(seconds=window_s)
    return sum(t > oldest for t in state.changes) >= changes
