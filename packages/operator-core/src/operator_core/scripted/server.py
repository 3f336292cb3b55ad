"""The HTTP application: the Messages API, answered by a brain."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from operator_core.clock import new_id
from operator_core.http_server import TRANSPORT_KEY
from operator_core.scripted import rules, wire
from operator_core.scripted.brain import Brain, Failure, Reply, Router
from operator_core.scripted.log import RequestLog
from operator_core.scripted.turn import Turn, content_blocks

__all__ = ["BANNER", "DEFAULT_MODELS", "ENGINE_HEADER", "MAX_BODY_BYTES", "make_app"]

BANNER = "Scripted model server: a deterministic stand-in that follows a program; no language model answers here."
DEFAULT_MODELS = ("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5")
ENGINE_HEADER = "x-operator-engine"
MAX_BODY_BYTES = 32 * 2**20

_MAX_PLACES = 20_000
_logger = logging.getLogger(__name__)


def make_app(
    brain: Brain,
    log: RequestLog | None = None,
    *,
    api_key: str | None = None,
    models: Sequence[str] = DEFAULT_MODELS,
) -> Starlette:
    """The application.

    Endpoints: ``POST /v1/messages`` (JSON and SSE), ``POST /v1/messages/count_tokens``, ``GET /v1/models[/id]``,
    ``GET /_log`` (``?bodies=0`` leaves the bodies out) and ``GET /`` (the banner).

    Args:
        brain: Answers the model calls. Unless it is a :class:`Router`, summary requests (Haiku-class model, no tools)
            do not reach it; a :class:`SummaryBrain` answers them.
        log: Where requests are noted; default: a new log, ``app.state.log``.
        api_key: The only key that is accepted, as ``Authorization: Bearer`` or ``x-api-key``; by default any key is,
            but none is not. With it, ``/_log`` wants it too.
        models: The ids in the model list; any other id is answered as well.
    """
    service = _Service(Router.around(brain), RequestLog() if log is None else log, api_key, tuple(models))
    app = Starlette(
        routes=[
            Route("/v1/messages", service.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", service.count_tokens, methods=["POST"]),
            Route("/v1/models", service.list_models, methods=["GET"]),
            Route("/v1/models/{model}", service.show_model, methods=["GET"]),
            Route("/_log", service.show_log, methods=["GET"]),
            Route("/", service.banner, methods=["GET"]),
            Route("/{path:path}", service.unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ],
        middleware=[Middleware(_Shell)],
    )
    app.state.log = service.log
    app.state.closing = False
    return app


class _Shell:
    """Labels every answer as scripted, and lets a closing server end requests that are still waiting."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[ENGINE_HEADER] = "scripted"
                headers["request-id"] = scope["state"]["request_id"]
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = f"req_{new_id()[:24]}"
        try:
            await self._app(scope, receive, labelled)
        except asyncio.CancelledError:
            if not scope["app"].state.closing:
                raise


