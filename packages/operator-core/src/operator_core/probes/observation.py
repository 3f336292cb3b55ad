"""What one look at an invariant gave, and how a look says that it failed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from operator_core.clock import iso
from operator_core.errors import ProbeFailed
from operator_core.model.monitor import Light

__all__ = ["RAW_LIMIT", "VALUE_LIMIT", "LookFailed", "Observation", "Scalar", "Seen", "excerpt"]

Scalar = str | int | float | bool | None
RAW_LIMIT = 2000
"""Longest raw excerpt, in characters."""
VALUE_LIMIT = 500
"""Longest value that is stored, in characters; comparisons see the whole value."""


@dataclass(frozen=True)
class Observation:
    """One look at one invariant.

    Attributes:
        light: ``green`` it holds, ``red`` it does not, ``unknown`` nobody could look.
        value: What was compared; None when the look failed.
        detail: One line for people.
        raw: The answer itself, at most :data:`RAW_LIMIT` characters.
        at: When the look began (UTC-aware).
        duration_s: How long it took, in real seconds.
        how: How a person can look again, e.g. a ``curl`` line; credentials in it are masked.
    """

    light: Light
    value: Scalar
    detail: str
    raw: str
    at: datetime
    duration_s: float
    how: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the time as ISO 8601, infinities as text, long values shortened."""
        value = self.value
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        elif isinstance(value, str):
            value = excerpt(value, VALUE_LIMIT)
        return {
            "light": self.light,
            "value": value,
            "detail": self.detail,
            "raw": self.raw,
            "at": iso(self.at),
            "duration_s": round(self.duration_s, 6),
            "how": self.how,
        }


@dataclass(frozen=True)
class Seen:
    """A look that succeeded: the value, and the raw answer it was taken from."""

    value: Scalar
    raw: str = ""


class LookFailed(ProbeFailed):
    """The probe could not look: what it watches is unknown, which is not the same as healthy.

    Attributes:
        raw: What was seen before it failed.
        ours: The fault is this machine's or the configuration's, so it says nothing about the subject, reachable or
            not.
    """

    def __init__(self, message: str, *, raw: str = "", ours: bool = False) -> None:
        self.raw = raw
        self.ours = ours
        super().__init__(message)


def excerpt(data: str | bytes, limit: int = RAW_LIMIT) -> str:
    """The beginning of an answer as printable text that every store accepts: no NUL, no lone surrogates."""
    cut = data[: limit * 4] if isinstance(data, bytes) else data[: limit + 1]
    text = cut.decode("utf-8", "replace") if isinstance(cut, bytes) else cut.encode("utf-8", "replace").decode()
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
