"""Telling the dead from the slow, without trusting that two machines have the same time."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from operator_core.clock import Clock

__all__ = ["SKEW_S", "Stillness"]

SKEW_S = 120.0
"""So far apart may two machines' clocks be."""


class _Seen(NamedTuple):
    value: str
    since: float
    moved: bool


class Stillness:
    """Watches values that somebody else moves as long as he lives, and says which have stopped.

    A value counts as still when this process has seen it unchanged for the whole limit. How old somebody else's clock
    says it is counts only where no difference between clocks explains it, and as long as it was never seen to move.

    Args:
        limit_s: After so long without a move it is still.
    """

    def __init__(self, limit_s: float, clock: Clock | None = None) -> None:
        self._limit_s = limit_s
        self._clock = clock or Clock()
        self._seen: dict[str, _Seen] = {}

    def still(self, key: str, value: str, moved_at: datetime | None = None) -> bool:
        """Whether it has stopped.

        Args:
            key: What is watched.
            value: How it stands now.
            moved_at: When it moved last, on the other side's clock; None: unknown.
        """
        now = self._clock.monotonic()
        seen = self._seen.get(key)
        if seen is None or seen.value != value:
            seen = self._seen[key] = _Seen(value, now, seen is not None)
        if now - seen.since >= self._limit_s:
            return True
        if seen.moved:
            return False
        return moved_at is not None and (self._clock.now() - moved_at).total_seconds() >= self._limit_s + SKEW_S

    def only(self, keys: Collection[str]) -> None:
        """Forget everything else."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
