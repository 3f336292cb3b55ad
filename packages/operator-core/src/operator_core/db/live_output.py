"""What a running command has printed so far: one row for each session, for people who watch.

It is no part of the journal: the row is overwritten while the command runs and goes away with it, and a session works
just as well without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Integer, Text, bindparam, delete, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from operator_core import clock
from operator_core.db.claims import Claim
from operator_core.db.client import StoreClient
from operator_core.db.schema import live_output, tickets

__all__ = ["LiveOutputs", "LiveRow"]

_NAMES = ["session_id", "tool_use_id", "tail", "total", "updated_at"]
_VALUES = (
    bindparam("session", type_=Text),
    bindparam("call", type_=Text),
    bindparam("text", type_=Text),
    bindparam("size", type_=BigInteger),
    bindparam("now", type_=Text),
)
# The fence is in the statement: a worker that lost the ticket cannot write over what the new one shows.
_OURS = select(*_VALUES).where(
    tickets.c.id == bindparam("own_ticket", type_=Integer),
    tickets.c.fence == bindparam("own_fence", type_=Integer),
    tickets.c.status == "running",
)
_ANYBODY = select(*_VALUES).where(literal_column("1 = 1"))  # without a condition, SQLite takes the conflict for a join
_ROW = select(live_output.c.tool_use_id, live_output.c.tail, live_output.c.total, live_output.c.updated_at).where(
    live_output.c.session_id == bindparam("session", type_=Text)
)
_CLEAR = delete(live_output).where(live_output.c.session_id == bindparam("session", type_=Text))
_CLEAR_CALL = _CLEAR.where(live_output.c.tool_use_id == bindparam("call", type_=Text))


def _upsert(dialect: str, *, fenced: bool) -> Insert:
    make = sqlite.insert if dialect == "sqlite" else postgresql.insert
    statement = make(live_output).from_select(_NAMES, _OURS if fenced else _ANYBODY)
    return statement.on_conflict_do_update(
        index_elements=[live_output.c.session_id], set_={name: statement.excluded[name] for name in _NAMES[1:]}
    )


_WRITE = {
    (dialect, fenced): _upsert(dialect, fenced=fenced) for dialect in ("sqlite", "pg") for fenced in (True, False)
}


class LiveRow(NamedTuple):
    """The end of what a running command has printed.

    Attributes:
        tail: The last characters of both streams as they came; secrets are masked.
        total: Bytes so far.
        updated_at: ISO 8601 (UTC).
    """

    tool_use_id: str
    tail: str
    total: int
    updated_at: str


class LiveOutputs(StoreClient):
    """Writes and reads what running commands print."""

    async def write(self, session_id: str, call: str, tail: str, total: int, claim: Claim | None) -> None:
        """Show this as the output of the call, instead of what was shown before.

        Args:
            claim: Under which the session works; without it nothing is shown of a ticket that is another worker's.
        """
        values: dict[str, Any] = {
            "session": session_id,
            "call": self.database.redactor.column(call),
            "text": self.database.redactor.column(tail),
            "size": total,
            "now": clock.iso(),
        }
        if claim is not None:
            values |= {"own_ticket": claim.ticket_id, "own_fence": claim.fence}
        dialect = "sqlite" if self.database.sqlite else "pg"
        await self.database.one(_WRITE[dialect, claim is not None].returning(live_output.c.session_id), **values)

    async def clear(self, session_id: str, call: str | None = None) -> None:
        """Show nothing any more.

        Args:
            call: Only if this call is what is shown; None: whatever it is.
        """
        if call is None:
            await self.database.one(_CLEAR.returning(live_output.c.session_id), session=session_id)
        else:
            call = self.database.redactor.column(call)
            await self.database.one(_CLEAR_CALL.returning(live_output.c.session_id), session=session_id, call=call)

    async def read(self, session_id: str) -> LiveRow | None:
        """What is shown now; None: no command has run for long, or it has printed nothing."""
        rows = await self.database.fetch(_ROW, session=session_id)
        return LiveRow(**rows[0]._mapping) if rows else None
