"""Signing in and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from operator_core.web.flash import see
from operator_core.web.login import forget_cookie, local_path, set_cookie, sign_in, sign_out
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def form(request: Request, next: str = "/") -> Response:
    """Ask for a token."""
    return render(request, "login.html", next=local_path(next), problem=None)


@router.post("/login")
async def login(
    request: Request, token: Annotated[str, Form(max_length=500)] = "", next: Annotated[str, Form()] = "/"
) -> Response:
    """Sign in and go on, or say why not."""
    path = local_path(next)
    tried = await sign_in(request, token)
    if tried.opened is None:
        headers = {"Retry-After": str(tried.wait_s)} if tried.wait_s else None
        return render(request, "login.html", status=tried.status, headers=headers, next=path, problem=tried.why)
    response = see(path, "signed_in")
    set_cookie(request, response, tried.opened)
    return response


@router.post("/logout")
async def logout(request: Request) -> RedirectResponse:
    """Sign out."""
    await sign_out(request)
    response = see("/login", "signed_out")
    forget_cookie(request, response)
    return response
