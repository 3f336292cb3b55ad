"""The ledger: one hash chain over everything that is not inside a session.

Ticket transitions, the opening and closing of sessions with the head of their journal, and the tombstones that
retention leaves. A session that disappears as a whole is therefore missed too.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Integer, bindparam, insert, select
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db.engine import Database
from operator_core.db.schema import ledger, ledger_head
from operator_core.model.entry import canonical, chain_hash

__all__ = ["LedgerRow", "append", "body_of", "head", "ledger_row_hash", "recent_rows", "ticket_history"]

# Locked last in every transaction, after workers and tickets, so that no two transactions wait for each other.
_HEAD = select(ledger_head.c.seq, ledger_head.c.hash).where(ledger_head.c.id == 1).with_for_update()
_INSERT = insert(ledger)
_LAST = select(ledger_head.c.seq, ledger_head.c.hash).where(ledger_head.c.id == 1)
_RECENT = (
    select(ledger)
    .where(ledger.c.seq < bindparam("before", type_=BigInteger))
    .order_by(ledger.c.seq.desc())
    .limit(bindparam("most", type_=Integer))
)
_HISTORY = select(ledger).where(ledger.c.ticket_id == bindparam("ticket")).order_by(ledger.c.seq)


class LedgerRow(NamedTuple):
    """One row: what happened, to which ticket or session, when (ISO 8601, UTC)."""

    seq: int
    kind: str
    ticket_id: int | None
    session_id: str | None
    body: dict[str, Any]
    at: str


def ledger_row_hash(row: dict[str, Any]) -> str:
    """The hash of a row from its stored values."""
    return chain_hash(
        row["prev_hash"], row["seq"], row["kind"], row["ticket_id"], row["session_id"], row["body"], row["at"]
    )


async def append(
    database: Database,
    connection: AsyncConnection,
    kind: str,
    *,
    ticket_id: int | None = None,
    session_id: str | None = None,
    **body: Any,
) -> None:
    """Add one row inside the caller's transaction, so that it exists exactly if what it records does."""
    last = (await connection.execute(_HEAD)).one()
    row: dict[str, Any] = {
        "seq": last.seq + 1,
        "kind": kind,
        "ticket_id": ticket_id,
        "session_id": session_id,
        "body": canonical(database.redactor.tree(body)).encode(errors="replace").decode(),
        "at": clock.iso(),
        "prev_hash": last.hash,
    }
    await connection.execute(_INSERT, {**row, "hash": ledger_row_hash(row)})


async def ticket_history(database: Database, ticket_id: int) -> list[LedgerRow]:
    """Everything that happened to one ticket, oldest first."""
    return [_row(row) for row in await database.fetch(_HISTORY, ticket=ticket_id)]


async def head(database: Database) -> tuple[int, str]:
    """Number (-1: there is none) and hash of the newest row."""
    row = (await database.fetch(_LAST))[0]
    return int(row.seq), str(row.hash)


async def recent_rows(database: Database, *, before: int, limit: int) -> list[LedgerRow]:
    """The newest rows whose numbers are below ``before``, newest first."""
    return [_row(row) for row in await database.fetch(_RECENT, before=before, most=limit)]


def body_of(row: Row[Any]) -> dict[str, Any]:
    """The body of a row; of one that somebody has changed nothing: the check of the chain says so."""
    try:
        body = json.loads(row.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _row(row: Row[Any]) -> LedgerRow:
    return LedgerRow(row.seq, row.kind, row.ticket_id, row.session_id, body_of(row), row.at)
