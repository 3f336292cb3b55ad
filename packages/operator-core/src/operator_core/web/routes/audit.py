"""``/api/v1/audit``: is the journal what was written?"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from operator_core.api.models import AuditView
from operator_core.db import ledger
from operator_core.web.routes.parameters import PREFIX, SESSION, problems
from operator_core.web.shapes import answer
from operator_core.web.site import api_of, site_of

__all__ = ["AuditHead", "router"]

router = APIRouter(prefix=PREFIX, tags=["audit"])


class AuditHead(BaseModel):
    """The end of the ledger; kept elsewhere, it proves later that nothing before it was changed."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    seq: int
    """Number of its newest row; -1: it is empty."""
    hash: str
    """Of that row, over all before it."""


@router.get("/audit", response_model=AuditHead, responses=problems())
async def head(request: Request) -> Response:
    """The end of the chain."""
    seq, hash_ = await ledger.head(site_of(request).database)
    return answer(AuditHead(seq=seq, hash=hash_))


@router.post("/audit/verify", response_model=AuditView, responses=problems(404))
async def verify(
    request: Request,
    session_id: Annotated[str | None, Query(pattern=SESSION, description="Only this session, and the ledger.")] = None,
) -> Response:
    """Check the whole chain now. What is wrong is in the answer, which is 200 all the same."""
    return answer(await api_of(request).audit(session_id=session_id))
