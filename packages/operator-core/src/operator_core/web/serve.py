"""The server: one address, its connections, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from operator_core.errors import ConfigError
from operator_core.web.app import create_app
from operator_core.web.guard import TRANSPORT_KEY
from operator_core.web.rehearsal import rehearse
from operator_core.web.site import Site

__all__ = ["HEAD_S", "address_of", "listen", "serve"]

HEAD_S = 15.0
"""A connection that does not send the head of a request within so many seconds is dropped."""

_CONNECTIONS = 2000
_FILES_PER_CONNECTION = 1
_FILES_BESIDE = 256
_BACKLOG = 512
_GRACE_S = 5.0
_TICK_S = 1.0


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Args:
        port: 0: any free one.

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
                f"Port {port} of {host} is in use; end what uses it, or choose another with --port or `[web] port`."
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


async def serve(
    site: Site,
    stop: asyncio.Event,
    say: Callable[[str], None],
    *,
    listener: socket.socket | None = None,
    head_s: float = HEAD_S,
) -> None:
    """Answer requests until ``stop`` is set; then live streams end at once, and requests within five seconds.

    Args:
        say: Is told the address.
        listener: A socket that listens already; default: one for the settings. It is closed in any case.
        head_s: See :data:`HEAD_S`.

    Raises:
        ConfigError: The address cannot be used.
    """
    web = site.settings.web
    listener = listener or listen(web.host, web.port)
    try:
        site.address = address_of(listener)
        _allow_connections()
        server = _Server(create_app(site), stop, head_s)
        await rehearse(site)
        say(f"Console and API at {site.url}")
        ending = asyncio.create_task(_end_streams(site, stop))
        try:
            await server.serve(sockets=[listener])
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            await site.close()
    finally:
        listener.close()


async def _end_streams(site: Site, stop: asyncio.Event) -> None:
    await stop.wait()
    await site.feeds.close()


def _allow_connections() -> None:
    """As many open files as that needs, if this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS * _FILES_PER_CONNECTION + _FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


class _Server(uvicorn.Server):
    """uvicorn that leaves signals to its caller, ends when told to, and waits for nobody for longer than it should."""

    def __init__(self, app: ASGIApp, stop: asyncio.Event, head_s: float) -> None:
        config = uvicorn.Config(
            app,
            http=type("_PatientConnection", (_Connection,), {"head_s": head_s}),
            ws="none",
            lifespan="off",
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=30,
        )
        config.access_log = False
        # What clients do wrong is answered and counted; it must not fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().__init__(config)
        self._stop = stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not self._stop.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = set(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_GRACE_S)
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

    head_s = HEAD_S
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
