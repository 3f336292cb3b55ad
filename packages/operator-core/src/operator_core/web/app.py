"""The app: all routes behind their rules, and what surrounds them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, FastAPI

from operator_core import __version__
from operator_core.db.patience import STORE_S
from operator_core.web import assets
from operator_core.web.access import guarded_routes
from operator_core.web.guard import BODY_S, SEND_S, Guard
from operator_core.web.limits import LoginLimit
from operator_core.web.metrics import Metrics
from operator_core.web.openapi import describe_access
from operator_core.web.pages import (
    approval_link,
    approvals,
    board,
    costs,
    entry,
    fleet,
    login,
    monitor,
    replay,
    session,
    settings,
    submit,
    ticket,
)
from operator_core.web.pages import audit as audit_page
from operator_core.web.problems import add_handlers
from operator_core.web.routes import approvals as routes_approvals
from operator_core.web.routes import audit, health, intake, overview, sessions, tasks, tickets, tokens
from operator_core.web.site import Site

__all__ = ["OPENAPI_URL", "ROUTERS", "create_app"]

OPENAPI_URL = "/api/v1/openapi.json"

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    intake.router,
    tokens.router,
    overview.router,
    tickets.router,
    tasks.router,
    sessions.router,
    audit.router,
    login.router,
    assets.router,
    board.router,
    ticket.router,
    submit.router,
    approvals.router,
    approval_link.router,
    routes_approvals.router,
    settings.router,
    session.router,
    replay.router,
    entry.router,
    audit_page.router,
    monitor.router,
    fleet.router,
    costs.router,
)
"""Everything that can be asked for; who may is in ``web.access``."""


def create_app(site: Site, *, body_s: float = BODY_S, send_s: float = SEND_S, store_s: float = STORE_S) -> FastAPI:
    """The ASGI app of a server.

    Args:
        body_s: A request whose body takes longer is refused, in seconds.
        send_s: A connection that takes nothing for so long is dropped, in seconds.
        store_s: See :data:`~operator_core.db.patience.STORE_S`.

    Raises:
        LookupError: It is not said who may use a route: a mistake of ours.
    """
    app = FastAPI(
        title="Operator",
        summary="Tickets, sessions, proofs and the buttons.",
        version=__version__,
        openapi_url=OPENAPI_URL,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.site = site
    app.state.metrics = metrics = Metrics()
    app.state.login_limit = LoginLimit()
    app.state.health, app.state.health_lock = None, asyncio.Lock()
    # Not `include_router`: the routes themselves, so that each can be put behind its rule.
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    app.router.routes[:] = guarded_routes(app.router.routes)
    describe_access(app)
    add_handlers(app)
    app.add_middleware(Guard, site=site, metrics=metrics, body_s=body_s, send_s=send_s, store_s=store_s)
    return app
