"""What every request can reach: the settings, the store, who asks, and the product on that person's behalf."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast
from urllib.parse import urlsplit

from fastapi import Request

from operator_core import clock
from operator_core.api.local import LocalApi
from operator_core.config import LoadedSettings, Settings
from operator_core.db.engine import Database
from operator_core.db.logins import Logins
from operator_core.db.tokens import TokenInfo, Tokens
from operator_core.errors import StoreError
from operator_core.model.person import Actor, Role
from operator_core.web.live import Feeds
from operator_core.web.parts import Parts

__all__ = ["Site", "actor_of", "api_of", "make_site", "site_of"]


_USED_STEP_S = 60.0


def _nothing(line: str) -> None:
    """Says it to nobody."""


@dataclass
class Site:
    """One server, in one process.

    Attributes:
        api: The product on behalf of the system; requests use :func:`api_of`.
        feeds: The live streams.
        loaded: Also where each setting comes from, if that is known.
        courier_lives: Whether notifications are still carried out; None: this process does not carry them.
        say: Where lines for the person who runs the server go; secrets are taken out before.
        address: Where it listens, once it does, e.g. ``http://127.0.0.1:8642``.
    """

    settings: Settings
    database: Database
    api: LocalApi
    feeds: Feeds
    loaded: LoadedSettings | None = None
    courier_lives: Callable[[], bool] | None = None
    say: Callable[[str], None] = field(default=_nothing)
    address: str | None = None
    _asides: dict[str, asyncio.Task[None]] = field(default_factory=dict, repr=False)

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens of the store."""
        return Tokens(self.database)

    @cached_property
    def logins(self) -> Logins:
        """The logins of the store."""
        return Logins(self.database)

    @cached_property
    def parts(self) -> Parts:
        """Parts of pages that many look at."""
        return Parts(self.database)

    @property
    def url(self) -> str:
        """How people reach it, without a slash at the end."""
        web = self.settings.web
        return (web.public_url or self.address or f"http://{web.host}:{web.port}").rstrip("/")

    @property
    def secure(self) -> bool:
        """Whether people reach it over TLS."""
        return urlsplit(self.url).scheme == "https"

    def note_use(self, token: TokenInfo) -> None:
        """Note beside the request that a token was used; when the store is busy the request does not wait."""
        used = token.last_used_at
        if (used is None or abs((clock.now() - used).total_seconds()) >= _USED_STEP_S) and token.id not in self._asides:
            self._asides[token.id] = asyncio.create_task(self._used(token.id))

    async def close(self) -> None:
        """End the live streams, and what is still done beside requests."""
        await self.feeds.close()
        await asyncio.gather(*self._asides.values())

    async def _used(self, token_id: str) -> None:
        with suppress(StoreError):
            await self.tokens.used(token_id)
        del self._asides[token_id]


def make_site(
    settings: Settings,
    database: Database,
    *,
    loaded: LoadedSettings | None = None,
    say: Callable[[str], None] = _nothing,
) -> Site:
    """A server's site on an open store; close it at the end."""
    api = LocalApi(database, settings, Actor("server", Role.ADMIN, "api"), loaded=loaded)
    feeds = Feeds(database, api, max_each=settings.web.streams_per_token)
    return Site(settings, database, api, feeds, loaded=loaded, say=say)


def site_of(request: Request) -> Site:
    """The server that got this request."""
    return cast(Site, request.app.state.site)


def actor_of(request: Request) -> Actor:
    """Who asks; only for routes that are not public."""
    return cast(Actor, request.state.actor)


def api_of(request: Request) -> LocalApi:
    """The product, on behalf of who asks."""
    return site_of(request).api.as_(actor_of(request))
