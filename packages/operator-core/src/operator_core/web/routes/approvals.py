"""``/api/v1/approvals``: calls of agents that wait for a person's word."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from operator_core.api.models import ApprovalView
from operator_core.web.routes.parameters import PREFIX, Limit, Wanted, problems
from operator_core.web.shapes import answer
from operator_core.web.site import api_of

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["approvals"])

ApprovalId = Annotated[str, Path(pattern=r"^[!-~]{1,100}$", description="Id of a question.")]


class Decision(Wanted):
    """What a person says to one call."""

    approve: bool
    note: str = Field(default="", max_length=2000, pattern=r"^[^\x00]*$")
    """Told to the agent."""


@router.get("/approvals", response_model=list[ApprovalView], responses=problems())
async def list_approvals(
    request: Request,
    pending: Annotated[bool, Query(description="Only those that can be answered.")] = True,
    limit: Limit = 100,
) -> Response:
    """Questions: those that can be answered, the most urgent first, or all, the newest first."""
    return answer(await api_of(request).approvals(pending=pending, limit=limit))


@router.get("/approvals/{approval_id}", response_model=ApprovalView, responses=problems(404))
async def show_approval(request: Request, approval_id: ApprovalId) -> Response:
    """One question."""
    return answer(await api_of(request).approval(approval_id))


@router.post("/approvals/{approval_id}/decision", response_model=ApprovalView, responses=problems(404, 409, 413))
async def decide(request: Request, approval_id: ApprovalId, decision: Decision) -> Response:
    """Allow or deny exactly one call, once; sent again by the same person, it changes nothing."""
    return answer(await api_of(request).decide(approval_id, decision.approve, note=decision.note))
