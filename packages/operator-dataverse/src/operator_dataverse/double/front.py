"""What every service of the double has in front: the history, the faults, and the account behind a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from operator_core.http_server import TRANSPORT_KEY
from operator_dataverse.double.faults import Faults
from operator_dataverse.double.history import History
from operator_dataverse.double.history import Request as Noted
from operator_dataverse.double.problems import Problem, bad_query
from operator_dataverse.double.store import Account, Store

__all__ = ["Front", "Service", "body_of", "json_object", "options_of"]

_MAX_URL = 32_768
_MAX_BODY = 128 * 2**20


class Service(Protocol):
    """One of the services behind a path prefix."""

    @property
    def open(self) -> bool:
        """Whether it answers those without a token too."""
        ...

    def answer(self, request: Request, path: str, account: Account | None, noted: Noted, raw: bytes) -> Response:
        """Answer one request.

        Args:
            request: Its method, headers and query.
            path: After the prefix, without a slash at the beginning.
            account: Who calls; None only if the service is open.
            noted: For the table, the body and the effects.
            raw: The body.

        Raises:
            Problem: It does not do what was asked.
        """
        ...


class Front:
    """An ASGI application over several services.

    Args:
        store: Knows the accounts and the time.
        history: Where requests are noted.
        faults: What goes wrong.
        services: By the beginning of the path.
    """

    def __init__(self, store: Store, history: History, faults: Faults, services: Mapping[str, Service]) -> None:
        self._store = store
        self._history = history
        self._faults = faults
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"no server for {scope['type']}")
        request = Request(scope, receive)
        path = _readable(request)
        noted = self._history.begin(self._store.clock.now(), request.method, path, dict(request.headers))
        try:
            response = await self._response(request, noted, path)
        except ClientDisconnect:
            return
        finally:
            noted.over = True
        if response is None:
            return await _drop(scope, receive)
        with contextlib.suppress(ConnectionError):
            await response(scope, receive, send)

    async def _response(self, request: Request, noted: Noted, path: str) -> Response | None:
        """The answer; None: the connection is dropped instead."""
        raw = await _read(request)
        met = self._faults.meet(request.method, path)
        kinds = {fault.kind for fault in met}
        noted.fault = ", ".join(fault.kind for fault in met)
        for fault in met:
            if fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
        if "drop_request" in kinds:
            return None
        try:
            for fault in met:
                if problem := self._faults.problem(fault):
                    raise problem
            response = self._answer(request, noted, raw)
        except Problem as problem:
            response = _refusal(problem)
        if "drop_answer" in kinds:
            return None
        noted.status = response.status_code
        return response

    def _answer(self, request: Request, noted: Noted, raw: bytes) -> Response:
        if len(str(request.url)) > _MAX_URL:
            raise Problem(414, "", "The request URL is too long.")
        if len(raw) > _MAX_BODY:
            raise Problem(413, "", "The request body is too large.")
        path = request.url.path
        prefix = max((p for p in self._services if path == p or path.startswith(f"{p}/")), key=len, default=None)
        if prefix is None:
            raise Problem(404, "", "")
        service = self._services[prefix]
        account = self._account(request)
        if account is None and not service.open:
            raise Problem(401, "", "", {"WWW-Authenticate": "Bearer error=invalid_token"})
        noted.user = account.email if account else ""
        with self._store.lock:
            return service.answer(request, path.removeprefix(prefix).lstrip("/"), account, noted, raw)

    def _account(self, request: Request) -> Account | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self._store.account(token) if scheme.lower() == "bearer" else None


def options_of(request: Request) -> dict[str, str]:
    """The query, decoded.

    Raises:
        Problem: One of them is there twice.
    """
    options: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in options:
            raise bad_query(f"Query option '{name}' was specified more than once.")
        options[name] = value
    return options


def body_of(request: Request, raw: bytes) -> Any:
    """The JSON body; None: there is none.

    Raises:
        Problem: It is no JSON.
    """
    if not raw:
        return None
    if "json" not in request.headers.get("content-type", ""):
        raise Problem(415, "", "The content type of the request is not supported.")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise Problem(400, "0x80048d19", f"Error identified in Payload provided by the user: {exc}") from None


def json_object(body: Any) -> Mapping[str, Any]:
    """The body, which must be an object.

    Raises:
        Problem: It is none.
    """
    if not isinstance(body, dict):
        raise Problem(400, "0x80048d19", "Error identified in Payload provided by the user: an object was expected.")
    return body


def _readable(request: Request) -> str:
    query = "&".join(f"{name}={value}" for name, value in request.query_params.multi_items())
    return f"{request.url.path}?{query}" if query else request.url.path


async def _read(request: Request) -> bytes:
    """The body; of one that is too long, its beginning."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        if size <= _MAX_BODY:
            parts.append(part)
        size += len(part)
    return b"".join(parts)


def _refusal(problem: Problem) -> Response:
    if not problem.code and not problem.message:
        return Response(status_code=problem.status, headers=problem.headers)
    body = {"error": {"code": problem.code, "message": problem.message}}
    return JSONResponse(body, problem.status, headers=problem.headers)


async def _drop(scope: Scope, receive: Receive) -> None:
    transport = scope["state"].get(TRANSPORT_KEY)
    if not isinstance(transport, asyncio.Transport):
        raise ConnectionAbortedError("The double dropped this connection.")
    transport.abort()
    while (await receive())["type"] != "http.disconnect":
        pass
