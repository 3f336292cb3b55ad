"""What the first requests would have to wait for, done before there are any."""

from __future__ import annotations

import asyncio
import logging

from operator_core.db import ledger
from operator_core.web import assets
from operator_core.web.site import Site
from operator_core.web.templates import environment

__all__ = ["rehearse"]

_logger = logging.getLogger(__name__)


async def rehearse(site: Site) -> None:
    """Compile the pages and read once what they read, so that statements are compiled and connections open.

    What fails here fails again, and is told, where somebody asks for it.
    """
    await asyncio.to_thread(_prepare)
    try:
        await _read(site)
    except Exception:
        _logger.debug("The first reads failed", exc_info=True)


def _prepare() -> None:
    """Compile all templates, and read and pack all assets."""
    assets.static_url("app.css")
    jinja = environment()
    for name in jinja.list_templates():
        jinja.get_template(name)


async def _read(site: Site) -> None:
    api = site.api
    await asyncio.gather(api.board(), api.workers(), api.invariants(samples=1), api.approvals())
    await ledger.recent_rows(site.database, before=2**31 - 1, limit=1)
    await asyncio.gather(api.tickets(order="attention"), api.tickets(search="a", limit=1), api.sessions())
    for ticket in (await api.tickets(limit=1)).items:
        await api.ticket(ticket.id)
    for session in (await api.sessions(limit=1)).items:
        await asyncio.gather(api.session(session.session_id), api.ticks(session.session_id, limit=1))
        await api.entries(session.session_id, limit=1)
