"""How a bill is shared."""

from __future__ import annotations

__all__ = ["split"]


def split(cents: int, people: int) -> list[int]:
    """What each person pays, in cents; the first ones pay what is left over.

    Raises:
        ValueError: There is nobody to pay, or the bill is negative.
    """
    if people < 1:
        raise ValueError("a bill needs somebody who pays it")
    if cents < 0:
        raise ValueError("a bill cannot be negative")
    share = round(cents / people)
    return [share] * people
