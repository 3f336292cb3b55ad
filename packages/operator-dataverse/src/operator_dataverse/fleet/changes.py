"""Changing a row that others change too: read, decide, write what was decided only if the row is still the one read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from operator_dataverse.client import Conflict, Dataverse, Row
from operator_dataverse.errors import Refused, Throttled

__all__ = ["change", "derived_id", "row_id_of"]

_TRIES = 10
_OURS = uuid5(NAMESPACE_URL, "urn:operator:dataverse:rows")

Decide = Callable[[Row], Mapping[str, Any] | None]
"""From the row as it is to the columns to write; None: it is already as wanted. May raise to refuse."""


async def change(dataverse: Dataverse, table: str, row_id: str, decide: Decide) -> Row | None:
    """Change a row, deciding anew whenever somebody else was faster.

    An answer that was lost on the way is no trouble: ``decide`` then sees the own change and says None.

    Returns:
        The row as it is afterwards; None: there is no such row.

    Raises:
        Throttled: It changed under every one of ten attempts.
    """
    for _ in range(_TRIES):
        row = await dataverse.row(table, row_id)
        if row is None:
            return None
        values = decide(row)
        if values is None:
            return row
        if row.etag is None:
            raise Refused(f"The service gave no version of {table}({row_id}), so nothing of it can be changed safely.")
        written = await dataverse.update(table, row.id, values, etag=row.etag)
        if not isinstance(written, Conflict):
            return written
    raise Throttled(f"Others change {table}({row_id}) all the time; try again in a moment.")


def derived_id(*parts: str) -> str:
    """A row id that is the same whenever the parts are: a create that is repeated makes nothing twice."""
    return str(uuid5(_OURS, "\x1f".join(parts)))


def row_id_of(text: str) -> str | None:
    """The id in the form that the service uses; None: the text is none."""
    try:
        return str(UUID(text.strip()))
    except ValueError:
        return None
