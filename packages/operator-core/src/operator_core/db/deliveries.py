"""Deliveries of webhooks that were taken, so that each is taken once."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Text, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db.client import StoreClient
from operator_core.db.schema import idempotency_keys

__all__ = ["Deliveries", "Taken"]

_OK = 200
_ONE = select(idempotency_keys).where(
    idempotency_keys.c.principal == bindparam("in_door", type_=Text),
    idempotency_keys.c.key == bindparam("in_key", type_=Text),
)
_END = (
    update(idempotency_keys)
    .where(
        idempotency_keys.c.principal == bindparam("in_door", type_=Text),
        idempotency_keys.c.key == bindparam("in_key", type_=Text),
    )
    .values(body=bindparam("new_body", type_=Text))
)


class Taken(NamedTuple):
    """A delivery that was taken: SHA-256 (hex) of what came, and the receipt (JSON)."""

    digest: str
    receipt: str


class Deliveries(StoreClient):
    """The deliveries of a store; they are forgotten with the other idempotency keys."""

    async def find(self, door: str, key: str) -> Taken | None:
        """The delivery with this key, if it was taken already."""
        rows = await self.database.fetch(_ONE, in_door=door, in_key=key)
        return Taken(rows[0].request_hash, rows[0].body) if rows else None

    async def begin_in(self, c: AsyncConnection, door: str, key: str, digest: str) -> Taken | None:
        """Take a delivery in the caller's transaction; a second one with the same key waits here for the first.

        Returns:
            The first one with this key; None: this is it.
        """
        insert = sqlite.insert if self.database.sqlite else postgresql.insert
        values = {
            "principal": door,
            "key": key,
            "request_hash": digest,
            "status": _OK,
            "body": "",
            "created_at": clock.iso(),
        }
        statement = insert(idempotency_keys).values(values).on_conflict_do_nothing().returning(idempotency_keys.c.key)
        if (await c.execute(statement)).first() is not None:
            return None
        row = (await c.execute(_ONE, {"in_door": door, "in_key": key})).one()
        return Taken(row.request_hash, row.body)

    async def end_in(self, c: AsyncConnection, door: str, key: str, receipt: str) -> None:
        """Keep the receipt, in the same transaction."""
        await c.execute(_END, {"in_door": door, "in_key": key, "new_body": receipt})
