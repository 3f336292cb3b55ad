"""What went wrong, as programs read it (RFC 9457) and as people do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from operator_core import errors
from operator_core.text import printable

__all__ = ["Problem", "add_handlers", "answer", "problem_responses", "status_of", "wants_page"]

_STATUS: tuple[tuple[type[errors.OperatorError], int], ...] = (
    (errors.NotFound, 404),
    (errors.TransitionRefused, 409),
    (errors.Fenced, 409),
    (errors.StoreError, 503),
    (errors.ConfigError, 422),
    (errors.SourceError, 422),
    (errors.LimitReached, 409),
)
_LONGEST = 1000

_logger = logging.getLogger(__name__)


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str = "about:blank"
    title: str
    """Of the status."""
    status: int
    detail: str
    """One sentence that says what to do."""
    errors: list[dict[str, Any]] | None = None
    """Which parts of the request are wrong: ``where`` and ``what``."""


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For ``responses=`` of a route: which problems it may answer with."""
    return {
        status: {
            "model": Problem,
            "description": HTTPStatus(status).phrase,
            "content": {"application/problem+json": {}},
        }
        for status in statuses
    }


_NOWHERE = "There is nothing at this address; begin at the board."


def add_handlers(app: FastAPI) -> None:
    """Answer every error of the app in this form."""
    app.add_exception_handler(errors.OperatorError, _operator_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


def status_of(error: errors.OperatorError) -> int:
    """The HTTP status that says the same."""
    if isinstance(error, errors.IntakeRefused):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def wants_page(request: Request) -> bool:
    """Whether a person with a browser waits for the answer."""
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


def answer(
    request: Request,
    status: int,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    wrong: list[dict[str, Any]] | None = None,
) -> Response:
    """The answer that says what went wrong.

    Args:
        detail: One sentence; what is not printable in it is made visible.
        wrong: Which parts of the request are.
    """
    detail = " ".join(printable(detail).split())[:_LONGEST]
    title = HTTPStatus(status).phrase
    if wants_page(request) and (page := _page(request, status, title, detail, headers)) is not None:
        return page
    problem = Problem(title=title, status=status, detail=detail, errors=wrong)
    return JSONResponse(
        problem.model_dump(mode="json", exclude_none=True),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/problem+json",
    )


def _page(request: Request, status: int, title: str, detail: str, headers: Mapping[str, str] | None) -> Response | None:
    """None: the page itself fails, which must not hide what went wrong before."""
    from operator_core.web.templates import render
    from operator_core.web.words import on_page

    try:
        return render(request, "error.html", status=status, title=title, detail=on_page(detail), headers=headers)
    except Exception:
        _logger.exception("The page that says what went wrong cannot be made")
        return None


async def _operator_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.OperatorError)
    status = status_of(error)
    return answer(request, status, str(error), headers={"Retry-After": "5"} if status == 503 else None)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if wants_page(request) and {e["loc"][0] for e in error.errors()} == {"path"}:
        return answer(request, 404, _NOWHERE)
    # Never what was sent: it may be a secret, and is hostile.
    wrong = [
        {"where": ".".join(str(part) for part in e["loc"])[:200], "what": str(e["msg"])[:200]}
        for e in error.errors()[:20]
    ]
    said = f"{wrong[0]['where']}: {wrong[0]['what']}" if wrong else "it cannot be read"
    return answer(request, 422, f"The request is not usable ({said}); change it and send it again.", wrong=wrong)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 401 and wants_page(request):
        return _to_login(request)
    detail, headers = error.detail, error.headers
    if error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = "There is nothing at this address; begin at `/`, or see `/api/v1/openapi.json`."
        if wants_page(request):
            detail = _NOWHERE
    elif error.status_code == 405:
        detail = "This address does not know that method; the header Allow names those that it does."
        headers = {"Allow": ", ".join(_methods(request))}
    if wants_page(request):
        from operator_core.web.access import recognize

        await recognize(request)
    return answer(request, error.status_code, str(detail), headers=headers)


def _methods(request: Request) -> list[str]:
    """Those of all routes with this path; the framework names those of one of them."""
    known: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            known |= route.methods or set()
    return sorted(known)


def _to_login(request: Request) -> Response:
    """Sign in first; then back to where one wanted to be, if that was a page."""
    from urllib.parse import quote

    path = request.url.path
    query = f"?{request.url.query}" if request.url.query else ""
    back = "" if request.method not in ("GET", "HEAD") or path == "/" else f"?next={quote(path + query, safe='')}"
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"HX-Redirect": "/login"})
    return RedirectResponse(f"/login{back}", status_code=303)
