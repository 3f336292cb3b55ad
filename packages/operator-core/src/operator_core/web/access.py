"""Who may do what over HTTP: one table, which is enforced in one place, before the body of a request is read.

A browser that is signed in by its cookie also has to show, for everything that changes something, that the request
comes from a page of ours: by ``X-CSRF-Token`` or the form field ``csrf``, and by ``Origin`` and ``Sec-Fetch-Site``.
"""

from __future__ import annotations

import copy
import hmac
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from operator_core.errors import StoreError
from operator_core.model.person import Actor, Role
from operator_core.web.site import Site, site_of

__all__ = [
    "ACCESS",
    "PUBLIC",
    "Denied",
    "Rule",
    "cookie_name",
    "guarded_routes",
    "recognize",
    "route_template",
    "same_site",
    "still_allowed",
]


class _Public(Enum):
    PUBLIC = "public"


PUBLIC: Final = _Public.PUBLIC
"""Anybody may, also without a token."""

Rule = _Public | Role

_VIEWER, _OPERATOR, _ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN

ACCESS: Mapping[tuple[str, str], Rule] = {
    # ---- the server
    ("GET", "/livez"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/metrics"): _VIEWER,
    ("GET", "/login"): PUBLIC,
    ("POST", "/login"): PUBLIC,
    ("POST", "/logout"): _VIEWER,
    ("GET", "/static/{version}/{name:path}"): PUBLIC,
    # ---- what comes from elsewhere, and proves itself by a signature or a secret
    ("POST", "/api/v1/intake/{name}"): PUBLIC,
    # ---- pages
    ("GET", "/"): _VIEWER,
    ("GET", "/badges"): _VIEWER,
    ("GET", "/tickets/{ticket_id}"): _VIEWER,
    ("GET", "/tickets/{ticket_id}/evidence"): _VIEWER,
    ("POST", "/tickets/{ticket_id}/reply"): _OPERATOR,
    ("POST", "/tickets/{ticket_id}/steer"): _OPERATOR,
    ("POST", "/tickets/{ticket_id}/cancel"): _OPERATOR,
    ("POST", "/tickets/{ticket_id}/resolve"): _OPERATOR,
    ("POST", "/tickets/{ticket_id}/reopen"): _OPERATOR,
    ("POST", "/tickets/{ticket_id}/verify"): _OPERATOR,
    ("POST", "/tickets/{ticket_id}/hold"): _OPERATOR,
    ("POST", "/tickets/{ticket_id}/release"): _OPERATOR,
    ("GET", "/sessions/{session_id}"): _VIEWER,
    ("GET", "/sessions/{session_id}/rows"): _VIEWER,
    ("GET", "/sessions/{session_id}/side"): _VIEWER,
    ("GET", "/sessions/{session_id}/output"): _VIEWER,
    ("GET", "/sessions/{session_id}/replay"): _VIEWER,
    ("GET", "/sessions/{session_id}/replay/ticks"): _VIEWER,
    ("GET", "/sessions/{session_id}/entries/{seq}"): _VIEWER,
    ("GET", "/sessions/{session_id}/entries/{seq}/text"): _VIEWER,
    ("GET", "/sessions/{session_id}/entries/{seq}/files/{name}"): _VIEWER,
    ("GET", "/sessions/{session_id}/export/{form}"): _VIEWER,
    ("POST", "/sessions/{session_id}/reply"): _OPERATOR,
    ("POST", "/sessions/{session_id}/steer"): _OPERATOR,
    ("POST", "/sessions/{session_id}/cancel"): _OPERATOR,
    ("GET", "/audit"): _VIEWER,
    ("POST", "/audit/verify"): _VIEWER,
    ("GET", "/monitor"): _VIEWER,
    ("GET", "/fleet"): _VIEWER,
    ("POST", "/fleet/{worker_id}/drain"): _ADMIN,
    ("GET", "/costs"): _VIEWER,
    ("GET", "/submit"): _VIEWER,
    ("POST", "/submit"): _OPERATOR,
    ("POST", "/submit/incident"): _OPERATOR,
    ("GET", "/approvals"): _VIEWER,
    ("POST", "/approvals/{approval_id}"): _OPERATOR,
    ("GET", "/settings"): _VIEWER,
    ("POST", "/settings/tokens"): _ADMIN,
    ("POST", "/settings/tokens/{token_id}/revoke"): _ADMIN,
    # ---- one question, for whoever has its link
    ("GET", "/a/{token}"): PUBLIC,
    ("POST", "/a/{token}"): PUBLIC,
    # ---- tokens
    ("GET", "/api/v1/me"): _VIEWER,
    ("GET", "/api/v1/openapi.json"): _VIEWER,
    ("GET", "/api/v1/tokens"): _ADMIN,
    ("POST", "/api/v1/tokens"): _ADMIN,
    ("DELETE", "/api/v1/tokens/{token_id}"): _ADMIN,
    # ---- the API
    ("GET", "/api/v1/board"): _VIEWER,
    ("GET", "/api/v1/stream"): _VIEWER,
    ("GET", "/api/v1/tickets"): _VIEWER,
    ("GET", "/api/v1/tickets/{ticket_id}"): _VIEWER,
    ("GET", "/api/v1/tickets/{ticket_id}/report"): _VIEWER,
    ("GET", "/api/v1/tickets/{ticket_id}/checks"): _VIEWER,
    ("POST", "/api/v1/tickets/{ticket_id}/reply"): _OPERATOR,
    ("POST", "/api/v1/tickets/{ticket_id}/steer"): _OPERATOR,
    ("POST", "/api/v1/tickets/{ticket_id}/cancel"): _OPERATOR,
    ("POST", "/api/v1/tickets/{ticket_id}/hold"): _OPERATOR,
    ("POST", "/api/v1/tickets/{ticket_id}/reopen"): _OPERATOR,
    ("POST", "/api/v1/tickets/{ticket_id}/verify"): _OPERATOR,
    ("POST", "/api/v1/tickets/{ticket_id}/resolve"): _OPERATOR,
    ("POST", "/api/v1/tasks"): _OPERATOR,
    ("POST", "/api/v1/incidents"): _OPERATOR,
    ("GET", "/api/v1/sessions"): _VIEWER,
    ("GET", "/api/v1/sessions/{session_id}"): _VIEWER,
    ("GET", "/api/v1/sessions/{session_id}/entries"): _VIEWER,
    ("GET", "/api/v1/sessions/{session_id}/stream"): _VIEWER,
    ("GET", "/api/v1/sessions/{session_id}/ticks"): _VIEWER,
    ("GET", "/api/v1/approvals"): _VIEWER,
    ("GET", "/api/v1/approvals/{approval_id}"): _VIEWER,
    ("POST", "/api/v1/approvals/{approval_id}/decision"): _OPERATOR,
    ("GET", "/api/v1/workers"): _VIEWER,
    ("POST", "/api/v1/workers/{worker_id}/drain"): _ADMIN,
    ("GET", "/api/v1/invariants"): _VIEWER,
    ("GET", "/api/v1/digest"): _VIEWER,
    ("GET", "/api/v1/costs"): _VIEWER,
    ("GET", "/api/v1/audit"): _VIEWER,
    ("POST", "/api/v1/audit/verify"): _VIEWER,
}
"""(method, path as the route has it) -> who may. ``HEAD`` goes with ``GET``."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_FIELDS = 200
_USUAL_PORT = 8642


class Denied(HTTPException):
    """Who asks may not, or did not say who that is.

    Args:
        status: 401: nobody who is known; 403: somebody who may not.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail, {"WWW-Authenticate": "Bearer"} if status == 401 else None)


