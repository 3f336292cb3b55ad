"""What the fields of forms may hold, and how a form that was refused comes back."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, TypeVar

from fastapi import Form, Path

from operator_core.errors import ConfigError, Fenced, LimitReached, SourceError, TransitionRefused
from operator_core.model.task import MAX_PROMPT

__all__ = ["REFUSALS", "Key", "LongText", "Text", "TicketId", "Word", "lines_of", "refused"]

T = TypeVar("T")

TicketId = Annotated[int, Path(ge=1, le=2**63 - 1)]
Word = Annotated[str, Form(max_length=500)]
Text = Annotated[str, Form(max_length=20_000)]
LongText = Annotated[str, Form(max_length=MAX_PROMPT + 10_000)]
"""A browser sends each line break as two characters; how long it may be is for who takes it to say."""
Key = Annotated[str, Form(max_length=64, pattern=r"^[0-9a-f]*$")]
"""The key of a form: sent twice, it does its work once."""

REFUSALS = (ConfigError, TransitionRefused, LimitReached, SourceError, Fenced)
"""Errors that the person who sent a form can do something about on the same page."""


def lines_of(text: str) -> list[str]:
    """Each line that says something."""
    return [line.strip() for line in text.splitlines() if line.strip()]


async def refused(act: Awaitable[T]) -> tuple[T | None, Exception | None]:
    """What the act gave, or why it was refused."""
    try:
        return await act, None
    except REFUSALS as error:
        return None, error
