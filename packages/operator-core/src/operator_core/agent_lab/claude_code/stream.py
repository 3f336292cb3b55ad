"""JSON lines out of a stream of bytes that may be hostile: anything in the sandbox can write to it."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["MAX_LINE", "LineReader"]

MAX_LINE = 16 << 20


class LineReader:
    """Cuts bytes into lines and parses them; what is no JSON object is counted and left out.

    Args:
        max_line: Longest line, in bytes; a longer one is left out whole, and never kept in memory.

    Attributes:
        skipped: How many lines were too long, no JSON, or no object.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.skipped = 0
        self._max = max_line
        self._line = bytearray()
        self._too_long = False

    def feed(self, data: bytes | memoryview) -> list[dict[str, Any]]:
        """Take the next bytes; the objects whose lines are complete by now."""
        found = []
        *ended, rest = bytes(data).split(b"\n")
        for part in ended:
            self._add(part)
            if (value := self._take()) is not None:
                found.append(value)
        self._add(rest)
        return found

    def flush(self) -> list[dict[str, Any]]:
        """The stream has ended; its last line may have no end."""
        value = self._take()
        return [] if value is None else [value]

    def _add(self, part: bytes) -> None:
        if self._too_long or len(self._line) + len(part) > self._max:
            self._too_long = True
            self._line.clear()
        else:
            self._line += part

    def _take(self) -> dict[str, Any] | None:
        line, too_long = bytes(self._line).strip(), self._too_long
        self._line.clear()
        self._too_long = False
        if not line and not too_long:
            return None
        try:
            value = None if too_long else json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        self.skipped += 1
        return None
