"""The looks at what is under watch, one row for each: what the monitor's charts are drawn from.

A row is written in the transaction that remembers the look. Whoever writes rows of a key has locked the key's state in
that transaction, so that two monitors never wait for each other here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import BigInteger, Text, and_, bindparam, cast, delete, func, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db.engine import Database
from operator_core.db.look_bounds import look_bounds
from operator_core.db.schema import monitor_samples
from operator_core.db.spans import add_to_spans, drop_old_spans
from operator_core.model.monitor import Light, MonitorState

__all__ = ["KEPT", "KEPT_S", "Look", "add_looks", "drop_forgotten", "newest_looks", "number_in"]

KEPT = 3000
"""So many looks of each key are kept at most."""
KEPT_S = 86_400.0
"""Older ones are dropped, in seconds."""

_AT_ONCE = 1000
_SKEW_MS = 60_000
"""The clocks of two machines may differ by so much."""
_LIGHTS: dict[str, Light] = {"green": "green", "red": "red", "unknown": "unknown"}
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)

_S = monitor_samples.c
_mine = _S.violation_key == bindparam("key", type_=Text)
_older = monitor_samples.alias("older")
_PRUNE = delete(monitor_samples).where(
    _mine,
    or_(
        _S.at < bindparam("oldest", type_=BigInteger),
        _S.at
        <= select(_older.c.at)
        .where(_older.c.violation_key == bindparam("key", type_=Text))
        .order_by(_older.c.at.desc())
        .offset(KEPT)
        .limit(1)
        .scalar_subquery(),
    ),
)
_FORGOTTEN = (
    select(_S.violation_key, _S.at)
    .where(_S.at < bindparam("oldest", type_=BigInteger))
    .limit(_AT_ONCE)
    .with_for_update(skip_locked=True)
)
_DROP = delete(monitor_samples).where(tuple_(_S.violation_key, _S.at).in_(_FORGOTTEN))
_until = bindparam("until", type_=BigInteger)
_bounds = look_bounds(until=_until)
# One row for each key, because rows are what costs; not ordered here, since an order by the primary key would be a
# reason to read all of it.
_NEWEST = (
    select(
        _S.violation_key,
        func.aggregate_strings(
            cast(_S.at, Text) + "," + _S.light + "," + func.coalesce(cast(_S.value, Text), ""), ";"
        ).label("looks"),
    )
    .select_from(
        _bounds.join(
            monitor_samples,
            and_(_S.violation_key == _bounds.c.violation_key, _S.at > _bounds.c.before, _S.at <= _until),
        )
    )
    .group_by(_S.violation_key)
)


class Look(NamedTuple):
    """One look at an invariant.

    Attributes:
        at: When it ended (UTC, in whole milliseconds).
        value: The number that was seen; None: nothing was seen, or no number.
    """

    at: datetime
    light: Light
    value: float | None


async def add_looks(database: Database, c: AsyncConnection, states: Sequence[MonitorState]) -> None:
    """Note the newest look of each state, and drop what is too old, in the transaction that saves these states.

    A look that was noted before is not noted again.
    """
    if not states:
        return
    rows = [
        {"violation_key": s.violation_key, "at": _ms(s.updated_at), "light": s.light, "value": number_in(s)}
        for s in states
    ]
    insert = sqlite.insert if database.sqlite else postgresql.insert
    noted = await c.execute(insert(monitor_samples).on_conflict_do_nothing().returning(_S.violation_key, _S.at), rows)
    fresh = {(row.violation_key, row.at) for row in noted}
    kept_ms = int(KEPT_S * 1000)
    await c.execute(_PRUNE, [{"key": s.violation_key, "oldest": _ms(s.updated_at) - kept_ms} for s in states])
    looks = [row for row in rows if (row["violation_key"], row["at"]) in fresh]
    await add_to_spans(database, c, looks, max(_ms(s.updated_at) for s in states) - kept_ms)


async def drop_forgotten(database: Database) -> int:
    """Drop old looks at what is no longer under watch; returns how many."""
    count = 0
    oldest = _ms(clock.now()) - int(KEPT_S * 1000)
    while True:
        async with database.begin() as c:
            dropped = (await c.execute(_DROP, {"oldest": oldest})).rowcount
            await drop_old_spans(c, oldest)
        count += dropped
        if dropped < _AT_ONCE:
            return count


async def newest_looks(database: Database, most: int) -> dict[str, list[Look]]:
    """The newest looks at everything, at most ``most`` (1 or more) each, oldest first, by violation key.

    Those that lie in the future, because a clock was set back since, are not among them until their time comes.
    """
    until = _ms(clock.now()) + _SKEW_MS
    return {row.violation_key: _looks(row.looks) for row in await database.fetch(_NEWEST, most=most, until=until)}


def _looks(text: str) -> list[Look]:
    looks = []
    for part in text.split(";"):
        at, light, value = part.split(",")
        when = datetime.fromtimestamp(int(at) / 1000, UTC)
        looks.append(Look(when, _LIGHTS[light], float(value) if value else None))
    return sorted(looks, key=lambda look: look.at)


def number_in(state: MonitorState) -> float | None:
    """The number that the newest look saw; None: it saw none, or nothing at all."""
    # What could not be looked at still has the value from before.
    if state.light == "unknown" or state.last_value is None or not _NUMBER.fullmatch(state.last_value):
        return None
    number = float(state.last_value)
    return number if math.isfinite(number) else None


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
