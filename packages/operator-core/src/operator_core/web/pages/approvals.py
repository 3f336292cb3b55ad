"""The inbox of calls that wait for a person's word."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response

from operator_core.errors import NotFound, OperatorError
from operator_core.web.flash import see
from operator_core.web.pages.forms import REFUSALS, Text, Word
from operator_core.web.problems import status_of
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_WAITING = 500


@router.get("/approvals")
async def approvals(request: Request, all: Literal["", "1"] = "") -> Response:
    """What waits, the oldest question first; with ``all`` also what was answered lately."""
    return await _page(request, every=bool(all))


@router.post("/approvals/{approval_id}")
async def decide(request: Request, approval_id: str, answer: Word, note: Text = "", back: Word = "") -> Response:
    """Allow or deny exactly one call."""
    if answer not in ("approve", "deny"):
        raise NotFound("The answer must be approve or deny; open the inbox again.")
    try:
        decided = await api_of(request).decide(approval_id, answer == "approve", note=note.strip())
    except REFUSALS as error:
        return await _page(request, error=error)
    where = f"/tickets/{decided.ticket_id}" if back == "ticket" else "/approvals"
    return see(where, "approved" if answer == "approve" else "denied")


async def _page(request: Request, *, every: bool = False, error: OperatorError | None = None) -> Response:
    api = api_of(request)
    waiting = sorted(await api.approvals(limit=_WAITING), key=lambda a: a.asked_at)
    # Not one list of both: what was answered since must not push out what still waits.
    answered = [a for a in await api.approvals(pending=False) if a.state != "pending"] if every else []
    return render(
        request,
        "approvals.html",
        status=status_of(error) if error else 200,
        waiting=waiting,
        answered=answered,
        every=every,
        rules=len(site_of(request).settings.approvals.rule),
        problem=str(error) if error else None,
    )
