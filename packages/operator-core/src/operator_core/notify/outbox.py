"""A durable outbox: effects on other systems, decided in a transaction here and carried out over there.

Whoever changes something here puts letters into the outbox in the same transaction, so that both happen or neither. A
:class:`Courier` carries them out afterwards, in the order of their channel, and records how each ended. It may die at
any instruction: a letter whose end is not recorded is carried out again, and says so (``attempt``). With effects that
are idempotent (an id chosen when the letter was put, a conditional update) that is exactly once in effect.

A letter goes out only when all earlier ones of its channel have ended. A channel that has to wait holds up no other.
The head of a channel is leased on the database's clock, so that two processes never carry it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Integer, Text, bindparam, func, or_, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.engine import Database
from operator_core.db.schema import db_now_ms, outbox
from operator_core.errors import NotFound, TransitionRefused
from operator_core.model.entry import stored_json

__all__ = ["Delivered", "Later", "Letter", "Never", "Outcome", "Slip", "again", "put", "slips"]


class Letter(NamedTuple):
    """An effect that is to happen.

    Attributes:
        id: Its number; those of a channel go out in this order.
        channel: Where to.
        kind: What it is, for the one who delivers.
        body: JSON.
        attempt: 1 for the first try; more: an earlier one may have had its effect, and nobody was left to say so.
    """

    id: int
    channel: str
    kind: str
    body: dict[str, Any]
    attempt: int


@dataclass(frozen=True)
class Delivered:
    """It happened; or it had happened already."""


class Later(NamedTuple):
    """Not now: the channel waits.

    Attributes:
        why: One sentence.
        after_s: The other side asks for a pause of at least so many seconds; None: it does not say.
    """

    why: str
    after_s: float | None = None


class Never(NamedTuple):
    """It cannot happen any more; that is recorded, and the channel goes on.

    Attributes:
        why: One sentence.
    """

    why: str


Outcome = Delivered | Later | Never


class Slip(NamedTuple):
    """A letter as it is listed, without its body; times are ISO 8601 (UTC).

    Attributes:
        ended_at: None while it is still to go out.
        error: Why it waits, or why it never went out; None: nothing is wrong.
        next_try: When it is tried next, at the earliest; None: as soon as it is its turn, or never.
        behind: Number of the letter of the same channel that goes out before it; None: it is the next.
        under_way: Whether somebody carries it now.
    """

    id: int
    channel: str
    kind: str
    attempts: int
    created_at: str
    ended_at: str | None
    error: str | None
    next_try: str | None = None
    behind: int | None = None
    under_way: bool = False


_INSERTS = {
    "sqlite": sqlite.insert(outbox).on_conflict_do_nothing(index_elements=[outbox.c.dedupe_key]),
    "postgresql": postgresql.insert(outbox).on_conflict_do_nothing(index_elements=[outbox.c.dedupe_key]),
}
# Numbers are given before the commit: without it, a letter could appear behind one that has gone out already.
_IN_TURN = text("SELECT pg_advisory_xact_lock(hashtextextended(:channel, 7))")
_prefix = bindparam("prefix", type_=Text)
_NOW = db_now_ms()
_earlier = outbox.alias("earlier")
_head = (
    select(func.min(_earlier.c.id))
    .where(_earlier.c.channel == outbox.c.channel, _earlier.c.ended_at.is_(None))
    .scalar_subquery()
)
_SLIPS = (
    select(
        outbox.c.id,
        outbox.c.channel,
        outbox.c.kind,
        outbox.c.attempts,
        outbox.c.created_at,
        outbox.c.ended_at,
        outbox.c.error,
        outbox.c.due_at,
        (outbox.c.due_at > _NOW).label("pauses"),
        (outbox.c.taken_until > _NOW).label("under_way"),
        _head.label("head"),
    )
    .where(
        func.substr(outbox.c.channel, 1, func.length(_prefix)) == _prefix,
        or_(outbox.c.ended_at.is_(None), outbox.c.error.is_not(None)),
    )
    .order_by(outbox.c.id.desc())
    .limit(bindparam("limit", type_=Integer))
)
_AGAIN = (
    update(outbox)
    .where(
        outbox.c.id == bindparam("letter", type_=Integer),
        or_(outbox.c.ended_at.is_(None), outbox.c.error.is_not(None)),
    )
    .values(ended_at=None, due_at=0)
    .returning(outbox.c.channel)
)
# A courier that takes one behind it at this moment must be seen by the next, and see it.
_ALONE = text("LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE")
_EXISTS = select(outbox.c.id).where(outbox.c.id == bindparam("letter", type_=Integer))


async def put(c: AsyncConnection, channel: str, kind: str, body: Mapping[str, Any], *, dedupe_key: str) -> bool:
    """Put a letter into the outbox, in the caller's transaction; ``Courier.wake`` tells of it afterwards.

    Args:
        c: A transaction of :meth:`operator_core.db.engine.Database.begin`.
        channel: Letters of one channel go out in the order in which they were put.
        kind: What it is, for the one who delivers.
        body: JSON; without secrets, because it is stored as it is.
        dedupe_key: Names the effect. A letter whose key was there before, sent or not, is not put again.

    Returns:
        False when the key was there.
    """
    if c.dialect.name == "postgresql":
        await c.execute(_IN_TURN, {"channel": channel})
    row = {
        "channel": channel,
        "dedupe_key": dedupe_key,
        "kind": kind,
        "body": stored_json(body),
        "created_at": clock.iso(),
    }
    return (await c.execute(_INSERTS[c.dialect.name], row)).rowcount == 1


async def slips(database: Database, channels: str = "", *, limit: int = 100) -> list[Slip]:
    """What is still to go out and what never will, newest first."""
    rows = await database.fetch(_SLIPS, prefix=channels, limit=limit)
    return [_slip(row) for row in rows]


def _slip(row: Row[Any]) -> Slip:
    known = Slip(row.id, row.channel, row.kind, row.attempts, row.created_at, row.ended_at, row.error)
    if row.ended_at is not None:
        return known
    at = clock.iso(datetime.fromtimestamp(row.due_at / 1000, UTC)) if row.pauses else None
    behind = row.head if row.head is not None and row.head < row.id else None
    return known._replace(next_try=at, behind=behind, under_way=bool(row.under_way))


async def again(database: Database, letter: int, *, actor: str = "person") -> None:
    """Let a letter that waits, or that was given up, go out now.

    Args:
        actor: Who wants it; the ledger is told.

    Raises:
        NotFound: There is none with that number.
        TransitionRefused: It has gone out.
    """
    async with database.begin() as c:
        if not database.sqlite:
            await c.execute(_ALONE)
        found = (await c.execute(_AGAIN, {"letter": letter})).first()
        if found is not None:
            await ledger.append(database, c, "letter_again", letter=letter, channel=found.channel, actor=actor)
    if found is not None:
        return
    if not await database.fetch(_EXISTS, letter=letter):
        raise NotFound(f"There is no letter {letter} in the outbox; it may have been tidied away.")
    raise TransitionRefused(f"Letter {letter} has gone out; nothing is repeated.")
