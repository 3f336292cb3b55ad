"""The CLI's only way out: a proxy on a UNIX socket, one for each run.

It forwards model calls to the configured service and nothing else, puts the API key in place of the run's own token,
asks the fence and the budget before each call, charges and journals each reply before the CLI can act on it, and caps
``Retry-After``. Calls go one at a time, so that a budget is never exceeded by more than one of them. It serves one
process, the forwarder, which in turn serves the CLI's own: what runs in the sandbox besides cannot speak to the model.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.claude_code.record import Record
from operator_core.agent_lab.claude_code.reply import ReplyReader, ReplyTooLarge, usage_of
from operator_core.agent_lab.claude_code.service import blocks_of, meaning_of, reaches_out, said_in
from operator_core.config import ModelSettings
from operator_core.db.journal import Journal
from operator_core.errors import LimitReached, ModelError, ModelUnreachable, OperatorError, UnknownPrice
from operator_core.failpoints import reach
from operator_core.http_server import TRANSPORT_KEY
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.usage import Usage
from operator_core.scripted.serve import QuietServer
from operator_core.text import clip, first_line, printable

__all__ = ["MAX_REQUEST", "MAX_RETRY_AFTER_S", "Proxy", "listen", "peer_of"]

MAX_REQUEST = 32 << 20
MAX_RETRY_AFTER_S = 30.0

_DEFAULT_URL = "https://api.anthropic.com"
_MOST_ERROR = 1 << 20
_CONNECT_S = 10.0
_PASSED_ON = ("accept", "content-type", "user-agent", "x-app")
_PASSED_ON_BEGIN = ("anthropic-", "x-stainless-", "x-claude-code-")
_PASSED_BACK = ("content-type", "request-id", "x-should-retry")
_MESSAGES, _COUNT = "/v1/messages", "/v1/messages/count_tokens"


def listen(path: Path) -> socket.socket:
    """A listening UNIX socket; unlike ``bind``, for a path of any length.

    Args:
        path: In an existing folder.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")
        sock.listen(64)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock


def peer_of(sock: socket.socket) -> int:
    """Id of the process that made this connection, as the kernel says; it may be in another PID namespace."""
    pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
    return pid