class _Faulty(Response):
    """An answer in parts, optionally slow, that may end in a dropped connection."""

    def __init__(
        self,
        parts: Sequence[bytes],
        media_type: str,
        *,
        pause_s: float = 0.0,
        drop: bool = False,
        length: int | None = None,
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        if length is not None:
            self.headers["content-length"] = str(length)
        self._parts, self._pause_s, self._drop = parts, pause_s, drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._parts:
            await _hang_up(scope, receive)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts if self._pause_s else (b"".join(self._parts),):
            if await _gone_within(receive, self._pause_s):
                return
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if self._drop:
            await _hang_up(scope, receive)
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone_within(receive: Receive, seconds: float) -> bool:
    """Wait so long, or until the client has gone (then True)."""
    if seconds <= 0:
        return False
    try:
        async with asyncio.timeout(seconds):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


async def _hang_up(scope: Scope, receive: Receive) -> None:
    transport = scope["state"].get(TRANSPORT_KEY)
    if not isinstance(transport, asyncio.Transport):
        raise ConnectionAbortedError("The scripted brain dropped this connection.")
    transport.close()
    while (await receive())["type"] != "http.disconnect":
        pass


class _Attempts:
    """Counts requests by place; forgets the oldest places."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, int] = OrderedDict()

    def count(self, place: str) -> int:
        before = self._seen.pop(place, 0)
        self._seen[place] = before + 1
        if len(self._seen) > _MAX_PLACES:
            self._seen.popitem(last=False)
        return before


class _Service:
    def __init__(self, brain: Brain, log: RequestLog, api_key: str | None, models: tuple[str, ...]) -> None:
        self.log = log
        self._brain = brain
        self._api_key = api_key
        self._models = models
        self._attempts = _Attempts()
        self._paused: OrderedDict[str, None] = OrderedDict()

    async def messages(self, request: Request) -> Response:
        number, body, refusal = await self._read(request)
        if refusal is None:
            refusal = self._refuse(request, number, body)
        if refusal is not None:
            return refusal
        assert isinstance(body, dict)
        turn = Turn.from_body(body)
        turn = replace(turn, attempt=self._attempts.count(turn.place))
        streaming = body.get("stream") is True
        self.log.update(number, model=turn.model, step=turn.step, attempt=turn.attempt, stream=streaming)
        try:
            answer = await self._brain.reply(turn)
            if isinstance(answer, Failure):
                return await self._failure(request, number, answer)
            return await self._reply(request, number, body, answer, streaming)
        except Exception as exc:
            _logger.exception("The scripted brain failed at step %d.", turn.step)
            self.log.update(number, fault=f"brain: {type(exc).__name__}: {exc}")
            message = f"The scripted brain failed at step {turn.step}: {type(exc).__name__}: {exc}"
            return self._error(request, number, 500, message, headers={"x-should-retry": "false"})

    async def count_tokens(self, request: Request) -> Response:
        number, body, refusal = await self._read(request)
        if refusal is not None:
            return refusal
        problem = rules.check(body, counting=True)
        if problem:
            return self._error(request, number, 400, problem)
        return self._json(number, {"input_tokens": wire.prompt_of(body).total})

    async def list_models(self, request: Request) -> Response:
        number, _, refusal = await self._read(request)
        if refusal is not None:
            return refusal
        ends = {"first_id": self._models[0], "last_id": self._models[-1]} if self._models else {}
        return self._json(number, {"data": [_model(name) for name in self._models], "has_more": False, **ends})

    async def show_model(self, request: Request) -> Response:
        number, _, refusal = await self._read(request)
        if refusal is not None:
            return refusal
        model = request.path_params["model"]
        if model not in self._models:
            return self._error(request, number, 404, f"model: {model}")
        return self._json(number, _model(model))

    async def show_log(self, request: Request) -> Response:
        if self._api_key is not None and not self._known(request):
            return Response(status_code=401)
        bodies = request.query_params.get("bodies") != "0"
        entries = [entry.to_json(body=bodies) for entry in self.log.requests()]
        return Response(wire.dump(entries), media_type="application/json")

    async def banner(self, request: Request) -> Response:
        return Response(BANNER + "\n", media_type="text/plain")

    async def unknown(self, request: Request) -> Response:
        number, _, refusal = await self._read(request)
        return refusal or self._error(request, number, 404, f"Not found: {request.url.path}")

    async def _read(self, request: Request) -> tuple[int, Any, Response | None]:
        """Log the request; its number, its parsed body, and the refusal if it is too large, no JSON, or has no key."""
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size <= MAX_BODY_BYTES:
                    chunks.append(chunk)
        except ClientDisconnect:
            chunks.clear()
        too_large = size > MAX_BODY_BYTES
        raw = None if too_large else b"".join(chunks)
        request_id = request.state.request_id
        number = self.log.add(request.method, request.url.path, request.headers, raw, size, request_id)
        if too_large:
            return number, None, self._error(request, number, 413, "Request exceeds the maximum size")
        if not self._known(request):
            key = request.headers.get("authorization") or request.headers.get("x-api-key")
            message = "invalid x-api-key" if key else "x-api-key header is required"
            return number, None, self._error(request, number, 401, message)
        if request.method == "GET":
            return number, None, None
        try:
            return number, from_json(raw or b"", allow_inf_nan=False), None
        except ValueError as exc:
            return number, None, self._error(request, number, 400, f"The request body is not valid JSON: {exc}")

    def _known(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        keys = [token.strip() if scheme.lower() == "bearer" else "", request.headers.get("x-api-key", "")]
        if self._api_key is None:
            return any(keys)
        return any(hmac.compare_digest(key.encode(), self._api_key.encode()) for key in keys)

    def _refuse(self, request: Request, number: int, body: Any) -> Response | None:
        problem = rules.check(body)
        if problem:
            return self._error(request, number, 400, problem)
        if body.get("thread"):
            details = {"error_code": "thread_unsupported_request"}
            return self._error(request, number, 400, "thread: not supported by this server", details=details)
        last = body["messages"][-1]
        if last["role"] == "assistant" and _shape(last["content"]) not in self._paused:
            message = (
                "This model does not support assistant message prefill. The conversation must end with a user message."
            )
            return self._error(request, number, 400, message)
        return None

    async def _failure(self, request: Request, number: int, failure: Failure) -> Response:
        if await _gone_within(request.receive, failure.delay_s):
            return self._nobody(number)
        message = failure.message or f"The scripted brain answered with {failure.status}."
        return self._error(request, number, failure.status, message, failure.headers, failure.details)

    async def _reply(
        self, request: Request, number: int, body: Mapping[str, Any], reply: Reply, streaming: bool
    ) -> Response:
        cache = body.get("cache_control")
        long_cache = isinstance(cache, dict) and cache.get("ttl") == "1h"
        message = wire.message_of(reply, body["model"], wire.prompt_of(body), long_cache=long_cache)
        parts = wire.stream_events(message) if streaming else [wire.dump(message)]
        if await _gone_within(request.receive, reply.delay_s):
            return self._nobody(number)
        if reply.stream_error and not streaming:
            status = wire.ERROR_STATUS.get(reply.stream_error, 500)
            return self._error(request, number, status, f"The scripted brain answered with {reply.stream_error}.")
        if message["stop_reason"] in ("pause_turn", "compaction"):
            self._paused[_shape(message["content"])] = None
            if len(self._paused) > _MAX_PLACES:
                self._paused.popitem(last=False)
        facts = {"stop_reason": message["stop_reason"], "usage": message["usage"]} if reply.fault is None else {}
        self.log.update(number, status=None if reply.drop == "start" else 200, fault=reply.fault, **facts)
        if not streaming and not reply.fault:
            return Response(parts[0], media_type="application/json")
        return self._faulty(parts, reply, streaming, request.state.request_id)

    @staticmethod
    def _faulty(parts: list[bytes], reply: Reply, streaming: bool, request_id: str) -> Response:
        media_type = "text/event-stream" if streaming else "application/json"
        length = None if streaming or reply.truncate else len(parts[0])
        if reply.drop == "start":
            parts = []
        elif reply.fault:
            # Half of a stream includes `message_start` and, if the reply has any content, some of that.
            parts = parts[: max(3, len(parts) // 2)] if streaming else [parts[0][: len(parts[0]) // 2]]
        if reply.stream_error:
            parts.append(wire.error_event(reply.stream_error, request_id))
        return _Faulty(parts, media_type, pause_s=reply.chunk_delay_s, drop=reply.drop is not None, length=length)

    def _nobody(self, number: int) -> Response:
        self.log.update(number, fault="client gone")
        return Response(status_code=500)  # nobody receives it

    def _json(self, number: int, value: Mapping[str, Any]) -> Response:
        self.log.update(number, status=200)
        return Response(wire.dump(value), media_type="application/json")

    def _error(
        self,
        request: Request,
        number: int,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Response:
        self.log.update(number, status=status)
        body = wire.error_body(wire.error_type(status), message, request.state.request_id, details)
        return Response(wire.dump(body), status, dict(headers or {}), "application/json")


def _model(name: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": f"{name} (scripted)",
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 200_000,
        "max_tokens": 64_000,
    }


def _shape(content: object) -> str:
    """A digest of what a client cannot change when it sends a message back."""
    parts = [
        str(block.get("text") or block.get("thinking") or block.get("id") or block.get("type"))
        for block in content_blocks(content)
    ]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
