"""A person asked that finished work be judged once more, and what became of that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

__all__ = ["SecondLook", "SecondLookState"]

SecondLookState = Literal["waiting", "running", "judged", "failed"]
"""It waits for a worker, one is at it, there is a verdict, or there could be none."""


@dataclass(frozen=True)
class SecondLook:
    """One request. Times are UTC-aware.

    Attributes:
        checks_only: Without the verifier agent, and so without a model.
        asked_by: Who asked.
        owner: The incarnation of the worker that is at it.
        fence: Of its newest claim; an older one can end nothing any more.
        lost: How many workers were lost while they were at it.
        session_id: Where the newest try is journaled.
        begun_at: Of the newest try.
        verdict: Kind of the new verdict; None: there is none (yet).
        why: Why that verdict, or why there could be none.
        unchanged: Whether the workspace is still what was judged then; None: not known.
    """

    id: str
    ticket_id: int
    checks_only: bool
    asked_by: str
    asked_at: datetime
    owner: str | None = None
    fence: int = 0
    lost: int = 0
    session_id: str | None = None
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    verdict: str | None = None
    why: str | None = None
    unchanged: bool | None = None

    @property
    def state(self) -> SecondLookState:
        """Where it stands."""
        if self.ended_at is not None:
            return "judged" if self.verdict is not None else "failed"
        return "running" if self.owner is not None else "waiting"
