"""Costs: what was spent by day, and on what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Literal, NamedTuple, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from operator_core import clock
from operator_core.api.local import LocalApi
from operator_core.api.models import CostRow, Spent
from operator_core.db.usage import UsageTotals
from operator_core.together import together
from operator_core.web.charts import Bar, bars, share
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import is_part, render
from operator_core.web.words import grouped, money

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

By = Literal["ticket", "model", "phase", "day"]
_BY: tuple[By, ...] = get_args(By)
_DAYS = {"7": 7, "30": 30, "90": 90, "365": 365}
_ROWS = 100
_PATIENCE_S = 0.08


class _Figures(NamedTuple):
    """What the page shows: what was spent by day, by what was chosen, and by phase."""

    by_day: list[CostRow]
    rows: list[CostRow]
    by_phase: list[CostRow]


@router.get("/costs")
async def costs(request: Request, by: str = "ticket", days: str = "30", wait: str = "") -> Response:
    """What was spent in the last days; where adding it up takes a while, first a page that says so."""
    chosen: By = next((known for known in _BY if known == by), "ticket")
    days = days if days in _DAYS else "30"
    span = _DAYS[days]
    waits = bool(wait) or is_part(request) or not await UsageTotals(site_of(request).database).is_large()
    found = site_of(request).database.beside(_figures(api_of(request), chosen, span))
    try:
        await asyncio.wait({found}, timeout=None if waits else _PATIENCE_S)
        if not found.done():
            # The next page waits for it, with or without scripts; until it is there this one is shown.
            again = {"Refresh": f"0; url=/costs?{urlencode({'by': chosen, 'days': days, 'wait': 1})}"}
            return render(request, "costs.html", headers=again, adding=True, days=days, choices=list(_DAYS))
        by_day, rows, by_phase = found.result()
    finally:
        found.cancel()
    total = _sum(by_day)
    read = total.input_tokens + total.cache_read_tokens + total.cache_write_tokens
    # Every repair has its first worker, so that one phase counts them all; a list of tickets has an end.
    verified = max((row.verified for row in by_phase), default=0)
    return render(
        request,
        "costs.html",
        block="costs",
        adding=False,
        rows=rows,
        by=chosen,
        groups=_BY,
        days=days,
        choices=list(_DAYS),
        total=total,
        from_cache=total.cache_read_tokens / read if read else None,
        verified=verified,
        chart=bars(_bars(by_day, span), label=f"Cost by day in the last {span} days: {_amount(total)} in all"),
        most=max((row.spent.cost_usd for row in rows), default=0.0),
        most_rows=_ROWS,
        share=share,
    )


async def _figures(api: LocalApi, by: By, days: int) -> _Figures:
    """All at once, so that whoever asks again later finds all of them begun."""
    asked = [api.costs("day", days=days, limit=days), api.costs("phase", days=days)]
    if by != "day":
        asked.append(api.costs(by, days=days, limit=_ROWS))
    async with together() as group:
        tasks = [group.create_task(costs) for costs in asked]
    by_day, by_phase, *rows = [task.result() for task in tasks]
    return _Figures(by_day, rows[0] if rows else by_day, by_phase)


def _bars(by_day: Sequence[CostRow], days: int) -> list[Bar]:
    """One bar for each day up to today, also for days on which nothing was spent."""
    known = {row.key: row for row in by_day}
    today = clock.now().date()
    out = []
    for back in reversed(range(days)):
        day = today - timedelta(days=back)
        row = known.get(day.isoformat())
        spent = row.spent if row else Spent()
        note = f"{day.isoformat()}: {_amount(spent)}"
        if row:
            note += f", {grouped(spent.calls)} calls in {grouped(row.sessions)} sessions"
        out.append(Bar(_short(day), spent.cost_usd, note, open=bool(spent.unpriced)))
    return out


def _short(day: date) -> str:
    return f"{day:%b} {day.day}"


def _amount(spent: Spent) -> str:
    return f"at least {money(spent.cost_usd)}" if spent.unpriced else money(spent.cost_usd)


def _sum(rows: Sequence[CostRow]) -> Spent:
    names = tuple(Spent.model_fields)
    return Spent(**{name: sum(getattr(row.spent, name) for row in rows) for name in names})
