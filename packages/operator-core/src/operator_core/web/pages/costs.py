"""Costs: what was spent by day, and on what."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Literal, get_args

from fastapi import APIRouter, Request, Response

from operator_core import clock
from operator_core.api.models import CostRow, Spent
from operator_core.web.charts import Bar, bars, share
from operator_core.web.site import api_of
from operator_core.web.templates import render
from operator_core.web.words import grouped, money

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

By = Literal["ticket", "model", "phase", "day"]
_BY: tuple[By, ...] = get_args(By)
_DAYS = {"7": 7, "30": 30, "90": 90, "365": 365}
_ROWS = 100


@router.get("/costs")
async def costs(request: Request, by: str = "ticket", days: str = "30") -> Response:
    """What was spent in the last days."""
    chosen: By = next((known for known in _BY if known == by), "ticket")
    days = days if days in _DAYS else "30"
    api, span = api_of(request), _DAYS[days]
    by_day = await api.costs("day", days=span, limit=span)
    rows = by_day if chosen == "day" else await api.costs(chosen, days=span, limit=_ROWS)
    total = _sum(by_day)
    read = total.input_tokens + total.cache_read_tokens + total.cache_write_tokens
    # Every repair has its first worker, so that one phase counts them all; a list of tickets has an end.
    verified = max((row.verified for row in await api.costs("phase", days=span)), default=0)
    return render(
        request,
        "costs.html",
        block="costs",
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
