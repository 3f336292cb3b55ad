"""uvicorn as all servers of ours run it: signals are its caller's, and its end waits for nobody for long."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from operator_core.errors import ConfigError

__all__ = ["GRACE_S", "HEAD_S", "TRANSPORT_KEY", "HttpServer", "address_of", "listen"]

TRANSPORT_KEY = "operator_transport"
"""Where a request's state has its connection, so that an app can drop it."""
HEAD_S = 15.0
"""A connection that does not send the head of a request within so many seconds is dropped."""
GRACE_S = 5.0
"""Requests that are being answered at the end may go on for so many seconds."""

_BACKLOG = 512
_TICK_S = 1.0


def listen(host: str, port: int, *, choose: str = "--port or `[web] port`") -> socket.socket:
    """A socket that listens there.

    Args:
        port: 0: any free one.
        choose: How a person names another one.

    Raises:
        ConfigError: The address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigError(f"The address {host!r} is not known here; set `[web] host` to one of this machine.") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} of {host} is in use; end what uses it, or choose another with {choose}."
            ) from None
        raise ConfigError(
            f"Port {port} of {host} cannot be used ({error.strerror}); choose others with `[web] host` and `port`."
        ) from None
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """The address of a listening socket as a URL."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """A server of one app, until it is told to stop.

    Args:
        app: It finds its connection in ``scope["state"]`` under :data:`TRANSPORT_KEY`.
        stop: Once it is set, no further connection is taken and requests end within :data:`GRACE_S`.
        connections: So many at a time; a further one is answered with 503. None: any number.
        keep_alive_s: A connection without a request is closed after so many seconds.
        head_s: As :data:`HEAD_S`; None: it may take as long as it likes.
    """

    def __init__(
        self,
        app: ASGIApp,
        stop: asyncio.Event,
        *,
        connections: int | None = None,
        keep_alive_s: int = 30,
        head_s: float | None = HEAD_S,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=type("_PatientConnection", (_Connection,), {"head_s": head_s}),
            ws="none",
            lifespan="off",
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=connections,
            timeout_keep_alive=keep_alive_s,
        )
        # As an argument it would also silence the access log of every other server in this process.
        config.access_log = False
        # What clients do wrong is answered and counted; it must not fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().__init__(config)
        self._stop = stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the caller."""
        yield

    async def main_loop(self) -> None:
        """As uvicorn's, but it ends at once when told to."""
        while not self._stop.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but it waits for nobody for longer than it should."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = set(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        await asyncio.sleep(0)
        for server in self.servers:
            await server.wait_closed()


class _Connection(H11Protocol):
    """HTTP/1.1 that does not wait for ever for the head of a request, and shows the app its transport."""

    head_s: float | None = HEAD_S
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, TRANSPORT_KEY: transport}
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # With something of a request that is not yet one; not from one piece to the next.
        if self._between() and not self.transport.is_closing():
            if self._waiting is None:
                self._expect_head()
        else:
            self._unset_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_waiting()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self.head_s is not None:
            self._waiting = self.loop.call_later(self.head_s, self._drop)

    def _unset_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _drop(self) -> None:
        self._waiting = None
        if self._between():
            self.transport.abort()

    def _between(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete
