"""Keys by which the same request, sent twice, has one effect and one answer.

A key belongs to whoever sent it (the principal) and to one request. Its row goes through three states: *opened* (the
request came in), *used* (its effect is there, written in the effect's own transaction) and *answered* (what was said
then is said again). A process that dies in between leaves a row from which the next one goes on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Integer, Text, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db.client import StoreClient
from operator_core.db.schema import idempotency_keys, work_links
from operator_core.model.person import Actor

__all__ = ["KEPT", "PREFIX", "Keys", "Remembered", "principal_of"]

KEPT = timedelta(days=7)
"""How long a key is remembered."""
PREFIX = "api:"
"""How the principals of people and programs begin, which is also the source of the links of their tickets."""

_OPENED, _USED = 0, 1
_T = idempotency_keys.c
_ONE = select(idempotency_keys).where(
    _T.principal == bindparam("in_principal", type_=Text), _T.key == bindparam("in_key", type_=Text)
)
_ANSWER = (
    update(idempotency_keys)
    .where(
        _T.principal == bindparam("in_principal", type_=Text),
        _T.key == bindparam("in_key", type_=Text),
        _T.status <= _USED,
    )
    .values(status=bindparam("new_status", type_=Integer), body=bindparam("new_body", type_=Text))
    .returning(_T.key)
)
_FORGET_KEYS = delete(idempotency_keys).where(_T.created_at < bindparam("before", type_=Text)).returning(_T.key)
_FORGET_LINKS = (
    delete(work_links)
    .where(
        work_links.c.source >= PREFIX,
        # The character behind the colon: all sources that begin with the prefix, by the primary key's index.
        work_links.c.source < PREFIX[:-1] + ";",
        work_links.c.updated_at < bindparam("before", type_=Text),
    )
    .returning(work_links.c.external_id)
)


def principal_of(actor: Actor) -> str:
    """Whose keys they are: two tokens never share one."""
    return f"{PREFIX}{actor.token_id or actor.name}"


class Remembered(NamedTuple):
    """What is known of a key.

    Attributes:
        request_hash: Of the request that it came with first.
        status: HTTP status of the answer; None: there is none yet.
        body: The answer.
    """

    request_hash: str
    status: int | None
    body: str


class Keys(StoreClient):
    """The keys of a store."""

    async def open(self, principal: str, key: str, request_hash: str) -> Remembered:
        """What is known of a key; one that is new is remembered with this request."""
        values = {
            "principal": principal,
            "key": key,
            "request_hash": request_hash,
            "status": _OPENED,
            "body": "",
            "created_at": clock.iso(),
        }
        insert = sqlite.insert if self.database.sqlite else postgresql.insert
        async with self.database.begin() as c:
            await c.execute(insert(idempotency_keys).values(values).on_conflict_do_nothing())
            row = (await c.execute(_ONE, {"in_principal": principal, "in_key": key})).one()
        return Remembered(row.request_hash, row.status if row.status > _USED else None, row.body)

    async def use(self, c: AsyncConnection, principal: str, key: str) -> bool:
        """Whether the effect of a key is still to be had; in the transaction that has it.

        A second transaction with the same key waits for the first one to end.

        Returns:
            True once; False: the effect is there already.
        """
        insert = sqlite.insert if self.database.sqlite else postgresql.insert
        values = {
            "principal": principal,
            "key": key,
            "request_hash": "",
            "status": _USED,
            "body": "",
            "created_at": clock.iso(),
        }
        statement = (
            insert(idempotency_keys)
            .values(values)
            .on_conflict_do_update(
                index_elements=[_T.principal, _T.key], set_={"status": _USED}, where=_T.status == _OPENED
            )
            .returning(_T.key)
        )
        return (await c.execute(statement)).first() is not None

    async def answer(self, principal: str, key: str, status: int, body: str) -> Remembered:
        """Remember an answer; the first one stays.

        Returns:
            What is remembered now, which is what has to be said.
        """
        names = {"in_principal": principal, "in_key": key}
        async with self.database.begin() as c:
            await c.execute(_ANSWER, {**names, "new_status": status, "new_body": body})
            row = (await c.execute(_ONE, names)).first()
        return Remembered("", status, body) if row is None else Remembered(row.request_hash, row.status, row.body)

    async def forget(self, kept: timedelta = KEPT) -> int:
        """Forget the keys that are older; how many there were."""
        before = clock.iso(clock.now() - kept)
        async with self.database.begin() as c:
            gone = (await c.execute(_FORGET_KEYS, {"before": before})).all()
            await c.execute(_FORGET_LINKS, {"before": before})
        return len(gone)
