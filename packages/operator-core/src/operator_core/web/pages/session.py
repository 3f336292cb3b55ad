"""A session while it happens: what the agent thinks, does and gets; how far it is; and the buttons."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Form, Path, Query, Request, Response

from operator_core.api.models import EntryPage, SessionDetail, TicketDetail
from operator_core.clock import new_id, now, parse_iso
from operator_core.db.live_output import LiveOutputs
from operator_core.errors import OperatorError, TransitionRefused
from operator_core.web.flash import Said, see
from operator_core.web.pages.forms import REFUSALS, Key, LongText
from operator_core.web.problems import status_of
from operator_core.web.site import api_of, site_of
from operator_core.web.steps import call_mark, sandbox_of, steps_of
from operator_core.web.templates import render

__all__ = ["CHARS", "WINDOW", "At", "SessionId", "router"]

WINDOW = 100
"""Entries on one page; the others are behind links."""
CHARS = 4000
"""Longer texts are cut there, and whole on the page of their entry."""

_LARGEST = 2**31 - 1

SessionId = Annotated[str, Path(pattern=r"^[\w.:-]{1,100}$")]
At = Annotated[int, Query(ge=-1, le=_LARGEST)]

router = APIRouter(include_in_schema=False)


class Gauge(NamedTuple):
    """How much of something is used.

    Attributes:
        share: Of the limit, 0 to 100; None: there is no limit.
        text: In words.
    """

    name: str
    share: float | None
    text: str
    full: bool


@router.get("/sessions/{session_id}")
async def session(request: Request, session_id: SessionId, at: At | None = None) -> Response:
    """The newest entries, or those from ``at`` on."""
    return await _page(request, session_id, at=at)


@router.get("/sessions/{session_id}/rows")
async def rows(
    request: Request, session_id: SessionId, after: At = -1, limit: Annotated[int, Query(ge=1, le=WINDOW)] = WINDOW
) -> Response:
    """Entries behind a sequence number, as they are on the page."""
    api = api_of(request)
    page = await api.entries(session_id, after=after, limit=limit, max_chars=CHARS)
    steps = await steps_of(api, session_id, page.items)
    return render(request, "steps.html", session_id=session_id, steps=steps)


@router.get("/sessions/{session_id}/side")
async def side(request: Request, session_id: SessionId) -> Response:
    """How far it is."""
    found = await api_of(request).session(session_id)
    return render(request, "session_side.html", **await _side(request, found))


@router.get("/sessions/{session_id}/output")
async def output(request: Request, session_id: SessionId) -> Response:
    """What the running command prints."""
    return render(request, "session_output.html", live=await _live(request, session_id))


@router.post("/sessions/{session_id}/reply")
async def reply(request: Request, session_id: SessionId, text: LongText, key: Key = "") -> Response:
    """Answer its question."""
    return await _do(request, session_id, "reply", "answered", text, key)


@router.post("/sessions/{session_id}/steer")
async def steer(request: Request, session_id: SessionId, text: LongText, key: Key = "") -> Response:
    """Say something to the agent."""
    return await _do(request, session_id, "steer", "steered", text, key)


@router.post("/sessions/{session_id}/cancel")
async def cancel(request: Request, session_id: SessionId, now: Annotated[bool, Form()] = False) -> Response:
    """Cancel its ticket."""
    return await _do(request, session_id, "cancel", "canceling_now" if now else "canceling", now=now)


async def _do(
    request: Request, session_id: str, doing: str, what: Said, text: str = "", key: str = "", *, now: bool = False
) -> Response:
    api = api_of(request)
    found = await api.session(session_id)
    try:
        if found.ticket_id is None or found.status != "running":
            raise TransitionRefused(f"The session {session_id} has ended; look at its ticket for what can be done.")
        act: Awaitable[TicketDetail]
        if doing == "cancel":
            act = api.cancel(found.ticket_id, now=now)
        elif doing == "reply":
            act = api.reply(found.ticket_id, text, key=key or None)
        else:
            act = api.steer(found.ticket_id, text, key=key or None)
        await act
    except REFUSALS as error:
        return await _page(request, session_id, error=error, draft=text)
    return see(f"/sessions/{session_id}", what)


async def _page(
    request: Request, session_id: str, *, at: int | None = None, error: OperatorError | None = None, draft: str = ""
) -> Response:
    api = api_of(request)
    found = await api.session(session_id)
    first = max(0, found.entries - WINDOW) if at is None else max(0, at)
    page: EntryPage = await api.entries(session_id, after=first - 1, limit=WINDOW, max_chars=CHARS)
    last = page.items[-1].seq if page.items else first - 1
    values: dict[str, Any] = {
        **await _side(request, found),
        "steps": await steps_of(api, session_id, page.items),
        "session_id": session_id,
        "first": page.items[0].seq if page.items else first,
        "last": last,
        "head": page.head,
        "follows": last >= page.head,
        "window": WINDOW,
        "live": await _live(request, session_id),
        "key": new_id(),
        "draft": draft,
        "problem": str(error) if error else None,
    }
    return render(request, "session.html", status=status_of(error) if error else 200, **values)


async def _side(request: Request, found: SessionDetail) -> dict[str, Any]:
    asked = await api_of(request).approvals(limit=200) if found.status == "running" else []
    return {
        "s": found,
        "gauges": _gauges(found),
        "sandbox": sandbox_of(found.sandbox),
        "asked": [a for a in asked if a.session_id == found.session_id],
    }


async def _live(request: Request, session_id: str) -> dict[str, Any] | None:
    row = await LiveOutputs(site_of(request).database).read(session_id)
    if row is None:
        return None
    return {"call": call_mark(row.tool_use_id), "tail": row.tail, "total": row.total, "at": parse_iso(row.updated_at)}


def _gauges(s: SessionDetail) -> list[Gauge]:
    tokens = s.spent.input_tokens + s.spent.output_tokens + s.spent.cache_read_tokens + s.spent.cache_write_tokens
    took = ((s.ended_at or now()) - s.started_at).total_seconds()
    limits = s.limits
    found = [
        _gauge("Turns", s.turns, limits.get("turns"), "{:,.0f}"),
        _gauge("Tokens", tokens, limits.get("tokens"), "{:,.0f}"),
        _gauge("Cost", s.spent.cost_usd, limits.get("cost_usd"), "${:,.2f}"),
        _gauge("Time", took / 60, (limits.get("wall_clock_s") or 0) / 60, "{:,.0f} min"),
    ]
    if s.context_tokens is not None:
        found.append(_gauge("Context", s.context_tokens, s.context_limit, "{:,.0f}"))
    return found


def _gauge(name: str, used: float, limit: float | None, form: str) -> Gauge:
    if not limit:
        return Gauge(name, None, form.format(used), False)
    share = min(100.0, 100 * used / limit)
    return Gauge(name, round(share, 1), f"{form.format(used)} of {form.format(limit)}", share >= 80)
