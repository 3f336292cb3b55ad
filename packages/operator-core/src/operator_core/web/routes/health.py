"""Whether the server lives and is of use, and its numbers."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict

from operator_core import clock
from operator_core.db.numbers import numbers
from operator_core.errors import SchemaMismatch, StoreError
from operator_core.web.access import recognize
from operator_core.web.metrics import Metrics
from operator_core.web.problems import problem_responses, wants_page
from operator_core.web.site import Site, site_of
from operator_core.web.templates import render

__all__ = ["Health", "router"]

router = APIRouter(tags=["server"])

_KEEP_S = 1.0
_LOOK_S = 5.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

State = Literal["ok", "failed", "unknown", "none"]


class Health(BaseModel):
    """Whether requests can be answered, and what else there is to know; nothing in it is a secret."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    ready: bool
    """The store can be used, and what this process carries out is carried out."""
    store: State
    """The store answers."""
    db_schema: State
    """Its tables are of this version."""
    courier: State
    """Notifications go out from this process; ``none``: it has no courier."""
    work: Literal["ok", "late", "unknown"]
    """``late``: tickets are ready, and no worker lives. It is told, and does not count."""


@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> PlainTextResponse:
    """The process answers."""
    return PlainTextResponse("ok\n")


@router.get("/readyz", response_model=Health, responses={503: {"model": Health, "description": "Not ready"}})
async def readyz(request: Request) -> Response:
    """The server can do its work; else the answer is 503."""
    health = await _health(site_of(request), request)
    status = 200 if health.ready else 503
    if wants_page(request):
        await recognize(request)
        return render(request, "health.html", status=status, health=health)
    return JSONResponse(health.model_dump(), status_code=status, headers={"Vary": "Accept"})


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={
        200: {"description": "Prometheus' text format", "content": {"text/plain": {}}},
        **problem_responses(401, 403, 503),
    },
)
async def metrics(request: Request) -> Response:
    """Numbers about the server and the work, as Prometheus reads them."""
    site = site_of(request)
    found: Metrics = request.app.state.metrics
    found.streams.set(site.feeds.clients)
    return Response(found.text(await numbers(site.database)), media_type=_CONTENT_TYPE)


async def _health(site: Site, request: Request) -> Health:
    """Looked at afresh at most once a second: anybody may ask, and as often as they like."""
    state = request.app.state
    async with state.health_lock:
        at, health = state.health or (0.0, None)
        if health is None or clock.monotonic() - at >= _KEEP_S:
            health = await _look(site)
            state.health = (clock.monotonic(), health)
        assert isinstance(health, Health)
        return health


async def _look(site: Site) -> Health:
    courier: State = "none" if site.courier_lives is None else "ok" if site.courier_lives() else "failed"
    try:
        async with asyncio.timeout(_LOOK_S):
            found = await numbers(site.database)
    except SchemaMismatch:
        return Health(ready=False, store="ok", db_schema="failed", courier=courier, work="unknown")
    except (StoreError, TimeoutError):
        return Health(ready=False, store="failed", db_schema="unknown", courier=courier, work="unknown")
    late = found.ready > 0 and found.workers == 0
    return Health(ready=courier != "failed", store="ok", db_schema="ok", courier=courier, work="late" if late else "ok")
