"""The monitor: everything under watch, with what was seen lately."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from operator_core import clock
from operator_core.api.watching import read_marks
from operator_core.db.spans import WIDTH_MS, read_spans
from operator_core.web.charts import sparkline
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_HOURS = {"1": 12_000, "6": 0, "24": 0}
"""How far back -> so many looks at most are drawn one by one, all charts together; the others in spans."""
_WIDTHS = {"24": 2 * WIDTH_MS}
"""How far back -> how wide its spans are, where they are not as they are stored: about two columns of the chart."""
_ROWS = 60
"""On one page; the others are behind a link, and those that do not hold come first."""


@router.get("/monitor")
async def monitor(request: Request, hours: str = "1", start: Annotated[int, Query(ge=0, le=10**6)] = 0) -> Response:
    """Each invariant with its light, red and unknown ones first."""
    hours = hours if hours in _HOURS else "1"
    database = site_of(request).database
    found = await api_of(request).invariants(samples=0)
    start = start if start < len(found) else 0
    shown = found[start : start + _ROWS]
    until = clock.now()
    since = until - timedelta(hours=int(hours))
    keys = [i.key for i in shown]
    single = _HOURS[hours] // max(1, len(shown))
    spans = await read_spans(
        database, keys, round(since.timestamp() * 1000), single=single, width=_WIDTHS.get(hours, WIDTH_MS)
    )
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
        hours=hours,
        choices=list(_HOURS),
    )
