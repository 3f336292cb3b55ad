"""Settings: the configuration in force with its origins, and for administrators the tokens."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Form, Path, Request, Response

from operator_core.config import LoadedSettings
from operator_core.db.tokens import Minted
from operator_core.errors import ConfigError, OperatorError
from operator_core.model.person import Role
from operator_core.web.effective import effective
from operator_core.web.flash import see
from operator_core.web.pages.forms import Word
from operator_core.web.problems import status_of
from operator_core.web.site import actor_of, site_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_DAY = 86_400.0


@router.get("/settings")
async def settings(request: Request) -> Response:
    """What is configured, and who has tokens."""
    return await _page(request)


@router.post("/settings/tokens")
async def create(
    request: Request, name: Word, role: Word, days: Annotated[float | None, Form(gt=0, le=36_500)] = 30
) -> Response:
    """Make a token; its text is on the page that answers, and nowhere else."""
    tokens = site_of(request).tokens
    try:
        if role not in list(Role):
            raise ConfigError("The role must be viewer, operator or admin; choose one.")
        minted = await tokens.create(
            name.strip(), Role(role), by=str(actor_of(request)), expires_s=None if days is None else days * _DAY
        )
    except ConfigError as error:
        return await _page(request, error=error)
    return await _page(request, minted=minted)


@router.post("/settings/tokens/{token_id}/revoke")
async def revoke(request: Request, token_id: Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]) -> Response:
    """End a token and its logins."""
    await site_of(request).tokens.revoke(token_id, by=str(actor_of(request)))
    return see("/settings", "revoked")


async def _page(request: Request, *, minted: Minted | None = None, error: OperatorError | None = None) -> Response:
    site, actor = site_of(request), actor_of(request)
    loaded = site.loaded or LoadedSettings(site.settings, {}, None)
    sections = [
        (name, [(s, s.value if isinstance(s.value, str) else json.dumps(s.value, ensure_ascii=False)) for s in found])
        for name, found in groupby(effective(loaded), key=lambda s: s.key.partition(".")[0])
    ]
    return render(
        request,
        "settings.html",
        status=status_of(error) if error else 200,
        sections=sections,
        path=loaded.path,
        every="all" in request.query_params,
        tokens=await site.tokens.list() if actor.role.allows(Role.ADMIN) else None,
        minted=minted,
        problem=str(error) if error else None,
        mine=actor.token_id,
        roles=list(Role),
    )
