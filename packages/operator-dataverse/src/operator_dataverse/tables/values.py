"""Reading what a row holds.

Rows are written by flows and people too: whatever is not as it should be reads as nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol, TypeVar

__all__ = ["Holder", "Known", "moment_of", "text_of", "word_of", "yes_of"]

W = TypeVar("W", bound=Enum)


class Holder(Protocol):
    """A row, such as :class:`operator_dataverse.client.Row`."""

    @property
    def id(self) -> str: ...

    @property
    def etag(self) -> str | None: ...

    def get(self, name: str, /) -> Any: ...


class Known(Protocol):
    """What is known of a table, such as :class:`operator_dataverse.client.TableInfo`."""

    def only(self, names: Sequence[str]) -> tuple[str, ...]: ...


def text_of(row: Holder, name: str) -> str:
    """A text; empty if there is none."""
    value = row.get(name)
    return value if isinstance(value, str) else ""


def moment_of(row: Holder, name: str) -> datetime | None:
    """A time, UTC-aware."""
    value = row.get(name)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def word_of(row: Holder, name: str, words: type[W]) -> W | None:
    """One of some words or codes; None: another, or none."""
    value = row.get(name)
    if isinstance(value, bool):
        return None
    try:
        return words(value)
    except ValueError:
        return None


def yes_of(row: Holder, name: str) -> bool:
    """Whether a column says yes: the boolean, or the word ``true`` of tables that have a text there."""
    value = row.get(name)
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")
