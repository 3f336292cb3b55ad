"""Signing browsers in and out."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import Response

from operator_core.db.logins import Opened
from operator_core.model.person import Actor
from operator_core.web.access import cookie_name
from operator_core.web.limits import LoginLimit
from operator_core.web.metrics import Metrics
from operator_core.web.site import actor_of, site_of

__all__ = ["SignIn", "client_address", "forget_cookie", "local_path", "set_cookie", "sign_in", "sign_out"]

_LONGEST_PATH = 2000


class SignIn(NamedTuple):
    """How a try ended.

    Attributes:
        opened: The login; None: it was refused.
        status: HTTP status of the refusal.
        why: One sentence about it, the same whatever is wrong with the token.
        wait_s: No try is looked at before so many seconds are over.
    """

    opened: Opened | None
    status: int = 200
    why: str = ""
    wait_s: int = 0


async def sign_in(request: Request, text: str) -> SignIn:
    """Try a token. Failures are counted, and each success is in the ledger."""
    site = site_of(request)
    limit: LoginLimit = request.app.state.login_limit
    metrics: Metrics = request.app.state.metrics
    address = client_address(request)
    if wait := limit.wait_s(address):
        metrics.signed_in("limited")
        return SignIn(None, 429, f"There were too many attempts; try again in {wait} seconds.", wait)
    with limit.trying(address):
        token = await site.tokens.check(text.strip())
        if token is None:
            limit.failed(address)
    if token is None:
        metrics.signed_in("refused")
        return SignIn(None, 401, "This token is not valid; ask whoever runs this server for another.")
    by = Actor(token.name, token.role, "console", token.id)
    opened = await site.logins.open(token, site.settings.web.login_hours, by=str(by))
    site.note_use(token)
    metrics.signed_in("ok")
    return SignIn(opened)


async def sign_out(request: Request) -> None:
    """End the login of this browser; every page of it that is still open is of no use then."""
    site = site_of(request)
    await site.logins.close(request.cookies.get(cookie_name(site), ""), by=str(actor_of(request)))


def set_cookie(request: Request, response: Response, opened: Opened) -> None:
    """Give the browser its cookie, which no script can read and no other site can use."""
    site = site_of(request)
    response.set_cookie(
        cookie_name(site),
        opened.cookie,
        expires=opened.login.ends_at,
        path="/",
        secure=site.secure,
        httponly=True,
        samesite="strict",
    )


def forget_cookie(request: Request, response: Response) -> None:
    """Take the browser's cookie away."""
    site = site_of(request)
    response.delete_cookie(cookie_name(site), path="/", secure=site.secure, httponly=True, samesite="strict")


def client_address(request: Request) -> str:
    """Who tries, as far as that is known.

    Behind a server on this machine that speaks TLS, it is the last address in ``X-Forwarded-For``: the one that this
    server has seen itself.
    """
    peer = request.client.host if request.client else ""
    # Some servers append to the header, others add one of their own behind that of the client.
    forwarded = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
    if not forwarded or site_of(request).settings.web.public_url is None:
        return peer
    try:
        return forwarded if ipaddress.ip_address(peer).is_loopback else peer
    except ValueError:
        return peer


def local_path(wanted: str) -> str:
    """An address on this server to go on to, or the board if it is none."""
    if not wanted.startswith("/") or len(wanted) > _LONGEST_PATH or not wanted.isprintable() or "\\" in wanted:
        return "/"
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return "/"
    # Browsers read `//host` as an address elsewhere, and the API is no page.
    if parts.scheme or parts.netloc or wanted.startswith("//") or parts.path.startswith(("/api/", "/login", "/logout")):
        return "/"
    return wanted
