"""``/a/…``: one question, answered through a link. Looking at it changes nothing: programs preview links."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Path, Request, Response

from operator_core.api.approval_links import ApprovalLinks
from operator_core.api.models import ApprovalView
from operator_core.errors import ConfigError, NotFound, OperatorError, TransitionRefused
from operator_core.model.person import Actor, Role
from operator_core.web.problems import status_of
from operator_core.web.site import site_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

# Of any form: a link that was cut on its way is told like one that expired.
Token = Annotated[str, Path()]

_SOMEBODY = Actor("somebody", Role.OPERATOR, "link")


@router.get("/a/{token}")
async def look(request: Request, token: Token) -> Response:
    """What is asked."""
    return _page(request, await _asked(request, token))


@router.post("/a/{token}")
async def decide(
    request: Request,
    token: Token,
    answer: Annotated[str, Form(max_length=20)] = "",
    note: Annotated[str, Form(max_length=8000)] = "",
) -> Response:
    """Answer it."""
    found = await _asked(request, token)
    try:
        if answer not in ("approve", "deny"):
            raise ConfigError("Choose whether the call is allowed or denied.")
        api = site_of(request).api.as_(_SOMEBODY)
        found = await api.decide(found.id, answer == "approve", note=note.strip())
    except (ConfigError, TransitionRefused) as error:
        return _page(request, await _asked(request, token), error)
    return _page(request, found)


async def _asked(request: Request, token: str) -> ApprovalView:
    site = site_of(request)
    approval_id = await ApprovalLinks(site.database).read(token)
    if approval_id is None:
        raise NotFound("This link is not good, or not any more; sign in and open Approvals.")
    return await site.api.as_(_SOMEBODY).approval(approval_id)


def _page(request: Request, found: ApprovalView, error: OperatorError | None = None) -> Response:
    status = status_of(error) if error else 200
    return render(request, "approval_link.html", status=status, a=found, problem=str(error) if error else None)
