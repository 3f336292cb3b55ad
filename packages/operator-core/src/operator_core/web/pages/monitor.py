"""The monitor: everything under watch, with what was seen lately."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter, Request, Response

from operator_core import clock
from operator_core.web.charts import sparkline
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_HOURS = {"1": (360, 12_000), "6": (1200, 24_000), "24": (3000, 60_000)}
"""How far back -> so many looks at most: at each invariant, and at all together, so that the page comes soon."""
_LEAST = 60
_ROWS = 500


@router.get("/monitor")
async def monitor(request: Request, hours: str = "1") -> Response:
    """Each invariant with its light, red and unknown ones first."""
    hours = hours if hours in _HOURS else "1"
    api = api_of(request)
    many = len(await api.invariants(samples=0))
    each, together = _HOURS[hours]
    most = min(each, max(_LEAST, together // max(1, many)))
    found = await api.invariants(samples=most)
    until = clock.now()
    since = until - timedelta(hours=int(hours))
    rows = [
        (i, sparkline(i.samples, i.marks, since=since, until=until, cut=len(i.samples) == most)) for i in found[:_ROWS]
    ]
    counts = {light: sum(i.light == light for i in found) for light in ("red", "unknown", "green")}
    interval_s = site_of(request).settings.monitor.interval_s
    return render(
        request,
        "monitor.html",
        block="watched",
        rows=rows,
        total=len(found),
        counts=counts,
        hours=hours,
        choices=list(_HOURS),
        stale_s=max(120.0, 4 * interval_s),
    )
