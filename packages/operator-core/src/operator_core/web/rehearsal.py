"""What the first requests would have to wait for, done before somebody comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from fastapi import FastAPI
from starlette.routing import BaseRoute

from operator_core.model.person import Actor, Role
from operator_core.together import together
from operator_core.web import assets
from operator_core.web.site import Site
from operator_core.web.templates import environment

__all__ = ["rehearse"]

_logger = logging.getLogger(__name__)
_TURN_S = 0.02
_TURNS = 50
_NOBODY = Actor("rehearsal", Role.VIEWER, "api")


async def rehearse(site: Site, routes: Iterable[BaseRoute], busy: Callable[[], bool] = bool) -> None:
    """Compile all templates, and answer the console's pages once to nobody.

    So statements are compiled and connections are open. What fails here fails again, and is told, where somebody asks
    for it.

    Args:
        routes: Those of the pages, without the doors before them: nothing leaves this process.
        busy: Whether somebody is being answered, who goes first; default: nobody is.
    """
    stage = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    stage.state.site = site
    stage.router.routes.extend(routes)
    await asyncio.to_thread(_prepare)
    try:
        async with together() as group:
            group.create_task(site.tokens.check(f"op_{'0' * 64}"))
            group.create_task(site.logins.find("nobody"))
        async for path, query in _first_pages(site):
            await _let_go_first(busy)
            await _visit(stage, path, query)
    except Exception:
        _logger.debug("The rehearsal failed", exc_info=True)


async def _let_go_first(busy: Callable[[], bool]) -> None:
    """Wait for those who are being answered, but for no stream that has no end."""
    for _ in range(_TURNS):
        if not busy():
            return
        await asyncio.sleep(_TURN_S)


def _prepare() -> None:
    """Compile all templates, and read and pack all assets."""
    assets.static_url("app.css")
    jinja = environment()
    for name in jinja.list_templates():
        jinja.get_template(name)


async def _first_pages(site: Site) -> AsyncIterator[tuple[str, str]]:
    """Paths with their queries, those first that people come for first; costs are kept ready by themselves."""
    for page in (("/", ""), ("/badges", ""), ("/monitor", ""), ("/fleet", ""), ("/approvals", "")):
        yield page
    api = site.api
    for ticket in (await api.tickets(limit=1)).items:
        yield f"/tickets/{ticket.id}", ""
        yield f"/tickets/{ticket.id}/evidence", ""
    for session in (await api.sessions(limit=1)).items:
        own, middle = f"/sessions/{session.session_id}", (await api.session(session.session_id)).entries // 2
        yield own, ""
        yield f"{own}/rows", f"after={middle}"
        yield f"{own}/side", ""
        yield f"{own}/replay", ""
        yield f"{own}/replay/ticks", ""
        yield f"{own}/entries/{middle}", ""
    for page in (("/", "order=newest"), ("/", "q=rehearsal+of+words"), ("/", "view=resolved"), ("/monitor", "hours=6")):
        yield page
    for page in (("/audit", ""), ("/submit", ""), ("/settings", "")):
        yield page


async def _visit(stage: FastAPI, path: str, query: str) -> None:
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": None,
        "root_path": "",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "state": {"actor": _NOBODY, "csrf": None},
    }
    await stage(scope, _receive, _send)


async def _receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send(message: Any) -> None:
    """To nobody."""
