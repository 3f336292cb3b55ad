"""Around every request: its size, time and host name, the headers of every answer, and what nobody foresaw."""

from __future__ import annotations

import asyncio
import ipaddress
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from operator_core import clock
from operator_core.db.patience import STORE_S, waiting_at_most
from operator_core.errors import OperatorError
from operator_core.http_server import TRANSPORT_KEY
from operator_core.web.access import route_template
from operator_core.web.metrics import Metrics
from operator_core.web.problems import answer, status_of
from operator_core.web.site import Site

__all__ = ["BODY_S", "CSP", "SEND_S", "Guard"]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
BODY_S = 30.0
"""A request whose body takes longer is refused, in seconds."""
SEND_S = 30.0
"""A connection that takes nothing for so long is dropped, in seconds."""

_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: with that a browser sends forms without their origin.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Robots-Tag": "noindex, nofollow",
}
_DROP_S = 2.0
_HSTS = "max-age=31536000"
# Probes ask by whatever address they have, and learn nothing.
_ANY_HOST = frozenset({"/livez", "/readyz"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class Guard:
    """The outermost part of the app.

    Args:
        body_s: See :data:`BODY_S`.
        send_s: See :data:`SEND_S`.
        store_s: See :data:`~operator_core.db.patience.STORE_S`.
    """

    def __init__(
        self,
        app: ASGIApp,
        site: Site,
        metrics: Metrics,
        *,
        body_s: float = BODY_S,
        send_s: float = SEND_S,
        store_s: float = STORE_S,
    ) -> None:
        self._app = app
        self._site = site
        self._metrics = metrics
        self._body_s = body_s
        self._send_s = send_s
        self._store_s = store_s
        self._hosts = _hosts_of(site)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        body = _Body(scope, receive, self._site.settings.web.max_body_bytes, self._body_s)
        out = _Answer(self, scope, send, body)
        try:
            if (refused := self._refusal(scope)) is not None:
                raise refused
            with waiting_at_most(self._store_s):
                await self._app(scope, body, out)
        except HTTPException as error:
            await self._problem(scope, receive, out, error.status_code, error.detail, error.headers)
        except ClientDisconnect:
            pass
        except OperatorError as error:
            await self._problem(scope, receive, out, status_of(error), str(error), None)
        except Exception as error:
            reference = clock.new_id()[:12]
            self._complain(reference, scope, error)
            detail = f"The server failed in a way nobody foresaw; its log says more under {reference}."
            await self._problem(scope, receive, out, 500, detail, None)
        finally:
            self._metrics.answered(scope["method"], route_template(scope), out.status, clock.monotonic() - out.began)

    def _refusal(self, scope: Scope) -> HTTPException | None:
        headers = Headers(scope=scope)
        host = _host_name(headers)
        if scope["path"] not in _ANY_HOST and not self._knows(host):
            return HTTPException(
                421, "This server is not known by that name; add it to `[web] hosts`, or set `[web] public_url`."
            )
        length = headers.get("content-length")
        most = self._site.settings.web.max_body_bytes
        if length is not None and (not length.isdecimal() or int(length) > most):
            return _TooLarge(most)
        return None

    def _knows(self, host: str | None) -> bool:
        if host is None:
            return False
        if host in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        # A name can be made to lead here by whoever owns it; an address cannot.
        return address.is_loopback or self._site.settings.web.host in _WILDCARDS

    async def _problem(
        self,
        scope: Scope,
        receive: Receive,
        out: _Answer,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None,
    ) -> None:
        if out.status is not None:
            out.abort()  # half an answer must not look like a whole one
            return
        await answer(Request(scope), status, detail, headers=headers)(scope, receive, out)

    def _complain(self, reference: str, scope: Scope, error: Exception) -> None:
        where = f"{scope['method']} {route_template(scope) or 'no route'}"
        text = "".join(traceback.format_exception(error))
        self._site.say(self._site.database.redactor.text(f"[Web] {reference}: {where} failed:\n{text}"))


class _Answer:
    """Sends an answer with the headers that all have.

    When it is there before the whole request is, the rest of that is dropped before the connection is used again or
    closed: a client that still sends would else be cut off, and never see the answer.
    """

    def __init__(self, guard: Guard, scope: Scope, send: Send, body: _Body) -> None:
        self._send = send
        self._body = body
        self._transport: Any = scope["state"].get(TRANSPORT_KEY)
        self._secure = guard._site.secure
        self._send_s = guard._send_s
        self.began = clock.monotonic()
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
            if self._secure:
                headers.setdefault("Strict-Transport-Security", _HSTS)
            self.status = message["status"]
            if self.status in (408, 413) or self._body.endless:
                headers["Connection"] = "close"
        if message["type"] == "http.response.body" and not message.get("more_body") and self._body.left:
            await self._put({**message, "more_body": True})
            await self._body.drop()
            message = {"type": "http.response.body"}
        await self._put(message)

    async def _put(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._send_s):
                await self._send(message)
        except TimeoutError:
            self.abort()
            raise ClientDisconnect from None

    def abort(self) -> None:
        """Drop the connection, without waiting for what was not taken."""
        if self._transport is not None:
            self._transport.abort()


class _Body:
    """Reads the body of a request, within its limits of size and time."""

    def __init__(self, scope: Scope, receive: Receive, most: int, seconds: float) -> None:
        headers = Headers(scope=scope)
        self._receive = receive
        self._there = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        # Whoever waits to be told to send the body does not send it after an answer.
        self._sent = "expect" not in headers
        self._known = "transfer-encoding" not in headers
        self._most = most
        self._until = clock.monotonic() + seconds
        self._size = 0
        self._more = True

    async def __call__(self) -> Message:
        if not (self._more and self._there):
            return await self._receive()  # at once that there is none; then the end of the connection
        try:
            async with asyncio.timeout(max(0.0, self._until - clock.monotonic())):
                message = await self._receive()
        except TimeoutError:
            self._there = False  # nobody waits for the rest
            raise HTTPException(408, "The request did not come in time; send it again.") from None
        self._more = bool(message.get("more_body", False))
        self._size += len(message.get("body", b""))
        if self._size > self._most:
            raise _TooLarge(self._most)
        return message

    @property
    def left(self) -> bool:
        """Whether more of the request is to come."""
        return self._more and self._there and self._sent

    @property
    def endless(self) -> bool:
        """Whether nobody knows how much that is."""
        return self._more and self._there and not (self._known and self._sent)

    async def drop(self) -> None:
        """Read the rest for nothing; not all of it when it is long, or long in coming."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DROP_S):
                while self._more and self._size <= 2 * self._most:
                    message = await self._receive()
                    self._more = bool(message.get("more_body", False))
                    self._size += len(message.get("body", b""))


class _TooLarge(HTTPException):
    def __init__(self, most: int) -> None:
        super().__init__(413, f"The request is larger than {most:,} bytes; send less, or raise `[web] max_body_bytes`.")


def _hosts_of(site: Site) -> frozenset[str]:
    web = site.settings.web
    hosts = {*_LOOPBACK, web.host.lower(), *(name.lower() for name in web.hosts)}
    if web.public_url:
        hosts.add((urlsplit(web.public_url).hostname or "").lower())
    return frozenset(hosts - _WILDCARDS)


def _host_name(headers: Headers) -> str | None:
    """The name in the header ``Host`` without its port; None: there is none, more than one, or one that is no name."""
    given = headers.getlist("host")
    if len(given) != 1:
        return None
    try:
        found = urlsplit(f"//{given[0]}")
        _ = found.port
    except ValueError:
        return None
    if found.path or found.query or found.fragment or "@" in found.netloc:
        return None
    return (found.hostname or "").rstrip(".").lower() or None
