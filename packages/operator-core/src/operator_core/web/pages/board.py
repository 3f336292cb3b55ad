"""The board: every ticket, what needs a person first."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from operator_core.api.cursor import read_cursor
from operator_core.api.models import Page, TicketView
from operator_core.model.ticket import TicketKind, TicketStatus
from operator_core.together import together
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import html, is_part, render, render_part

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_VIEWS: dict[str, tuple[TicketStatus, ...]] = {
    **{status.value: (status,) for status in TicketStatus},
    "open": (TicketStatus.OPEN, TicketStatus.QUEUED),
}
_NEED = "needs"
_ROWS = 50
_SEARCH_S = 0.08
"""Then the page shows what was found; what was not looked at by then is behind a link."""


@router.get("/")
async def board(
    request: Request,
    view: str = "",
    q: Annotated[str, Query(max_length=200)] = "",
    kind: str = "",
    severity: str = "",
    label: Annotated[list[str] | None, Query(max_length=20)] = None,
    order: str = "",
    cursor: str | None = None,
) -> Response:
    """The board; what its address does not know is as if it were not there."""
    api = api_of(request)
    view = view if view == _NEED or view in _VIEWS else ""
    known_kind = kind if kind in list(TicketKind) else None
    known_severity = severity if severity in ("critical", "warning", "info") else None
    labels = dict(item.split("=", 1) for item in label or () if "=" in item)
    sort: Literal["attention", "newest"] = "newest" if order == "newest" else "attention"

    async def values() -> dict[str, Any]:
        asked = api.tickets(
            status=_VIEWS.get(view, ()),
            kind=known_kind,
            severity=known_severity,
            label=labels or None,
            needs_me=view == _NEED,
            search=q.strip(),
            order=sort,
            limit=_ROWS,
            cursor=cursor,
            within_s=_SEARCH_S,
        )
        async with together() as group:
            page, counts = group.create_task(asked), group.create_task(api.board())
        return {
            "board": counts.result(),
            "page": page.result(),
            "unsearched": _unsearched(page.result(), sort),
            "view": view,
            "search": q,
            "kind": known_kind,
            "severity": known_severity,
            "labels": labels,
            "order": sort,
            "group_of": _group,
        }

    async def part() -> str:
        return render_part(request, "board.html", "board", **await values())

    if is_part(request):
        # Whoever looks at the same address sees the same, whatever the role.
        return html(await site_of(request).parts.get(f"/?{request.url.query}", part))
    return render(request, "board.html", **await values())


@router.get("/badges")
async def badges(request: Request) -> Response:
    """The numbers beside the navigation."""

    async def part() -> str:
        return render_part(request, "badges.html", "badges", board=await api_of(request).board())

    return html(await site_of(request).parts.get("/badges", part))


def _unsearched(page: Page[TicketView], order: str) -> int | None:
    """Number of the ticket before which the search stopped, because the page should come soon; None: it did not."""
    if page.next is None or len(page.items) >= _ROWS:
        return None
    return read_cursor(order, page.next, 2)[1]


def _group(ticket: TicketView) -> str:
    if ticket.needs:
        return "Needs you"
    if ticket.status is TicketStatus.RUNNING:
        return "Running"
    if ticket.status in (TicketStatus.OPEN, TicketStatus.QUEUED):
        return "Next"
    return "Closed" if ticket.status in (TicketStatus.RESOLVED, TicketStatus.CANCELED) else "Other"
