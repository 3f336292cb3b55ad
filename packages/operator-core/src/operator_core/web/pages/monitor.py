"""The monitor: everything under watch, with what was seen lately."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from operator_core import clock
from operator_core.api.watching import read_marks
from operator_core.db.spans import WIDTH_MS, read_spans
from operator_core.web.charts import sparkline
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


class _Back(NamedTuple):
    """How far back the charts reach.

    Attributes:
        name: In words.
        minutes: So far.
        single: So many looks at most are drawn one by one, all charts together; the others in spans.
        width: Of the spans, in milliseconds; where they are not as they are stored, about two columns of the chart.
    """

    name: str
    minutes: int
    single: int = 0
    width: int = WIDTH_MS


_SHORT, _USUAL = "10m", "1"
_BACK = {
    _SHORT: _Back("10 min", 10, single=12_000),
    _USUAL: _Back("1 h", 60, single=12_000),
    "6": _Back("6 h", 360),
    "24": _Back("24 h", 1440, width=2 * WIDTH_MS),
}
_ROWS = 60
"""On one page; the others are behind a link, and those that do not hold come first."""


@router.get("/monitor")
async def monitor(request: Request, hours: str = "", start: Annotated[int, Query(ge=0, le=10**6)] = 0) -> Response:
    """Each invariant with its light, red and unknown ones first; unasked, over the shortest time that has all of it."""
    database = site_of(request).database
    found = await api_of(request).invariants(samples=0)
    start = start if start < len(found) else 0
    shown = found[start : start + _ROWS]
    until = clock.now()
    back = _BACK.get(hours) or _BACK[_USUAL]
    since = until - timedelta(minutes=back.minutes)
    keys = [i.key for i in shown]
    single = back.single // max(1, len(shown))
    spans = await read_spans(database, keys, _ms(since), single=single, width=back.width)
    if hours not in _BACK and any(spans.values()):
        lately = until - timedelta(minutes=_BACK[_SHORT].minutes)
        if all(own[0].first >= _ms(lately) for own in spans.values() if own):
            back, since = _BACK[_SHORT], lately
    marks = await read_marks(database, keys, since)
    rows = [(i, sparkline(spans[i.key], marks.get(i.key, ()), since=since, until=until)) for i in shown]
    counts = {light: sum(i.light == light for i in found) for light in ("red", "unknown")}
    counts["stale"] = sum(i.light == "green" and i.stale for i in found)
    counts["green"] = sum(i.light == "green" and not i.stale for i in found)
    return render(
        request,
        "monitor.html",
        block="watched",
        rows=rows,
        total=len(found),
        start=start,
        size=_ROWS,
        counts=counts,
        back=back,
        choices=_BACK,
    )


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
