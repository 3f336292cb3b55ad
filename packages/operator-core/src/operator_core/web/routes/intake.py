"""The doors for webhooks over HTTP. Each message proves by itself where it comes from; no token is needed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from operator_core.errors import IntakeRefused
from operator_core.intake.items import Receipt
from operator_core.intake.reception import Reception
from operator_core.web.access import Denied
from operator_core.web.problems import problem_responses
from operator_core.web.site import site_of

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["intake"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "What the sender's own documentation describes.",
        "content": {"application/json": {"schema": {}}},
    }
}


@router.post(
    "/intake/{name}",
    openapi_extra=_BODY,
    responses=problem_responses(400, 401, 403, 404, 408, 409, 413, 421, 422, 503),
)
async def receive(request: Request, name: Annotated[str, Path(max_length=63)]) -> Receipt:
    """Take a webhook: alerts of Alertmanager, issues of GitHub, or signed JSON, as `[[intake]]` says.

    All of it is taken or nothing. A delivery that comes again changes nothing.
    """
    site = site_of(request)
    try:
        return await Reception(site.database, site.settings).receive(name, request.headers, await request.body())
    except IntakeRefused as error:
        if error.status == 401:
            raise Denied(401, str(error)) from None
        raise