class Proxy:
    """See the module; a context manager that serves while it is open.

    Args:
        sock: Where it listens, see :func:`listen`; it is closed at the end.
        token: What the CLI must show, as ``x-api-key`` or ``Authorization: Bearer``.
        api_key: What the service gets in its place.
        base_url: The service; None: the API's own address.
        settings: For time limits and messages.
        journal: Asked for the fence before each call.
        budget: Asked before each call, charged after it.
        record: Where replies go.
        resting: Asked before each call: the worker leaves, so no call begins any more.
        halt: Called when the run must end at once; :attr:`failure` says why, or the worker leaves.

    Attributes:
        peer: The process that it serves; 0 before that is known.
        limit: Why no further call is allowed; empty while calls are.
        failure: The error of ours that ends the run.
        trouble: What the last answer of the service meant, if that was an error.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        token: str,
        api_key: str,
        base_url: str | None,
        settings: ModelSettings,
        journal: Journal,
        budget: Budget,
        record: Record,
        resting: Callable[[], bool] = lambda: False,
        halt: Callable[[], None] = lambda: None,
    ) -> None:
        self.peer = 0
        self.limit = ""
        self.failure: OperatorError | None = None
        self.trouble: ModelError | None = None
        self._sock = sock
        self._token, self._key = token.encode(), api_key
        self._base_url = base_url
        self._url = (base_url or _DEFAULT_URL).rstrip("/")
        self._settings, self._journal, self._budget, self._record = settings, journal, budget, record
        self._resting, self._halt = resting, halt
        self._turn = asyncio.Lock()
        self._closing = False
        self._server = QuietServer(self, self._close)
        self._client: httpx2.AsyncClient | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Proxy:
        timeout = httpx2.Timeout(self._settings.request_timeout_s, connect=_CONNECT_S)
        self._client = httpx2.AsyncClient(timeout=timeout, follow_redirects=False)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock]), name="claude-code-proxy")
        ready = asyncio.create_task(self._server.ready.wait())
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._task.done():
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        if self._task is not None:
            await self._task
        self._sock.close()
        if self._client is not None:
            await self._client.aclose()

    def _close(self) -> None:
        self._closing = True

    def fail(self, error: OperatorError) -> None:
        """End the run with this error, unless it ends with another one already."""
        self.failure = self.failure or error
        self._halt()

    # ---- requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request of the CLI (ASGI)."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send)
        try:
            await self._serve(request)
        except ClientDisconnect:
            pass
        except OperatorError as error:
            self.fail(error)
            await _hang_up(request)
        except asyncio.CancelledError:
            if not self._closing:
                raise

    async def _serve(self, request: Request) -> None:
        path = request.url.path
        if not self._is_peer(request) or not self._known(request):
            await _refuse(request, 401, "authentication_error", "This is not the token of this session.")
            return
        if request.method != "POST" or path not in (_MESSAGES, _COUNT):
            await _refuse(request, 404, "not_found_error", f"Only model calls pass here, not {request.method} {path}.")
            return
        raw = await _body(request)
        if raw is None:
            await _refuse(request, 413, "request_too_large", "The request is larger than 32 MiB.")
            return
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("model"), str):
            await _refuse(request, 400, "invalid_request_error", "The request is not a model call.")
            return
        if reaches_out(body):
            why = (
                "The model service may not fetch or run anything itself in this session; use the tools of the sandbox."
            )
            await _refuse(request, 400, "invalid_request_error", why)
            return
        if path == _COUNT:
            await self._journal.check()
            await self._forward(request, raw, body, counting=True)
            return
        async with self._turn:
            await self._call(request, raw, body)

    async def _call(self, request: Request, raw: bytes, body: dict[str, Any]) -> None:
        if self._resting():
            self._halt()
            await asyncio.Event().wait()  # until the run is over: the call belongs to whoever goes on
        if self.limit or self.failure:
            await _refuse(request, 400, "invalid_request_error", self.limit or str(self.failure))
            return
        await self._record.settle(b for b in blocks_of(body.get("messages")) if b.get("type") == "tool_result")
        await self._journal.check()
        asked = body.get("max_tokens")
        max_tokens = asked if isinstance(asked, int) and asked > 0 else self._settings.max_tokens
        try:
            self._budget.reserve(len(raw), model=body["model"], max_tokens=max_tokens)
        except (LimitReached, UnknownPrice) as error:
            self.limit = str(error)
            await _refuse(request, 400, "invalid_request_error", self.limit)
            return
        reach("claude_code.call")
        await self._forward(request, raw, body, counting=False)

    async def _forward(self, request: Request, raw: bytes, body: dict[str, Any], *, counting: bool) -> None:
        assert self._client is not None
        query = f"?{request.url.query}" if request.url.query else ""
        url = f"{self._url}{request.url.path}{query}"
        try:
            async with self._client.stream("POST", url, content=raw, headers=self._headers(request)) as answer:
                if answer.status_code >= 400 or answer.is_redirect:
                    await self._pass_error(request, answer)
                elif answer.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._pass_stream(request, answer, body["model"])
                else:
                    await self._pass_json(request, answer, body["model"], counting)
        except httpx2.HTTPError as error:
            what = clip(first_line(str(error)) or type(error).__name__, 200)
            where = f"endpoint {self._base_url}" if self._base_url else "service"
            self.trouble = ModelUnreachable(
                f"The model {where} cannot be reached ({what}); check [model] base_url and the network."
            )
            await _refuse(request, 502, "api_error", str(self.trouble))

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in _PASSED_ON or name.startswith(_PASSED_ON_BEGIN)
        }
        headers["accept-encoding"] = "identity"
        if "x-api-key" in request.headers:
            headers["x-api-key"] = self._key
        else:
            headers["authorization"] = f"Bearer {self._key}"
        return headers

    def _known(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        shown = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
        return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self._token)

    def _is_peer(self, request: Request) -> bool:
        transport = request.scope.get("state", {}).get(TRANSPORT_KEY)
        end = transport.get_extra_info("socket") if isinstance(transport, asyncio.Transport) else None
        return self.peer > 0 and end is not None and peer_of(end) == self.peer

    # ---- answers

    async def _pass_stream(self, request: Request, answer: httpx2.Response, model: str) -> None:
        reader = ReplyReader()
        started = False
        usage: Usage | None = None
        try:
            async for chunk in answer.aiter_bytes():
                ready = reader.feed(chunk)
                if ready:
                    if not started:
                        await _begin(request, answer)
                        started = True
                    await _send(request, ready)
                if reader.complete:
                    break
        except (httpx2.HTTPError, ReplyTooLarge):
            pass  # cut off: handled below, as a clean end without the message's end is
        finally:
            if not reader.complete and reader.message is not None:
                usage = self._budget.charge(model, usage_of(reader.message))
        if reader.complete and reader.message is not None:
            await self._keep(reader.message, model)
            await _send(request, reader.release(), more=False)
            return
        what = str((reader.error or {}).get("message") or "the connection closed before the reply was complete")
        self.trouble = ModelUnreachable(f"The reply of the model service was cut short ({clip(printable(what), 200)}).")
        if usage is not None:
            text = "a reply of the model was cut short; the CLI asks again"
            await self._record.write(Draft(EntryKind.RETRY, text, meta={"usage": usage._asdict()}))
        if reader.error is not None and started:
            await _send(request, b"", more=False)
        else:
            await _hang_up(request)

    async def _pass_json(self, request: Request, answer: httpx2.Response, model: str, counting: bool) -> None:
        data = await answer.aread()
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not (counting or isinstance(message.get("content"), list)):
            self.trouble = ModelUnreachable(
                "The reply of the model service was cut short or is not JSON; check what stands between."
            )
            await _refuse(request, 502, "api_error", str(self.trouble))
            return
        if not counting:
            await self._keep(message, model)
        await Response(data, answer.status_code, _back(answer))(request.scope, request.receive, request._send)

    async def _keep(self, message: dict[str, Any], model: str) -> None:
        """The reply is charged and durable before the CLI has it whole."""
        self.trouble = None
        usage = self._budget.charge(model, usage_of(message))
        self._budget.turns += 1
        await self._record.reply(message, usage)
        reach("claude_code.replied")

    async def _pass_error(self, request: Request, answer: httpx2.Response) -> None:
        data = bytearray()
        async for chunk in answer.aiter_bytes():
            data += chunk[: _MOST_ERROR - len(data)]
        self.trouble = meaning_of(answer.status_code, said_in(bytes(data)), self._settings, self._base_url)
        headers = _back(answer)
        if "retry-after" in answer.headers:
            with suppress(ValueError):
                headers["retry-after"] = f"{min(max(0.0, float(answer.headers['retry-after'])), MAX_RETRY_AFTER_S):g}"
        status = 502 if answer.is_redirect else answer.status_code
        await Response(bytes(data), status, headers)(request.scope, request.receive, request._send)


async def _body(request: Request) -> bytes | None:
    """The body; None if it is too large."""
    parts = bytearray()
    async for chunk in request.stream():
        parts += chunk
        if len(parts) > MAX_REQUEST:
            return None
    return bytes(parts)


def _back(answer: httpx2.Response) -> dict[str, str]:
    return {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}


async def _begin(request: Request, answer: httpx2.Response) -> None:
    headers = [(name.encode(), value.encode()) for name, value in _back(answer).items()]
    await request._send({"type": "http.response.start", "status": answer.status_code, "headers": headers})


async def _send(request: Request, data: bytes, *, more: bool = True) -> None:
    await request._send({"type": "http.response.body", "body": data, "more_body": more})


async def _refuse(request: Request, status: int, kind: str, message: str) -> None:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    await Response(data, status, media_type="application/json")(request.scope, request.receive, request._send)


async def _hang_up(request: Request) -> None:
    """Drop the connection, as the service's was."""
    transport = request.scope.get("state", {}).get(TRANSPORT_KEY)
    if isinstance(transport, asyncio.Transport):
        transport.abort()
        while (await request.receive())["type"] != "http.disconnect":
            pass
