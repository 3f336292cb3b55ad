"""Looks in spans of five minutes: how many of each light, and the lowest and highest number; what long charts are drawn
from, a day of them being too many looks to be read for one page.

Spans are written with the looks (see :mod:`operator_core.db.samples`) and reach back as far as looks may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, BindParameter, Integer, Text, and_, bindparam, cast, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core.db.engine import Database
from operator_core.db.look_bounds import look_bounds
from operator_core.db.schema import monitor_samples, monitor_spans

__all__ = ["WIDTH_MS", "Span", "add_to_spans", "drop_old_spans", "read_spans"]

WIDTH_MS = 300_000
"""How wide a span is; each begins at a multiple of it."""

_L = monitor_samples.c
_W = monitor_spans.c
_KEYS: BindParameter[Any] = bindparam("keys", expanding=True)
_SINCE = bindparam("since", type_=BigInteger)
_OLDEST = bindparam("oldest", type_=BigInteger)
_WIDTH = bindparam("width", type_=BigInteger)


class Span(NamedTuple):
    """Some looks at an invariant, one after the other.

    Attributes:
        first: When the first of them ended (milliseconds since 1970).
        last: The last of them.
        greens: How many were green.
        reds: Red.
        unknowns: Could not look.
        low: The lowest number that was seen; None: there was none.
        high: The highest.
    """

    first: int
    last: int
    greens: int = 0
    reds: int = 0
    unknowns: int = 0
    low: float | None = None
    high: float | None = None

    @property
    def looks(self) -> int:
        """How many there were."""
        return self.greens + self.reds + self.unknowns


async def add_to_spans(database: Database, c: AsyncConnection, looks: Sequence[dict[str, Any]], oldest: int) -> None:
    """Add looks that were just noted to their spans.

    Args:
        looks: Rows of ``monitor_samples``, each noted for the first time, by whoever has locked their keys' states.
        oldest: Spans of the same keys that ended before this are dropped (milliseconds since 1970).
    """
    rows = []
    for look in looks:
        span = _span_of(look["at"], look["light"], look["value"])
        row = {"violation_key": look["violation_key"], "at": span.first // WIDTH_MS * WIDTH_MS}
        row |= {"first_at": span.first, "last_at": span.last, "greens": span.greens, "reds": span.reds}
        rows.append({**row, "unknowns": span.unknowns, "low": span.low, "high": span.high})
    if rows:
        await c.execute(_ADD_SQLITE if database.sqlite else _ADD_POSTGRESQL, rows)
        await c.execute(_PRUNE, [{"key": row["violation_key"], "oldest": oldest - WIDTH_MS} for row in rows])


async def drop_old_spans(c: AsyncConnection, oldest: int) -> None:
    """Drop the spans, of whatever key, that ended before that (milliseconds since 1970)."""
    await c.execute(_DROP, {"oldest": oldest - WIDTH_MS})


async def read_spans(
    database: Database, keys: Sequence[str], since: int, *, single: int = 0, width: int = WIDTH_MS
) -> dict[str, list[Span]]:
    """The looks at these keys since then, oldest first; every look is in one span of the answer.

    Args:
        keys: Violation keys.
        since: Milliseconds since 1970; the first span may begin before.
        single: So many of the newest looks at each key are a span of their own.
        width: Of the spans, in milliseconds, a multiple of the stored one: what is not needed as finely is added up
            there.
    """
    found: dict[str, list[Span]] = {key: [] for key in keys}
    if not keys:
        return found
    for row in await database.fetch(_STORED, keys=list(keys), since=since - WIDTH_MS, width=width):
        span = Span._make(row[1:])
        if span.last >= since:
            found[row.violation_key].append(span)
    if single:
        newest: dict[str, list[Span]] = {key: [] for key in keys}
        for row in await database.fetch(_NEWEST, keys=list(keys), since=since, most=single):
            newest[row.violation_key].append(_span_of(row.at, row.light, row.value))
        found = {key: _apart(found[key], sorted(own)) for key, own in newest.items()}
    return found


def _apart(spans: list[Span], looks: list[Span]) -> list[Span]:
    """Spans without these looks, which are the newest, and then the looks."""
    if not looks:
        return spans
    begin, kept = looks[0].first, []
    for span in spans:
        if span.last >= begin:
            own = [look for look in looks if span.first <= look.first <= span.last]
            greens = span.greens - sum(look.greens for look in own)
            reds = span.reds - sum(look.reds for look in own)
            unknowns = span.unknowns - sum(look.unknowns for look in own)
            span = span._replace(last=max(span.first, begin - 1), greens=greens, reds=reds, unknowns=unknowns)
        if span.looks > 0:
            kept.append(span)
    return kept + looks


def _span_of(at: int, light: str, value: float | None) -> Span:
    """A span of one look."""
    if light == "green":
        return Span(at, at, 1, 0, 0, value, value)
    return Span(at, at, 0, 1, 0, value, value) if light == "red" else Span(at, at, 0, 0, 1)


def _add(insert: Any, least: Any, most: Any) -> Any:
    statement = insert(monitor_spans)
    new = statement.excluded
    more: dict[str, Any] = {name: _W[name] + new[name] for name in ("greens", "reds", "unknowns")}
    more |= {"first_at": least(_W.first_at, new.first_at), "last_at": most(_W.last_at, new.last_at)}
    # For SQLite's functions nothing is less, and nothing is more, than no number.
    more["low"] = func.coalesce(least(_W.low, new.low), _W.low, new.low)
    more["high"] = func.coalesce(most(_W.high, new.high), _W.high, new.high)
    return statement.on_conflict_do_update(index_elements=[_W.violation_key, _W.at], set_=more)


_ADD_SQLITE = _add(sqlite.insert, func.min, func.max)
_ADD_POSTGRESQL = _add(postgresql.insert, func.least, func.greatest)
_PRUNE = delete(monitor_spans).where(_W.violation_key == bindparam("key", type_=Text), _W.at < _OLDEST)
_FORGOTTEN = select(_W.violation_key, _W.at).where(_W.at < _OLDEST).with_for_update(skip_locked=True)
_DROP = delete(monitor_spans).where(tuple_(_W.violation_key, _W.at).in_(_FORGOTTEN))
_STORED = (
    select(
        _W.violation_key,
        func.min(_W.first_at),
        func.max(_W.last_at),
        *(cast(func.sum(count), Integer) for count in (_W.greens, _W.reds, _W.unknowns)),
        func.min(_W.low),
        func.max(_W.high),
    )
    .where(_W.violation_key.in_(_KEYS), _W.at >= _SINCE)
    .group_by(_W.violation_key, _W.at // _WIDTH)
    .order_by(_W.violation_key, _W.at // _WIDTH)
)
_bounds = look_bounds(keys=_KEYS)
# Not ordered here, since an order by the primary key would be a reason to read all of it.
_NEWEST = select(_L.violation_key, _L.at, _L.light, _L.value).select_from(
    _bounds.join(
        monitor_samples, and_(_L.violation_key == _bounds.c.violation_key, _L.at > _bounds.c.before, _L.at >= _SINCE)
    )
)
