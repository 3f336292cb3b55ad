"""The fleet: which workers live, what they have, and who takes nothing new."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Path, Request, Response

from operator_core.db.second_looks import SecondLooks
from operator_core.web.charts import share
from operator_core.web.flash import see
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

WorkerId = Annotated[str, Path(pattern=r"^[!-~]{1,100}$")]


@router.get("/fleet")
async def fleet(request: Request) -> Response:
    """Workers with their leases and their tickets."""
    api = api_of(request)
    workers, board = await api.workers(), await api.board()
    living = [worker for worker in workers if worker.alive]
    return render(
        request,
        "fleet.html",
        block="workers",
        workers=workers,
        living=len(living),
        busy=sum(len(worker.tickets) for worker in living),
        slots=sum(worker.concurrency for worker in living if not worker.draining),
        nobody_takes=bool(living) and all(worker.draining for worker in living),
        waiting=board.counts.get("open", 0) + board.counts.get("queued", 0),
        looks=await SecondLooks(site_of(request).database).count_waiting(),
        share=share,
    )


@router.post("/fleet/{worker_id}/drain")
async def drain(request: Request, worker_id: WorkerId, draining: Annotated[bool, Form()]) -> Response:
    """Let a worker take nothing new, or let it take tickets again."""
    await api_of(request).drain(worker_id, draining)
    return see("/fleet", "drained" if draining else "undrained")
