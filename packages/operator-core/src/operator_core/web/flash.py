"""What a page says after something was done: ``?said=KEY``, so that an address can never make it say anything else."""

from __future__ import annotations

from typing import Literal, get_args
from urllib.parse import quote

from fastapi.responses import RedirectResponse
from starlette.requests import Request

__all__ = ["Said", "said", "see"]

Said = Literal[
    "answered",
    "approved",
    "canceled",
    "canceling",
    "canceling_now",
    "denied",
    "drained",
    "held",
    "opened",
    "released",
    "reopened",
    "resolved",
    "revoked",
    "signed_in",
    "signed_out",
    "steered",
    "submitted",
    "undrained",
    "verifying",
]

_SENTENCES: dict[str, str] = {
    "answered": "The answer was stored; a worker goes on with it.",
    "approved": "The call is allowed, once; the session goes on.",
    "canceled": "The ticket is canceled.",
    "canceling": "The cancellation was stored; the worker stops at its next step.",
    "canceling_now": "The cancellation was stored; the worker kills what runs, now.",
    "denied": "The call is denied; the agent is told so.",
    "drained": "The worker ends what it has and takes nothing new.",
    "held": "The ticket is held; no worker takes it.",
    "opened": "The incident is open.",
    "released": "The ticket is released; a worker may take it.",
    "reopened": "The ticket is open again; a worker may take it.",
    "resolved": "The ticket is resolved by hand, and recorded as such.",
    "revoked": "The token is revoked; whoever used it is signed out.",
    "signed_in": "You are signed in.",
    "signed_out": "You are signed out.",
    "steered": "The message was stored; the agent reads it before its next step.",
    "submitted": "The task is submitted.",
    "undrained": "The worker takes tickets again.",
    "verifying": "It is to be judged again; what a worker finds is shown here.",
}
assert set(_SENTENCES) == set(get_args(Said))


def said(request: Request) -> str | None:
    """The sentence that the page's address asks for, if it is one of ours."""
    return _SENTENCES.get(request.query_params.get("said", ""))


def see(path: str, what: Said) -> RedirectResponse:
    """Go to another page (303), which says what was done."""
    return RedirectResponse(f"{path}{'&' if '?' in path else '?'}said={quote(what)}", status_code=303)
