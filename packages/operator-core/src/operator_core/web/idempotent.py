"""`Idempotency-Key`: the same request, sent again because its answer was lost, has one effect and the same answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Header
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from operator_core import clock
from operator_core.db.idempotency import Keys, principal_of
from operator_core.model.entry import canonical
from operator_core.web.site import actor_of, site_of

__all__ = ["IdempotencyKey", "once"]

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[!-~]+$",
        description="Sent again with the same key and body, the request changes nothing and is answered as before; "
        "with another body it is refused. Remembered for 7 days.",
    ),
]

_SWEEP_S = 3600.0


async def once(
    request: Request, key: str | None, payload: BaseModel, act: Callable[[], Awaitable[Response]]
) -> Response:
    """Do something, or say again what was said when it was done.

    Args:
        payload: The body of the request, as it was understood.
        act: Does it; it must do nothing twice for one key, because it is called again when the answer was lost.

    Raises:
        HTTPException: The key belongs to another request (422).
    """
    if key is None:
        return await act()
    keys = Keys(site_of(request).database)
    await _sweep(request, keys)
    principal = principal_of(actor_of(request))
    asked = [request.method, request.url.path, payload.model_dump(mode="json")]
    digest = hashlib.sha256(canonical(asked).encode(errors="replace")).hexdigest()
    known = await keys.open(principal, key, digest)
    if known.request_hash != digest:
        raise HTTPException(422, "This `Idempotency-Key` was sent with another request before; make a new one.")
    if known.status is not None:
        return _said(known.status, known.body, replayed=True)
    response = await act()
    if response.status_code >= 300:
        return response
    body = bytes(response.body).decode()
    said = await keys.answer(principal, key, response.status_code, body)
    return _said(said.status or response.status_code, said.body, replayed=said.body != body)


def _said(status: int, body: str, *, replayed: bool) -> Response:
    headers = {"Cache-Control": "no-store"}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    if status == 201:
        headers["Location"] = f"/api/v1/tickets/{json.loads(body)['id']}"
    return Response(body, status, headers, media_type="application/json")


async def _sweep(request: Request, keys: Keys) -> None:
    """Forget old keys, now and then."""
    state = request.app.state
    now = clock.monotonic()
    if now >= getattr(state, "keys_swept_at", 0.0) + _SWEEP_S:
        state.keys_swept_at = now
        await keys.forget()
