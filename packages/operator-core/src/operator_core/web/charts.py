"""Charts as SVG text: no script, no inline style, a shape for each meaning beside its colour, and a sentence for those
who do not see them. However much there is to draw, a chart has a bounded size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

from markupsafe import Markup

from operator_core.api.models import Mark, Sample
from operator_core.model.monitor import Light
from operator_core.web.words import ago, duration, grouped, moment, money

__all__ = ["Bar", "bars", "share", "sparkline"]

_WIDTH, _HEIGHT = 300, 32
_TOP, _FLOOR = 7.0, 27.0
_MOST_MARKS = 12
_SPARSE = 3.0
_RANK: dict[Light | None, int] = {None: 0, "green": 1, "unknown": 2, "red": 3}
_LOOKED: tuple[Light, ...] = ("green", "red", "unknown")
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


class _Cell(NamedTuple):
    """What a column of the chart shows: the worst light, and the lowest and the highest number."""

    light: Light | None
    low: float | None = None
    high: float | None = None


_PLAIN: dict[Light | None, _Cell] = {light: _Cell(light) for light in _RANK}


def sparkline(
    samples: Sequence[Sample], marks: Sequence[Mark], *, since: datetime, until: datetime, cut: bool = False
) -> Markup:
    """The lights of an invariant over time, its numbers where it has some, and what happened to its tickets.

    Green is a low line, red a tall block, unknown a dashed gap with a question mark; where nobody looked there is
    nothing. Numbers are never drawn through what is unknown.

    Args:
        samples: Oldest first.
        since: Left end of the chart.
        until: Right end.
        cut: There were looks before these, which are not given.
    """
    seen = [s for s in samples if since <= s.at <= until]
    cells = _cells(seen, since, until)
    parts = [*_lights(cells), *_line(cells)]
    first = next((i for i, cell in enumerate(cells) if cell.light), 0)
    if cut and first > 0:
        said = f"{grouped(len(seen))} looks are drawn; what was before is not"
        parts.append(
            Markup('<path class="cut" d="M0 30h{}" stroke-dasharray="1 4"><title>{}</title></path>').format(first, said)
        )
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
        x, tall = left + step * i, max(1.0, room * value / top) if value else 0.0
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


def _cells(samples: Sequence[Sample], since: datetime, until: datetime) -> list[_Cell]:
    """The columns. A look speaks until the next one, but not for much longer than looks are usually apart."""
    lights: list[Light | None] = [None] * _WIDTH
    numbers: list[list[float]] = [[] for _ in range(_WIDTH)]
    whole = (until - since).total_seconds()
    if not samples or whole <= 0:
        return [_Cell(None)] * _WIDTH
    starts = [(s.at - since).total_seconds() for s in samples]
    apart = [b - a for a, b in pairwise(starts)]
    reach = _SPARSE * median(apart) if apart else whole / _WIDTH
    for i, sample in enumerate(samples):
        end = min(starts[i] + reach, starts[i + 1] if i + 1 < len(starts) else whole, whole)
        first = min(_WIDTH - 1, int(_WIDTH * starts[i] / whole))
        last = max(first + 1, min(_WIDTH, math.ceil(_WIDTH * end / whole)))
        for x in range(first, last):
            # The end of a column belongs to whoever begins in it; only the worst of what begins there is kept.
            if x > first or _RANK[sample.light] >= _RANK[lights[x]]:
                lights[x] = sample.light
        if sample.value is not None and math.isfinite(sample.value) and sample.light != "unknown":
            numbers[first].append(sample.value)
    return [
        _Cell(light, min(own), max(own)) if own and light in ("green", "red") else _PLAIN[light]
        for light, own in zip(lights, numbers, strict=True)
    ]


def _lights(cells: Sequence[_Cell]) -> Iterator[Markup]:
    at = 0
    for light, run in groupby(cells, key=lambda cell: cell.light):
        wide = len(list(run))
        x, at = at, at + wide
        if light == "green":
            yield Markup('<rect class="green" x="{}" y="29" width="{}" height="2"/>').format(x, wide)
        elif light == "red":
            yield Markup('<rect class="red" x="{}" y="7" width="{}" height="24"/>').format(x, wide)
        elif light == "unknown":
            yield Markup('<path class="unknown" d="M{} 30h{}" stroke-dasharray="2 2"/>').format(x, wide)
            middle = min(_WIDTH - 4.0, max(4.0, x + wide / 2))
            if wide >= 9 or at == _WIDTH:
                yield Markup('<text class="unknown" x="{}" y="23" text-anchor="middle">?</text>').format(_n(middle))
            else:
                yield Markup('<circle class="unknown" cx="{}" cy="19" r="2"/>').format(_n(middle))


def _line(cells: Sequence[_Cell]) -> Iterator[Markup]:
    known = [value for cell in cells for value in cell[1:] if value is not None]
    if not known:
        return
    low, high = min(known), max(known)
    # Halved first: the difference of two numbers that a float can hold is not always one.
    spread = high / 2 - low / 2
    for there, run in groupby(enumerate(cells), key=lambda place: place[1].light in ("green", "red")):
        points: list[str] = []
        for at, cell in run:
            if cell.low is None or cell.high is None:
                continue
            for value in (cell.low,) if cell.low == cell.high else (cell.low, cell.high):
                level = (value / 2 - low / 2) / spread if spread > 0 else 0.5
                points.append(f"{at + 0.5:g},{_n(_FLOOR - level * (_FLOOR - _TOP))}")
        if there and len(points) == 1:
            x, y = points[0].split(",")
            yield Markup('<circle class="value" cx="{}" cy="{}" r="1"/>').format(x, y)
        elif there and points:
            yield Markup('<polyline class="value" points="{}"/>').format(" ".join(points))


def _sentence(samples: Sequence[Sample], marks: Sequence[Mark], since: datetime, until: datetime) -> str:
    span = duration((until - since).total_seconds())
    if not samples:
        return f"Nobody looked in {span}."
    counts = Counter(s.light for s in samples)
    lights = ", ".join(f"{grouped(counts[light])} {light}" for light in _LOOKED if counts[light])
    said = [f"{grouped(len(samples))} look{'' if len(samples) == 1 else 's'} in {span}: {lights}"]
    numbers = [s.value for s in samples if s.value is not None and math.isfinite(s.value) and s.light != "unknown"]
    if numbers:
        said.append(f"values from {min(numbers):g} to {max(numbers):g}, the last one {numbers[-1]:g}")
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