class _Known(NamedTuple):
    """Who asks, and what the forms of the browser must carry; None: it is no browser."""

    actor: Actor
    csrf: str | None


def guarded_routes(routes: Iterable[BaseRoute]) -> list[Route]:
    """The routes, each behind its rule.

    Raises:
        LookupError: One is not in the table, or is no plain route: a mistake of ours.
    """
    made = []
    for route in routes:
        if not isinstance(route, Route) or not route.methods:
            raise LookupError(f"{route!r} cannot be guarded; add plain routes to the app, each with its methods")
        rules = {m: ACCESS.get((m, route.path)) for m in route.methods - {"HEAD"}}
        missing = [f"({m!r}, {route.path!r})" for m, rule in rules.items() if rule is None]
        if missing:
            raise LookupError(f"who may use {', '.join(missing)} is not said; add it to ACCESS in web/access.py")
        # Routers belong to their modules, and more than one app may be made of them.
        guarded = copy.copy(route)
        guarded.app = _Gate(route.app, route.path, {m: rule for m, rule in rules.items() if rule is not None})
        made.append(guarded)
    return made


def route_template(scope: Scope) -> str | None:
    """The path of the route that a request was for, with its placeholders; None: there was none."""
    found: str | None = scope.get("state", {}).get("route_template")
    return found


