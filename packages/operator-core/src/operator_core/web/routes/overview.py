"""The state of everything: counts, workers, invariants, costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AwareDatetime, BeforeValidator

from operator_core import clock
from operator_core.api.models import Board, CostRow, InvariantView, WorkerView
from operator_core.model.digest import Digest
from operator_core.web.routes.parameters import PREFIX, Wanted, problems
from operator_core.web.shapes import answer
from operator_core.web.site import api_of

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["overview"])


def _written_out(value: object) -> object:
    if isinstance(value, str) and "t" not in value.lower():
        raise ValueError("write it as 2026-01-28T18:00:00Z")  # a number would be seconds since 1970
    return value


_Moment = Annotated[AwareDatetime, BeforeValidator(_written_out)]


class Draining(Wanted):
    """Whether a worker takes nothing new."""

    draining: bool


@router.get("/board", response_model=Board, responses=problems())
async def board(request: Request) -> Response:
    """Counts of everything that a person may care about."""
    return answer(await api_of(request).board())


@router.get("/workers", response_model=list[WorkerView], responses=problems())
async def workers(request: Request) -> Response:
    """Workers that live, and those that died lately."""
    return answer(await api_of(request).workers())


@router.post("/workers/{worker_id}/drain", response_model=list[WorkerView], responses=problems(404, 409, 413))
async def drain(
    request: Request, worker_id: Annotated[str, Path(pattern=r"^[!-~]{1,100}$")], how: Draining
) -> Response:
    """Let a worker end what it has and take nothing new, or let it take tickets again."""
    return answer(list(await api_of(request).drain(worker_id, how.draining)))


@router.get("/invariants", response_model=list[InvariantView], responses=problems())
async def invariants(
    request: Request, samples: Annotated[int, Query(ge=0, le=1000, description="Newest looks at each.")] = 120
) -> Response:
    """Everything under watch; what is red or unknown comes first."""
    return answer(await api_of(request).invariants(samples=samples))


@router.get("/digest", response_model=Digest, responses=problems())
async def digest(
    request: Request,
    since: Annotated[
        _Moment | None,
        Query(description="Where it begins, at most 366 days ago; default: 24 hours ago (a full minute)."),
    ] = None,
) -> Response:
    """What happened: resolved and how it was proved, what needs a person, what came most often, and the cost."""
    # To the minute, so that those who ask at the same time ask for the same.
    begin = since or (clock.now() - timedelta(days=1)).replace(second=0, microsecond=0)
    return answer(await api_of(request).digest(begin))


@router.get("/costs", response_model=list[CostRow], responses=problems())
async def costs(
    request: Request,
    by: Annotated[Literal["ticket", "model", "phase", "day"], Query()] = "day",
    days: Annotated[int, Query(ge=1, le=3650, description="Of so many last days.")] = 30,
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 100,
) -> Response:
    """What was spent, the largest first; days: the newest first."""
    return answer(await api_of(request).costs(by, days=days, limit=limit))
