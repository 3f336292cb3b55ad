"""Charts as SVG text: no script, no inline style, a shape for each meaning beside its colour, and a sentence for those
who do not see them. However much there is to draw, a chart has a bounded size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

from markupsafe import Markup

from operator_core.api.models import Mark
from operator_core.db.spans import Span
from operator_core.model.monitor import Light
from operator_core.web.words import ago, duration, grouped, moment, money

__all__ = ["Bar", "bars", "share", "sparkline"]

_WIDTH, _HEIGHT = 300, 32
_TOP, _FLOOR = 7.0, 27.0
_MOST_MARKS = 12
_SPARSE = 3.0
_RANK: dict[Light | None, int] = {None: 0, "green": 1, "unknown": 2, "red": 3}
_ROOM = 9
_DENSE = 150
_SIGNS = {
    "opened": "M{0} 0l3.5 6h-7z",
    "claimed": "M{0} 0v6",
    "verified": "M{1} 3l2.2 2.6l4-5",
    "escalated": "M{0} 0l3 3l-3 3l-3 -3z",
    "closed": "M{1} 0l6 6m0 -6l-6 6",
}
_SAID = {
    "opened": "ticket #{} opened",
    "claimed": "a worker took #{}",
    "verified": "#{} was repaired, verified",
    "escalated": "#{} was escalated",
    "closed": "#{} was closed",
}


class Bar(NamedTuple):
    """One bar.

    Attributes:
        label: Below it, where there is room.
        value: USD; what is negative or no number is drawn as nothing.
        note: Said when somebody points at it.
        open: The true value is at least this one.
    """

    label: str
    value: float
    note: str
    open: bool = False


class _Columns(NamedTuple):
    """What the columns of the chart show.

    Attributes:
        lights: Of each its worst light; None: nobody looked.
        unsure: Those that are red, and somebody could not look there either.
        lows: The lowest number, of those that have one.
        highs: The highest.
    """

    lights: list[Light | None]
    unsure: set[int]
    lows: dict[int, float]
    highs: dict[int, float]


def sparkline(spans: Sequence[Span], marks: Sequence[Mark], *, since: datetime, until: datetime) -> Markup:
    """The lights of an invariant over time, its numbers where it has some, and what happened to its tickets.

    Green is a low line, red a tall block, unknown a dashed gap with a question mark; where nobody looked there is
    nothing. Where there is no room for each look the worst one is drawn, and what is red and unknown shows both.
    Numbers are never drawn through what is unknown.

    Args:
        spans: Oldest first; none begins before the one before it has ended.
        since: Left end of the chart.
        until: Right end.
    """
    begin, end = _ms(since), _ms(until)
    seen = [span for span in spans if span.last >= begin and span.first <= end]
    columns = _columns(seen, begin, end)
    parts = [*_lights(columns.lights), *_unsure(columns.unsure), *_line(columns)]
    shown = [m for m in marks if since <= m.at <= until][-_MOST_MARKS:]
    for mark in shown:
        x = _WIDTH * ((mark.at - since) / (until - since)) if until > since else 0.0
        middle = min(_WIDTH - 4.0, max(4.0, x))
        path = _SIGNS[mark.what].format(_n(middle), _n(middle - 3))
        said = f"{_SAID[mark.what].format(mark.ticket_id)}, {moment(mark.at)}"
        parts.append(Markup('<path class="m-{}" d="{}"><title>{}</title></path>').format(mark.what, path, said))
    return Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, _sentence(seen, shown, since, until), Markup("").join(parts)
    )


def bars(items: Sequence[Bar], *, label: str) -> Markup:
    """Upright bars of money with a scale, in the order of ``items``; at most 400 are drawn, the last ones.

    Args:
        label: What they show, for those who do not see them.
    """
    items = items[-400:]
    height, left, step = 132.0, 52.0, max(4.0, min(38.0, 1140.0 / max(1, len(items))))
    width = left + step * max(1, len(items)) + 8
    values = [_known(item.value) for item in items]
    top = _round_up(max(values, default=0.0))
    base, room = height - 20.0, height - 34.0
    parts = []
    for level in (0.0, 0.5, 1.0):
        y = base - room * level
        parts.append(
            Markup('<path class="grid" d="M{} {}H{}"/><text x="{}" y="{}" text-anchor="end">{}</text>').format(
                _n(left), _n(y), _n(width), _n(left - 6), _n(y + 4), money(top * level)
            )
        )
    every = max(1, math.ceil(58.0 / step))
    for i, (item, value) in enumerate(zip(items, values, strict=True)):
        x, tall = left + step * i, max(1.0, room * (value / top)) if value else 0.0
        kind = "bar open" if item.open else "bar"
        parts.append(
            Markup('<g class="{}"><rect class="hit" x="{}" y="{}" width="{}" height="{}"/>').format(
                kind, _n(x), _n(base - room), _n(step), _n(room)
            )
        )
        parts.append(
            Markup('<rect class="fill" x="{}" y="{}" width="{}" height="{}"/><title>{}</title></g>').format(
                _n(x + step * 0.12), _n(base - tall), _n(step * 0.76), _n(tall), item.note
            )
        )
        if (len(items) - 1 - i) % every == 0:
            parts.append(
                Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
                    _n(x + step / 2), _n(height - 5), item.label
                )
            )
    return Markup('<svg class="bars" viewBox="0 0 {} {}" width="{}" role="img" aria-label="{}">{}</svg>').format(
        _n(width), _n(height), _n(width), label, Markup("").join(parts)
    )


def share(part: float, whole: float) -> Markup:
    """A level bar that shows ``part`` of ``whole``; its numbers stand beside it."""
    level = min(1.0, _known(part) / whole) if _known(whole) > 0 else 0.0
    return Markup(
        '<svg class="share" viewBox="0 0 100 6" aria-hidden="true"><rect class="rail" width="100" height="6" rx="3"/>'
        '<rect class="fill" width="{}" height="6" rx="3"/></svg>'
    ).format(_n(100 * level))


def _columns(spans: Sequence[Span], begin: int, end: int) -> _Columns:
    """A look speaks until the next one, but not for much longer than looks are usually apart."""
    lights: list[Light | None] = [None] * _WIDTH
    unsure: set[int] = set()
    lows: dict[int, float] = {}
    highs: dict[int, float] = {}
    columns, whole = _Columns(lights, unsure, lows, highs), end - begin
    if not spans or whole <= 0:
        return columns
    apart = [(last - first) / (g + r + u - 1) for first, last, g, r, u, *_ in spans if g + r + u > 1]
    apart += [after.first - before.last for before, after in pairwise(spans)]
    reach = int(_SPARSE * median(apart)) if apart else whole // _WIDTH
    ends = [span.first for span in spans[1:]]
    for (first_at, last_at, _, reds, unknowns, low, high), following in zip(spans, [*ends, end], strict=True):
        light: Light = "red" if reds else "unknown" if unknowns else "green"
        stop = last_at + reach
        if stop > following:
            stop = following
        first = _WIDTH * (first_at - begin) // whole if first_at > begin else 0
        first = first if first < _WIDTH else _WIDTH - 1
        # Rounded up, and no further than the right end.
        last = -(-_WIDTH * (stop - begin) // whole)
        last = first + 1 if last <= first else last if last < _WIDTH else _WIDTH
        # The end of a column belongs to whoever begins in it; only the worst of what begins there is kept.
        there = lights[first]
        lights[first:last] = [light] * (last - first)
        if _RANK[there] > _RANK[light]:
            lights[first] = there
        if reds and unknowns:
            unsure.update(range(first, last))
        elif light != "green" and there not in (None, "green", light):
            unsure.add(first)
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high):
            lows[first] = min(low, lows[first]) if first in lows else low
            highs[first] = max(high, highs[first]) if first in highs else high
    return columns


def _lights(lights: Sequence[Light | None]) -> Iterator[Markup]:
    at = 0
    for light, run in groupby(lights):
        wide = len(list(run))
        x, at = at, at + wide
        if light == "green":
            yield Markup('<rect class="green" x="{}" y="29" width="{}" height="2"/>').format(x, wide)
        elif light == "red":
            yield Markup('<rect class="red" x="{}" y="7" width="{}" height="24"/>').format(x, wide)
        elif light == "unknown":
            yield Markup('<path class="unknown" d="M{} 30h{}" stroke-dasharray="2 2"/>').format(x, wide)
            yield _question(x, wide, text=wide >= _ROOM or at == _WIDTH)


def _unsure(unsure: set[int]) -> Iterator[Markup]:
    """Marks over what is red, and somebody could not look there either."""
    at = 0
    for there, run in groupby(x in unsure for x in range(_WIDTH if unsure else 0)):
        wide = len(list(run))
        x, at = at, at + wide
        if there:
            yield _question(x, wide, text=wide >= _ROOM)


def _question(x: int, wide: int, *, text: bool) -> Markup:
    middle = _n(min(_WIDTH - 4.0, max(4.0, x + wide / 2)))
    if text:
        return Markup('<text class="unknown" x="{}" y="23" text-anchor="middle">?</text>').format(middle)
    return Markup('<circle class="unknown" cx="{}" cy="19" r="2"/>').format(middle)


def _line(columns: _Columns) -> Iterator[Markup]:
    lights, _, lows, highs = columns
    drawn = [x for x in lows if lights[x] in ("green", "red")]
    if not drawn:
        return
    low, high = min(lows[x] for x in drawn), max(highs[x] for x in drawn)
    # Halved first: the difference of two numbers that a float can hold is not always one.
    spread = high / 2 - low / 2
    places = 0 if len(drawn) > _DENSE else 1

    def height(value: float) -> str:
        level = (value / 2 - low / 2) / spread if spread > 0 else 0.5
        return f"{_FLOOR - level * (_FLOOR - _TOP):.{places}f}"

    for there, run in groupby(range(_WIDTH), key=lambda x: lights[x] in ("green", "red")):
        points: list[str] = []
        for x in run if there else ():
            if x in lows:
                bottom, top = height(lows[x]), height(highs[x])
                points.append(f"{x},{bottom}")
                if top != bottom:
                    points.append(f"{x},{top}")
        if len(points) == 1:
            at, y = points[0].split(",")
            yield Markup('<circle class="value" cx="{}" cy="{}" r="1"/>').format(at, y)
        elif points:
            yield Markup('<polyline class="value" points="{}"/>').format(" ".join(points))


def _sentence(spans: Sequence[Span], marks: Sequence[Mark], since: datetime, until: datetime) -> str:
    length = duration((until - since).total_seconds())
    if not spans:
        return f"Nobody looked in {length}."
    counts = {
        "green": sum(span.greens for span in spans),
        "red": sum(span.reds for span in spans),
        "unknown": sum(span.unknowns for span in spans),
    }
    looks = sum(counts.values())
    lights = ", ".join(f"{grouped(count)} {light}" for light, count in counts.items() if count)
    said = [f"{grouped(looks)} look{'' if looks == 1 else 's'} in {length}: {lights}"]
    lows = [span.low for span in spans if span.low is not None and math.isfinite(span.low)]
    highs = [span.high for span in spans if span.high is not None and math.isfinite(span.high)]
    if lows and highs:
        said.append(f"values from {min(lows):g} to {max(highs):g}")
    said += [f"{_SAID[mark.what].format(mark.ticket_id)} {ago(mark.at, until)}" for mark in marks]
    return "; ".join(said) + "."


def _known(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0


def _round_up(value: float) -> float:
    """The next number that is easy to halve, so that a scale can be read."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0) if step * power >= value), value)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