def cookie_name(site: Site) -> str:
    """Name of the login's cookie; with TLS one that no other host can set.

    Cookies do not know ports: another server on the same machine has another name for its own.
    """
    if site.secure:
        return "__Host-operator_login"
    port = urlsplit(site.url).port
    return f"operator_login_{port}" if port not in (None, 0, _USUAL_PORT) else "operator_login"


async def still_allowed(request: Request) -> bool:
    """Whether who asked may still ask: a long stream looks now and then.

    A store that cannot be reached says nothing against anybody.
    """
    template = route_template(request.scope) or ""
    rule = ACCESS.get((request.method, template))
    if rule is PUBLIC:
        return True
    try:
        known = await _who(site_of(request), request)
    except StoreError:
        return True
    return known is not None and isinstance(rule, Role) and known.actor.role.allows(rule)


async def recognize(request: Request) -> None:
    """Note who asks where no route has looked, for the page that says what went wrong; it needs no right."""
    if getattr(request.state, "actor", None) is None:
        with suppress(StoreError):
            known = await _who(site_of(request), request)
            if known is not None:
                request.state.actor, request.state.csrf = known.actor, known.csrf


class _Gate:
    """A route behind its rule."""

    def __init__(self, app: ASGIApp, template: str, rules: Mapping[str, Rule]) -> None:
        self._app = app
        self._template = template
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request.state.route_template = self._template
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        rule = self._rules[method]
        if rule is PUBLIC:
            if method not in _SAFE and not same_site(request):
                raise Denied(403, "This form was sent by a page of another site; open it here and send it again.")
            await self._app(scope, receive, send)
            return
        site = site_of(request)
        known = await _who(site, request)
        if known is None:
            raise Denied(401, "A valid token is needed; send it as `Authorization: Bearer …`, or sign in.")
        request.state.actor = known.actor
        request.state.csrf = known.csrf
        if not known.actor.role.allows(rule):
            name, role = known.actor.name, known.actor.role.value
            raise Denied(403, f"This needs the role {rule.value}, and the token {name!r} is for a {role}; use another.")
        if known.csrf is not None and method not in _SAFE:
            receive = await _from_our_page(request, receive, known.csrf)
        await self._app(scope, receive, send)


async def _who(site: Site, request: Request) -> _Known | None:
    """A header that is there decides alone: a wrong token is not made good by a cookie."""
    if (header := request.headers.get("authorization")) is not None:
        scheme, _, text = header.partition(" ")
        token = await site.tokens.check(text.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            return None
        site.note_use(token)
        return _Known(Actor(token.name, token.role, "api", token.id), None)
    cookie = request.cookies.get(cookie_name(site))
    login = await site.logins.find(cookie) if cookie else None
    if login is None:
        return None
    return _Known(Actor(login.token.name, login.token.role, "console", login.token.id), login.csrf)


def same_site(request: Request) -> bool:
    """Whether a request that changes something comes from a page of ours, as far as the browser says."""
    site, headers = site_of(request), request.headers
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    ours = {f"{request.url.scheme}://{headers.get('host', '')}".lower()}
    public = urlsplit(site.url)
    ours.add(f"{public.scheme}://{public.netloc}".lower())
    return origin.lower() in ours


async def _from_our_page(request: Request, receive: Receive, csrf: str) -> Receive:
    """Check it; the body may have been read for that, and is there again for the route."""
    shown = request.headers.get("x-csrf-token")
    if not same_site(request):
        shown = None
    elif shown is None and request.headers.get("content-type", "").partition(";")[0].strip().lower() in _FORMS:
        shown, receive = await _csrf_field(request, receive)
    if shown is None or not hmac.compare_digest(shown.encode("utf-8", "replace"), csrf.encode()):
        raise Denied(403, "This page is too old, or another site sent its form; load it again and repeat.")
    return receive


async def _csrf_field(request: Request, receive: Receive) -> tuple[str | None, Receive]:
    body = await Request(request.scope, receive).body()

    async def again() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        form = await Request(dict(request.scope), again).form(
            max_files=_FIELDS, max_fields=_FIELDS, max_part_size=len(body) + 1
        )
    except (MultiPartException, HTTPException, ValueError):
        return None, receive
    field = form.get("csrf")
    await form.close()
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return (field if isinstance(field, str) else None), replay
