"""The server: one address, its connections, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable

from operator_core.http_server import HEAD_S, HttpServer, address_of, listen
from operator_core.web.app import ROUTERS, create_app
from operator_core.web.rehearsal import rehearse
from operator_core.web.site import Site

__all__ = ["serve"]

_CONNECTIONS = 2000
_FILES_PER_CONNECTION = 1
_FILES_BESIDE = 256
_REHEARSAL_S = 10.0


async def serve(
    site: Site,
    stop: asyncio.Event,
    say: Callable[[str], None],
    *,
    listener: socket.socket | None = None,
    head_s: float = HEAD_S,
) -> None:
    """Answer requests until ``stop`` is set; then live streams end at once, and requests within five seconds.

    Requests are answered from the beginning on; the address is told when what the first ones would have to wait for is
    done, or after ten seconds.

    Args:
        say: Is told the address.
        listener: A socket that listens already; default: one for the settings. It is closed in any case.
        head_s: See :class:`HttpServer`.

    Raises:
        ConfigError: The address cannot be used.
    """
    web = site.settings.web
    listener = listener or listen(web.host, web.port)
    try:
        site.address = address_of(listener)
        _allow_connections()
        app = create_app(site)
        server = HttpServer(app, stop, connections=_CONNECTIONS, head_s=head_s)
        pages = [route for router in ROUTERS for route in router.routes]
        beside = [
            asyncio.create_task(_end_streams(site, stop)),
            asyncio.create_task(rehearse(site, pages, lambda: bool(server.server_state.tasks))),
        ]
        answering = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.wait({answering, beside[1]}, timeout=_REHEARSAL_S, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set() and not answering.done():
                say(f"Console and API at {site.url}")
            await answering
        finally:
            answering.cancel()
            for task in beside:
                task.cancel()
            await asyncio.gather(answering, *beside, return_exceptions=True)
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
