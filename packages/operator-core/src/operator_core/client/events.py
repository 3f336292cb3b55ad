"""What a live stream says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from operator_core.api.models import EntryView

__all__ = ["StreamEvent"]


@dataclass(frozen=True)
class StreamEvent:
    """One event of a live stream.

    Attributes:
        kind: ``entry``, ``output``, ``state``, ``end``; of the board ``ticket``, ``reset``.
        number: Its place, from which a stream can be resumed; None: it has none.
        data: What it says.
        entry: Of an ``entry``.
    """

    kind: str
    number: int | None
    data: dict[str, Any]
    entry: EntryView | None = None
