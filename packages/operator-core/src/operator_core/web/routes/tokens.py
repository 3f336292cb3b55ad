"""Tokens over HTTP, and who one is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from operator_core.db.tokens import TokenInfo
from operator_core.model.person import Role
from operator_core.web.routes.parameters import PREFIX, problems
from operator_core.web.shapes import answer
from operator_core.web.site import actor_of, site_of

__all__ = ["Me", "NewToken", "TokenSecret", "TokenView", "router"]

router = APIRouter(prefix=PREFIX, tags=["tokens"])

_LONGEST_S = 100 * 365 * 86400


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Me(_Shape):
    """Who the token of this request makes one."""

    name: str
    role: Role
    token_id: str | None


class TokenView(_Shape):
    """A token without its secret."""

    id: str
    name: str
    role: Role
    state: str
    """``valid``, ``expired`` or ``revoked``."""
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute."""


class NewToken(BaseModel):
    """What a token is to be."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9]([A-Za-z0-9 ._@-]*[A-Za-z0-9._@-])?$")
    role: Role
    expires_s: float | None = Field(default=None, ge=1, le=_LONGEST_S)
    """How long it is valid, in seconds; None: until it is revoked."""


class TokenSecret(TokenView):
    """A new token."""

    token: str
    """Its text; it is never shown again."""


@router.get("/me", response_model=Me, responses=problems())
async def me(request: Request) -> Response:
    """Who one is."""
    actor = actor_of(request)
    return answer(Me(name=actor.name, role=actor.role, token_id=actor.token_id))


@router.get("/tokens", response_model=list[TokenView], responses=problems())
async def list_tokens(request: Request) -> Response:
    """All tokens, the newest first."""
    return answer([TokenView.model_validate(_values(info)) for info in await site_of(request).tokens.list()])


@router.post("/tokens", response_model=TokenSecret, status_code=201, responses=problems())
async def create_token(request: Request, new: NewToken) -> Response:
    """Make a token. Its text is in this answer alone; sent again, the request makes no other, because names are unique.

    There is no `Idempotency-Key`: an answer that could be said again would have to be stored, and this one is a secret.
    """
    by = str(actor_of(request))
    minted = await site_of(request).tokens.create(new.name, new.role, by=by, expires_s=new.expires_s)
    return answer(TokenSecret.model_validate({**_values(minted.info), "token": minted.text}), 201)


@router.delete("/tokens/{token_id}", response_model=TokenView, responses=problems(404))
async def revoke_token(request: Request, token_id: Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]) -> Response:
    """End a token, and every login that was made with it."""
    info = await site_of(request).tokens.revoke(token_id, by=str(actor_of(request)))
    return answer(TokenView.model_validate(_values(info)))


def _values(info: TokenInfo) -> dict[str, object]:
    return {**info._asdict(), "state": info.state}
