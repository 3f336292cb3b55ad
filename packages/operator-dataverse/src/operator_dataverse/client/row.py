"""One row as the service gave it, and the answer that a row has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

__all__ = ["Conflict", "Row"]

_FORMATTED = "@OData.Community.Display.V1.FormattedValue"


class Row(Mapping[str, Any]):
    """The columns of one row.

    Args:
        table: Entity set, e.g. ``cr_shraga_tasks``.
        row_id: Its id.
        body: The JSON object of the service, annotations included.
        dropped: Columns that a write of it named and that the table does not have.

    Attributes:
        table: The entity set.
        id: The id, in lower case.
        etag: The version of the row, for ``etag=`` of a write; None if the service gave none.
        dropped: As given.
    """

    __slots__ = ("_body", "_columns", "dropped", "etag", "id", "table")

    def __init__(self, table: str, row_id: str, body: Mapping[str, Any], *, dropped: tuple[str, ...] = ()) -> None:
        self.table = table
        self.id = row_id.lower()
        etag = body.get("@odata.etag")
        self.etag: str | None = etag if isinstance(etag, str) else None
        self.dropped = dropped
        self._body = dict(body)
        self._columns = {name: value for name, value in body.items() if "@" not in name}

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Row({self.table}({self.id}), {self.etag})"

    def formatted(self, name: str) -> str | None:
        """The value as the service shows it to people, e.g. ``Pending`` for 1; else the value as text."""
        found = self._body.get(f"{name}{_FORMATTED}")
        if found is None:
            found = self._columns.get(name)
        return None if found is None else str(found)


class Conflict(NamedTuple):
    """A write that did not happen, because the row is not as the caller knew it (412); an answer, never an error.

    Attributes:
        reason: ``changed``: it has another version. ``missing``: there is none. ``exists``: there is one already.
        current: The row as it is now, where the caller asked for it or where an answer was lost on the way: then the
            change may be the caller's own.
    """

    reason: Literal["changed", "missing", "exists"]
    current: Row | None = None
