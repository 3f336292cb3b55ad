"""Over streamable HTTP, on this machine only: every request carries a token, and has the rights of its role."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from operator_core import clock
from operator_core.api.local import LocalApi
from operator_core.client import Client
from operator_core.db.patience import STORE_S, waiting_at_most
from operator_core.db.tokens import Tokens
from operator_core.errors import ConfigError, OperatorError, StoreError
from operator_core.http_server import HttpServer
from operator_core.mcp.server import Access, make_server
from operator_core.model.person import Actor, Role
from operator_core.text import printable

__all__ = ["PATH", "Gate", "ServerGate", "StoreGate", "http_app", "serve_http"]

PATH = "/mcp"

_KEY = "operator_access"
_BODY_S = 30.0
_CONNECTIONS = 100
_CLIENTS = 16
_AGAIN_S = 30.0
_LONGEST_TOKEN = 4096


class Gate(Protocol):
    """Knows who has a token."""

    async def access(self, token: str) -> Access | None:
        """Who has it; None: nobody.

        Raises:
            OperatorError: It cannot be said now.
        """
        ...


class StoreGate:
    """Tokens of the store here.

    Args:
        api: The product on that store.
    """

    def __init__(self, api: LocalApi) -> None:
        self._api = api
        self._tokens = Tokens(api.database)

    async def access(self, token: str) -> Access | None:
        """As :meth:`Gate.access`."""
        info = await self._tokens.check(token)
        if info is None:
            return None
        with contextlib.suppress(StoreError):  # a busy store must not refuse who may read
            await self._tokens.used(info.id)
        return Access(self._api.as_(Actor(info.name, info.role, "mcp", info.id)), info.role)


class ServerGate:
    """Tokens of a server elsewhere, which is asked about each of them, and again with every call.

    Args:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._known: OrderedDict[str, tuple[Client, float, Role]] = OrderedDict()
        self._one_by_one = asyncio.Lock()

    async def access(self, token: str) -> Access | None:
        """As :meth:`Gate.access`."""
        name = hashlib.sha256(token.encode()).hexdigest()
        async with self._one_by_one:
            client, asked, role = self._known.get(name, (None, float("-inf"), Role.VIEWER))
            if client is None:
                try:
                    client = Client(self._url, token)
                except ConfigError:
                    return None
                await client.__aenter__()
            if clock.monotonic() - asked > _AGAIN_S:
                try:
                    role = await client.role()
                except ConfigError:
                    self._known.pop(name, None)
                    await client.__aexit__(None, None, None)
                    return None
                asked = clock.monotonic()
            self._known[name] = client, asked, role
            self._known.move_to_end(name)
            if len(self._known) > _CLIENTS:
                _, (oldest, _, _) = self._known.popitem(last=False)
                await oldest.__aexit__(None, None, None)
        return Access(client, role)

    async def close(self) -> None:
        """End the connections."""
        known, self._known = self._known, OrderedDict()
        for client, _, _ in known.values():
            await client.__aexit__(None, None, None)


@asynccontextmanager
async def http_app(
    gate: Gate, port: int, *, write: bool, most: int, store_s: float = STORE_S
) -> AsyncIterator[ASGIApp]:
    """The app that answers at :data:`PATH`, as long as the context is open.

    Args:
        port: Where it listens, for the check of names.
        write: Whether there are tools that change something.
        most: Bytes of the longest request.
        store_s: See :data:`~operator_core.db.patience.STORE_S`.
    """
    hosts = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")]
    security = TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts])
    server = make_server(lambda request: cast(Access, request.scope["state"][_KEY]), write=write)
    # Without sessions: there is nothing that one bearer could take over from another.
    manager = StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, security_settings=security, max_request_body_size=most
    )
    async with manager.run():
        yield _Entrance(manager.asgi_app, gate, frozenset(hosts), store_s)


async def serve_http(
    gate: Gate, listener: socket.socket, stop: asyncio.Event, say: Callable[[str], None], *, write: bool, most: int
) -> None:
    """Answer until ``stop`` is set.

    Args:
        listener: A socket of this machine that listens; it is closed in any case.
        say: Is told the address.
        write: Whether there are tools that change something.
        most: Bytes of the longest request.
    """
    port = listener.getsockname()[1]
    try:
        async with http_app(gate, port, write=write, most=most) as app:
            server = HttpServer(app, stop, connections=_CONNECTIONS)
            say(f"MCP at http://127.0.0.1:{port}{PATH}")
            await server.serve(sockets=[listener])
    finally:
        listener.close()


class _Entrance:
    """Looks at the address, the name and the token before anything of the body is read."""

    def __init__(self, app: ASGIApp, gate: Gate, hosts: frozenset[str], store_s: float) -> None:
        self._app, self._gate, self._hosts, self._store_s = app, gate, hosts, store_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if headers.get("host") not in self._hosts:
            await _refuse(send, 421, "This server answers to no such name; use the address that it printed.")
        elif origin is not None and origin.removeprefix("http://") not in self._hosts:
            await _refuse(send, 403, "Pages of other sites may not ask this server.")
        elif scope["path"] != PATH:
            await _refuse(send, 404, f"There is only {PATH} here.")
        else:
            with waiting_at_most(self._store_s):
                await self._enter(scope, headers, receive, send)

    async def _enter(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        kind, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        access: Access | None = None
        if kind.lower() == "bearer" and 0 < len(token) <= _LONGEST_TOKEN and token.isascii():
            try:
                access = await self._gate.access(token)
            except OperatorError as error:
                await _refuse(send, 503, printable(str(error)))
                return
        if access is None:
            await _refuse(send, 401, "A valid token is needed: Authorization: Bearer TOKEN (`operator token create`).")
            return
        scope["state"] = {**scope.get("state", {}), _KEY: access}
        await self._app(scope, _in_time(receive), send)


def _in_time(receive: Receive) -> Receive:
    """A body that has to come in time; after it, a client may wait as long as it likes."""
    until = clock.monotonic() + _BODY_S
    whole = False

    async def patient() -> Any:
        nonlocal whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout(max(0.0, until - clock.monotonic())):
                message = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        whole = not message.get("more_body", False)
        return message

    return patient


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
