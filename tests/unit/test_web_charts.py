"""Charts as text: every meaning has its own shape, unknown is never drawn through, and nothing makes them large."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup

from operator_core.api.models import Mark
from operator_core.db.spans import Span
from operator_core.web.charts import Bar, bars, share, sparkline
from tests.support.scene import HOSTILE

BEGIN = datetime(2026, 1, 28, 10, 0, tzinfo=UTC)
END = BEGIN + timedelta(hours=1)


def span(at: datetime, lights: str, last_s: float = 0.0, low: float | None = None, high: float | None = None) -> Span:
    first = round(at.timestamp() * 1000)
    return Span(first, first + round(1000 * last_s), *(lights.count(c) for c in "gru"), low, high)


def samples(lights: str, values: Sequence[float | None] | None = None, every_s: float = 30.0) -> list[Span]:
    """Single looks from the beginning on: ``g``, ``r``, ``u``; a blank is no look at all."""
    given = values or [None] * len(lights)
    return [
        span(BEGIN + timedelta(seconds=every_s * i), c, low=v, high=v)
        for i, (c, v) in enumerate(zip(lights, given, strict=True))
        if c != " "
    ]


def draw(seen: Sequence[Span], marks: Sequence[Mark] = (), until: datetime = END) -> ElementTree.Element:
    """The chart, which must be well formed."""
    return ElementTree.fromstring(sparkline(seen, marks, since=BEGIN, until=until))


def shapes(svg: ElementTree.Element, kind: str, name: str = "") -> list[ElementTree.Element]:
    return [e for e in svg.iter() if e.get("class") == kind and (not name or e.tag == name)]


def reach(element: ElementTree.Element) -> tuple[float, float]:
    """From where to where it goes, in columns."""
    if element.tag == "polyline":
        xs = [float(point.split(",")[0]) for point in (element.get("points") or "").split()]
        return min(xs), max(xs)
    if element.tag == "path":
        x, wide = re.findall(r"M([\d.]+) 30h([\d.]+)", element.get("d") or "")[0]
        return float(x), float(x) + float(wide)
    return float(element.get("x") or 0), float(element.get("x") or 0) + float(element.get("width") or 0)


def test_each_light_has_its_own_shape_at_its_place() -> None:
    svg = draw(samples("g" * 40 + "r" * 40 + "u" * 40))
    (green,), (red,), (unknown,) = shapes(svg, "green"), shapes(svg, "red"), shapes(svg, "unknown", "path")
    assert [round(x) for x in reach(green)] == [0, 100]
    assert [round(x) for x in reach(red)] == [100, 200]
    assert [round(x) for x in reach(unknown)] == [200, 300]
    assert float(red.get("height") or 0) > 5 * float(green.get("height") or 0)
    assert unknown.get("stroke-dasharray")
    assert [e.text for e in shapes(svg, "unknown", "text")] == ["?"]
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "120 looks in 1 h 00 min: 40 green, 40 red, 40 unknown."


def test_a_number_is_never_drawn_through_what_is_unknown_or_was_not_looked_at() -> None:
    lights = "g" * 40 + "u" * 20 + "g" * 20 + " " * 20 + "g" * 20
    svg = draw(samples(lights, [float(i % 7) for i in range(120)]))
    lines = sorted(reach(line) for line in shapes(svg, "value", "polyline"))
    assert len(lines) == 3
    (a, b), (c, d), (e, f) = lines
    assert a < 2
    assert 95 < b < 101
    assert c >= 149
    assert d < 201
    assert e >= 249
    assert f > 290
    gap = [reach(r) for r in (*shapes(svg, "green"), *shapes(svg, "red"), *shapes(svg, "unknown", "path"))]
    assert not [g for g in gap if g[0] < 245 and g[1] > 212], "something is drawn where nobody looked"


def test_unknown_looks_keep_no_value() -> None:
    svg = draw(samples("uuu", [1.0, 2.0, 3.0]))
    assert not shapes(svg, "value")


def test_a_short_fault_among_many_looks_is_seen() -> None:
    lights = "g" * 1500 + "r" + "g" * 1499
    svg = draw(samples(lights, every_s=1.2))
    assert len(shapes(svg, "red")) == 1
    assert shapes(svg, "red")[0].get("width") == "1"
    unknown = draw(samples(lights.replace("r", "u"), every_s=1.2))
    assert len(shapes(unknown, "unknown")) >= 2, "it has a dashed part and a mark of its own"


def test_a_monitor_that_stopped_is_not_drawn_on() -> None:
    svg = draw(samples("g" * 10))
    (green,) = shapes(svg, "green")
    assert reach(green)[1] < 32


def test_what_happened_is_marked_and_said() -> None:
    marks = [
        Mark.model_validate({"at": BEGIN + timedelta(minutes=10 * i), "what": what, "ticket_id": 7})
        for i, what in enumerate(("opened", "claimed", "verified", "escalated", "closed"), 1)
    ]
    svg = draw(samples("g" * 120), marks)
    for i, mark in enumerate(marks, 1):
        (shape,) = shapes(svg, f"m-{mark.what}")
        x = float(re.findall(r"M([\d.]+)", shape.get("d") or "")[0])
        assert abs(x - 50 * i) <= 3
        (title,) = shape
        assert "#7" in (title.text or "")
        assert f"2026-01-28 {10 + i // 6}:{i % 6}0:00 UTC" in (title.text or "")
    assert "#7 was repaired, verified 30 min ago" in (svg.get("aria-label") or "")
    outside = [Mark(at=BEGIN - timedelta(seconds=1), what="opened", ticket_id=8)]
    assert not shapes(draw(samples("g"), outside), "m-opened")


FIVE = timedelta(minutes=5)


def wide(lights: Sequence[str], **numbers: float) -> list[Span]:
    """Spans of five minutes from the beginning on, with the looks of each."""
    return [span(BEGIN + FIVE * i, own, 270.0, **numbers) for i, own in enumerate(lights) if own]


def test_a_span_is_drawn_as_its_worst_look() -> None:
    svg = draw(wide(["g" * 10, "g" * 9 + "r", "g" * 10, "g" * 9 + "u", "g" * 10]))
    (red,), (unknown,) = shapes(svg, "red"), shapes(svg, "unknown", "path")
    assert reach(red) == (25, 50)
    assert reach(unknown) == (75, 100)
    assert [reach(green) for green in shapes(svg, "green")] == [(0, 25), (50, 75), (100, 130)]
    assert svg.get("aria-label") == "50 looks in 1 h 00 min: 48 green, 1 red, 1 unknown."


def test_unknown_is_not_hidden_by_red_nor_red_by_unknown() -> None:
    svg = draw(wide(["g" * 10, "g" * 8 + "ru", "r" * 10]))
    assert [reach(red) for red in shapes(svg, "red")] == [(25, 80)]
    (question,) = shapes(svg, "unknown", "text")
    assert 25 < float(question.get("x") or 0) < 50
    # Looks for which a column is too narrow: neither takes the other's place.
    close = draw(samples("g" * 100 + "ur" + "g" * 100, every_s=1.0))
    assert len(shapes(close, "red")) == 1
    assert len(shapes(close, "unknown")) == 1
    assert not shapes(draw(samples("g" * 100 + "gr" + "g" * 100, every_s=1.0)), "unknown")


def test_between_spans_nobody_looked() -> None:
    svg = draw(wide(["g" * 10, "", "", "g" * 10]))
    first, last = shapes(svg, "green")
    assert reach(first) == (0, 30)
    assert reach(last)[0] == 75


def test_numbers_of_spans_are_drawn_between_their_lowest_and_highest() -> None:
    svg = draw([*wide(["g" * 10] * 2, low=1.0, high=9.0), span(BEGIN + 2 * FIVE, "u", low=500.0, high=500.0)])
    (line,) = shapes(svg, "value", "polyline")
    assert [float(point.split(",")[1]) for point in (line.get("points") or "").split()] == [27, 7, 27, 7]


def test_without_looks_it_says_so() -> None:
    assert draw([]).get("aria-label") == "Nobody looked in 1 h 00 min."
    assert len(list(draw([]))) == 0
    assert draw(samples("g"), until=BEGIN).get("role") == "img"


TIMES = st.datetimes(BEGIN.replace(tzinfo=None) - timedelta(hours=1), END.replace(tzinfo=None), timezones=st.just(UTC))
LOOKS = st.builds(
    lambda at, lights, last_s, numbers: span(at, lights, last_s, *(min(numbers), max(numbers)) if numbers else ()),
    TIMES,
    st.text("gru", min_size=1, max_size=9),
    st.floats(0, 900),
    st.lists(st.floats(), max_size=2),
)


@given(st.lists(LOOKS, max_size=80))
def test_whatever_was_seen_gives_a_small_chart_that_stays_in_its_frame(seen: list[Span]) -> None:
    text = sparkline(sorted(seen, key=lambda s: s.first), (), since=BEGIN, until=END)
    svg = ElementTree.fromstring(text)
    assert len(text) < 40_000
    assert "nan" not in text.lower().replace("unknown", "")
    assert "inf" not in text.lower()
    assert " style=" not in text
    assert "<script" not in text
    lit = sorted(
        reach(e) for kind in ("green", "red", "unknown") for e in shapes(svg, kind) if e.tag in ("rect", "path")
    )
    assert all(0 <= a < b <= 300 for a, b in lit)
    assert all(b <= c for (_, b), (c, _) in itertools.pairwise(lit)), "two lights at one time"
    for line in shapes(svg, "value", "polyline"):
        for point in (line.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 300
            assert 7 <= y <= 27
        inside = [e for e in shapes(svg, "unknown", "path") if reach(line)[0] < reach(e)[0] < reach(line)[1]]
        assert not inside, "a number was drawn through what is unknown"


def test_the_size_is_bounded() -> None:
    many = samples("gru" * 4000, [float(i) for i in range(12_000)], every_s=0.3)
    marks = [Mark(at=BEGIN + timedelta(seconds=i), what="opened", ticket_id=i) for i in range(3000)]
    assert len(sparkline(many, marks, since=BEGIN, until=END)) < 60_000


# ---- bars


def test_bars_stand_on_one_scale() -> None:
    svg = ElementTree.fromstring(
        bars([Bar("a", 1.5, "one"), Bar("b", 3.0, "two", open=True), Bar("c", 0.0, "three")], label="Cost")
    )
    heights = [float(e.get("height") or 0) for e in svg.iter() if e.get("class") == "fill"]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)
    assert heights[2] == 0
    groups = [e.get("class") for e in svg.iter("g")]
    assert groups == ["bar", "bar open", "bar"]
    assert [e.text for e in svg.iter("title")] == ["one", "two", "three"]
    said = [e.text for e in svg.iter("text")]
    assert {"$0.00", "$1.50", "$3.00", "c"} <= set(said)
    assert svg.get("aria-label") == "Cost"


@given(st.lists(st.floats() | st.floats(0, 1e6), max_size=500))
@example([1.7976931348623157e308, 1e306])
def test_bars_of_anything_stay_in_their_frame(values: list[float]) -> None:
    text = bars([Bar("x", value, "x") for value in values], label="Cost")
    svg = ElementTree.fromstring(text)
    _, _, width, height = map(float, (svg.get("viewBox") or "").split())
    assert width < 2000
    assert math.isfinite(width)
    for rect in svg.iter("rect"):
        x, y, w, h = (float(rect.get(name) or 0) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + w <= width + 0.1
        assert y >= 0
        assert y + h <= height
    assert sum(1 for _ in svg.iter("g")) == min(400, len(values))


def test_hostile_words_stay_words() -> None:
    text = bars([Bar(HOSTILE.replace("\x1b", ""), 1.0, HOSTILE.replace("\x1b", ""))], label=HOSTILE.replace("\x1b", ""))
    assert "<script" not in text
    assert "<img" not in text
    ElementTree.fromstring(text)


@pytest.mark.parametrize(
    ("part", "whole", "width"),
    [(1, 4, "25"), (5, 4, "100"), (0, 0, "0"), (1, math.nan, "0"), (math.inf, 4, "0"), (-1, 4, "0")],
)
def test_a_share_never_leaves_its_rail(part: float, whole: float, width: str) -> None:
    svg = ElementTree.fromstring(share(part, whole))
    assert svg[1].get("width") == width
    assert isinstance(share(1, 2), Markup)
