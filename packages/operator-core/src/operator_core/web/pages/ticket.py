"""One ticket: its closure report, its story, the evidence, and what a person may do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from pydantic import ValidationError

from operator_core.api.happened import happened
from operator_core.api.models import TicketDetail, VerdictView
from operator_core.api.protocol import Api
from operator_core.clock import new_id
from operator_core.errors import OperatorError
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import TicketStatus, plain_diagnosis
from operator_core.web.flash import Said, see
from operator_core.web.pages.forms import REFUSALS, Key, LongText, Text, TicketId, Word
from operator_core.web.problems import status_of
from operator_core.web.site import api_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_LONG = 80
_Act = Callable[[Api], Awaitable[TicketDetail]]


@router.get("/tickets/{ticket_id}")
async def ticket(request: Request, ticket_id: TicketId) -> Response:
    """The ticket."""
    return await _page(request, ticket_id)


@router.get("/tickets/{ticket_id}/evidence")
async def evidence(request: Request, ticket_id: TicketId) -> Response:
    """What was proved, by what, and what was not; of the newest verdict first."""
    return await _evidence(request, ticket_id)


async def _evidence(request: Request, ticket_id: int, error: OperatorError | None = None) -> Response:
    found = await api_of(request).ticket(ticket_id)
    # Of the attempt that has the report; verdicts of later looks at its work may be before it.
    closing = next((v for v in found.verdicts if found.report and v.session_id == found.report.session_id), None)
    proofs = [_proof(found, verdict, newest=verdict is (closing or found.verdicts[0])) for verdict in found.verdicts]
    newest = found.attempt and found.attempt.session_id
    again = {session.session_id: session.judges for session in found.sessions}
    judged = {again.get(verdict.session_id) or verdict.session_id for verdict in found.verdicts}
    # The attempt that runs, waits or was canceled: nothing was judged of it, but it began with something.
    begun = next((b for b in found.before if b.session_id == newest and newest not in judged), None)
    problem = str(error) if error else None
    status = status_of(error) if error else 200
    return render(
        request,
        "evidence.html",
        status=status,
        t=found,
        proofs=proofs,
        begun=begun,
        problem=problem,
        key=new_id(),
        where="evidence",
    )


@router.post("/tickets/{ticket_id}/reply")
async def reply(request: Request, ticket_id: TicketId, text: LongText, key: Key = "") -> Response:
    """Answer its question."""
    return await _do(
        request, ticket_id, "reply", lambda api: api.reply(ticket_id, text, key=key or None), "answered", text
    )


@router.post("/tickets/{ticket_id}/steer")
async def steer(request: Request, ticket_id: TicketId, text: LongText, key: Key = "") -> Response:
    """Say something to the agent that works on it."""
    return await _do(
        request, ticket_id, "steer", lambda api: api.steer(ticket_id, text, key=key or None), "steered", text
    )


@router.post("/tickets/{ticket_id}/cancel")
async def cancel(request: Request, ticket_id: TicketId, now: Annotated[bool, Form()] = False) -> Response:
    """Cancel it."""
    return await _do(
        request, ticket_id, "cancel", lambda api: api.cancel(ticket_id, now=now), "canceling_now" if now else "canceled"
    )


@router.post("/tickets/{ticket_id}/resolve")
async def resolve(request: Request, ticket_id: TicketId, reason: Text) -> Response:
    """Say that it is done."""
    return await _do(request, ticket_id, "resolve", lambda api: api.resolve(ticket_id, reason), "resolved", reason)


@router.post("/tickets/{ticket_id}/reopen")
async def reopen(request: Request, ticket_id: TicketId) -> Response:
    """Give it to the workers again."""
    return await _do(request, ticket_id, "reopen", lambda api: api.reopen(ticket_id), "reopened")


@router.post("/tickets/{ticket_id}/verify")
async def verify(
    request: Request, ticket_id: TicketId, checks_only: Annotated[bool, Form()] = False, back: Word = "", key: Key = ""
) -> Response:
    """Let a worker judge its finished work again."""
    there = back == "evidence"
    try:
        await api_of(request).verify(ticket_id, checks_only=checks_only, key=key or None)
    except REFUSALS as error:
        return await (_evidence(request, ticket_id, error) if there else _page(request, ticket_id, error=error))
    return see(f"/tickets/{ticket_id}{'/evidence' if there else ''}", "verifying")


@router.post("/tickets/{ticket_id}/hold")
async def hold(request: Request, ticket_id: TicketId) -> Response:
    """Keep workers away from it."""
    return await _do(request, ticket_id, "hold", lambda api: api.hold(ticket_id, True), "held")


@router.post("/tickets/{ticket_id}/release")
async def release(request: Request, ticket_id: TicketId) -> Response:
    """Give a held one back."""
    return await _do(request, ticket_id, "release", lambda api: api.hold(ticket_id, False), "released")


async def _do(request: Request, ticket_id: int, doing: str, act: _Act, what: Said, draft: str = "") -> Response:
    """Do it and go to the ticket; refused, the page says why, and what was typed is still there."""
    try:
        after = await act(api_of(request))
    except REFUSALS as error:
        return await _page(request, ticket_id, doing=doing, draft=draft, error=error)
    if what in ("canceled", "canceling_now") and after.status is TicketStatus.CANCELED:
        what = "canceled"
    elif what == "canceled":
        what = "canceling"
    return see(f"/tickets/{ticket_id}", what)


async def _page(
    request: Request, ticket_id: int, *, doing: str = "", draft: str = "", error: OperatorError | None = None
) -> Response:
    found = await api_of(request).ticket(ticket_id)
    return render(
        request,
        "ticket.html",
        block="content",
        status=status_of(error) if error else 200,
        t=found,
        diagnosis=_diagnosis(found),
        happened=happened,
        doing=doing,
        draft=draft,
        problem=str(error) if error else None,
        key=new_id(),
        where="ticket",
    )


def _diagnosis(ticket: TicketDetail) -> str | None:
    """Without what stands above it already."""
    said = plain_diagnosis(ticket.diagnosis)
    above = [v.why for v in ticket.verdicts] or ([ticket.report.headline] if ticket.report else [])
    return None if said is None or any(said.split() == one.split() for one in above) else said


def _frozen_as(ticket: TicketDetail) -> set[str | None]:
    """The hash of its check, and that of the same one judged without a verifier agent."""
    hashes = {ticket.check_hash}
    if ticket.kind == "task" and ticket.check_spec:
        try:
            spec = TaskSpec.model_validate(ticket.check_spec)
        except ValidationError:
            return hashes
        hashes.add(spec.model_copy(update={"profile": "operator"}).digest)
    return hashes


def _proof(ticket: TicketDetail, verdict: VerdictView, *, newest: bool) -> dict[str, Any]:
    """A verdict with what the report of its session adds to it; all of that but ``before`` is of the newest alone."""
    data = ticket.report.data if ticket.report and ticket.report.session_id == verdict.session_id else {}
    worked = next((s.judges for s in ticket.sessions if s.session_id == verdict.session_id), None)
    before = next((b for b in ticket.before if b.session_id == (worked or verdict.session_id)), None)
    data = data if newest else {}
    task = data.get("task") or {}
    gaps = data.get("not_proved")
    if gaps is None:
        gaps = [f"{c['clause'].replace('_', ' ')}: {c['why']}" for c in verdict.clauses if c.get("state") != "proved"]
    # A long one is said where the clause stands, and not again.
    names = {f"{c['clause'].replace('_', ' ')}: {c['why']}": c["clause"].replace("_", " ") for c in verdict.clauses}
    gaps = [f"{names[gap]}: as said above" if gap in names and len(gap) > _LONG else gap for gap in gaps]
    return {
        "verdict": verdict,
        "before": before,
        "content": task.get("digest"),
        "base": task.get("base"),
        "commit": task.get("commit"),
        "branch": task.get("branch"),
        "notes": task.get("notes") or [],
        "claimed": data.get("claimed") or {},
        "gaps": gaps,
        "same_check": verdict.check_hash is None or verdict.check_hash in _frozen_as(ticket),
    }
