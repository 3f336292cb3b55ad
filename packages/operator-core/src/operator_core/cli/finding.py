"""What `operator doctor` found."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

__all__ = ["Finding", "State"]

State = Literal["ok", "warning", "wrong", "skipped"]


class Finding(NamedTuple):
    """One thing that was tried.

    Attributes:
        name: What.
        state: ``wrong`` makes the exit code 1.
        detail: One sentence or clause.
        facts: More, for programs.
    """

    name: str
    state: State
    detail: str
    facts: dict[str, Any] | None = None
