"""Values as the columns of a table take them: nothing too long, unknown, or of a wrong type (D-51, D-52)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from operator_dataverse.client.metadata import Column, TableInfo
from operator_dataverse.errors import SchemaProblem

__all__ = ["Fitted", "clip_units", "fit", "units"]

# What XML 1.0 has no place for is refused by the service, and a transcript is full of terminal escapes.
_UNSENDABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Fitted(NamedTuple):
    """Values that a write can carry.

    Attributes:
        values: What is sent.
        cut: Columns whose text was too long.
        dropped: Columns that the table does not have.
    """

    values: dict[str, Any]
    cut: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def units(text: str) -> int:
    """The length of a text as Dataverse counts it: in UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def clip_units(text: str, limit: int, pointer: str | None = None) -> str:
    """At most ``limit`` UTF-16 code units of a text, with a note at its end where something was cut.

    Args:
        text: The text.
        limit: Most code units.
        pointer: Where the whole text is: a file or a URL.
    """
    if units(text) <= limit:
        return text
    where = f"; the whole text is in {pointer}" if pointer else ""
    # A short column keeps more of its text than of the note.
    note = next((n for n in (f"… (truncated{where})", "… (truncated)", "…", "") if units(n) * 2 <= limit), "")
    room = limit - units(note)
    data = text.encode("utf-16-le", "surrogatepass")[: 2 * room + 2]
    if 0xDC <= data[-1] <= 0xDF:
        # Not between the two halves of a character.
        room -= room > 0 and 0xD8 <= data[2 * room - 1] <= 0xDB
    kept = data[: 2 * room].decode("utf-16-le", "surrogatepass")
    return kept + note


def fit(info: TableInfo, values: Mapping[str, Any], *, pointer: str | None = None) -> Fitted:
    """Make values fit the columns of a table.

    Args:
        info: The table.
        values: Column -> value. Texts are cut to their column; characters that the service refuses become U+FFFD; times
            are sent in UTC; members of an enum as their value.
        pointer: For the note in a text that was cut.

    Raises:
        SchemaProblem: A value is of a type that its column does not take.
    """
    fitted: dict[str, Any] = {}
    cut, dropped = [], []
    for name, value in values.items():
        column = info.columns.get(name)
        if column is None or not column.writable:
            dropped.append(name)
            continue
        sent = _plain(info, column, value)
        if isinstance(sent, str) and column.type in ("string", "memo"):
            sent = _UNSENDABLE.sub("\ufffd", sent)
            if column.max_length is not None and units(sent) > column.max_length:
                cut.append(name)
                sent = clip_units(sent, column.max_length, pointer)
        fitted[name] = sent
    return Fitted(fitted, tuple(cut), tuple(dropped))


def _plain(info: TableInfo, column: Column, value: Any) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return None
    if isinstance(value, datetime) and column.type == "datetime" and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, UUID):
        value = str(value)
    match column.type:
        case "string" | "memo" | "datetime" | "guid":
            good = isinstance(value, str)
        case "integer":
            good = isinstance(value, int) and not isinstance(value, bool)
        case "choice":
            good = isinstance(value, int) and not isinstance(value, bool)
            good = good and (not column.options or value in column.options)
        case "number":
            good = isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0
        case "boolean":
            good = isinstance(value, bool)
        case _:
            good = True
    if good:
        return value
    takes = f"one of {', '.join(map(str, column.options))}" if column.options else f"a {column.type}"
    raise SchemaProblem(f"The column {column.name} of {info.table} takes {takes} and not {value!r:.60}; correct that.")
