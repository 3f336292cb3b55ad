"""A server for tests: in this process without a network, or a real one on a free port of this machine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from fastapi import FastAPI

from operator_core.config import LoadedSettings, Settings, StoreSettings, WebSettings
from operator_core.db.engine import Database
from operator_core.db.tokens import Tokens
from operator_core.http_server import listen
from operator_core.model.person import Role
from operator_core.web.app import create_app
from operator_core.web.serve import serve
from operator_core.web.site import Site, make_site

__all__ = ["BASE", "Served", "WebSite", "make_tokens", "open_web", "served", "web_settings"]

BASE = "http://127.0.0.1:8642"
"""What the server in this process believes to be called."""


@dataclass
class WebSite:
    """A server in this process.

    Attributes:
        tokens: The text of one token of each role.
    """

    site: Site
    app: FastAPI
    tokens: dict[Role, str]
    _clients: list[httpx2.AsyncClient] = field(default_factory=list)

    @property
    def database(self) -> Database:
        """Its store."""
        return self.site.database

    def client(self, role: Role | None = None, *, token: str | None = None) -> httpx2.AsyncClient:
        """A program with a token of that role, or with that token; without both: nobody."""
        text = token if token is not None else self.tokens[role] if role else None
        headers = {"Authorization": f"Bearer {text}"} if text else {}
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url=BASE, headers=headers)
        self._clients.append(client)
        return client

    async def browser(self, role: Role) -> httpx2.AsyncClient:
        """A browser that is signed in; it sends what browsers send with a form, but no CSRF token by itself."""
        client = self.client()
        client.headers.update({"Accept": "text/html", "Origin": BASE, "Sec-Fetch-Site": "same-origin"})
        answer = await client.post("/login", data={"token": self.tokens[role]})
        assert answer.status_code == 303, answer.text
        return client

    async def csrf(self, client: httpx2.AsyncClient) -> str:
        """What the forms of that browser must carry."""
        cookie = client.cookies.get("operator_login")
        login = await self.site.logins.find(cookie or "")
        assert login is not None, "the browser is not signed in"
        return login.csrf

    async def close(self) -> None:
        """Close the clients and the site."""
        for client in self._clients:
            await client.aclose()
        await self.site.close()


def web_settings(store: str | os.PathLike[str], settings: Settings | None = None) -> Settings:
    """These settings (default: all defaults) with that store and a free port."""
    base = settings or Settings()
    web = base.web if settings else WebSettings(port=0)
    return base.model_copy(update={"store": StoreSettings(url=os.fspath(store)), "web": web})


async def make_tokens(database: Database) -> dict[Role, str]:
    """One token of each role."""
    tokens = Tokens(database)
    return {role: (await tokens.create(f"test {role.value}", role, by="test")).text for role in Role}


@asynccontextmanager
async def open_web(
    store: str | os.PathLike[str], settings: Settings | None = None, *, loaded: LoadedSettings | None = None
) -> AsyncIterator[WebSite]:
    """A server in this process over that store, which is made if it is not there."""
    settings = web_settings(store, settings)
    async with Database.open(settings.store.url) as database:
        site = make_site(settings, database, loaded=loaded or LoadedSettings(settings, {}, None))
        web = WebSite(site, create_app(site), await make_tokens(database))
        try:
            yield web
        finally:
            await web.close()


class Served:
    """A real server, in a thread of this process.

    Attributes:
        url: Its address, without a slash at the end.
        tokens: The text of one token of each role.
        lines: What it said.
    """

    def __init__(self, settings: Settings, tokens: dict[Role, str] | None, port: int) -> None:
        self.url = ""
        self.tokens = tokens or {}
        self.lines: list[str] = []
        self.site: Site | None = None
        self._settings = settings
        self._port = port
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="served", daemon=True)

    def start(self) -> None:
        """Return when it listens."""
        self._thread.start()
        assert self._ready.wait(30), "the server did not start"
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """End it in good order."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server did not end"
        if self._failed is not None:
            raise self._failed

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.url.rpartition(":")[2])

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failed = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with Database.open(self._settings.store.url) as database:
            if not self.tokens:
                self.tokens = await make_tokens(database)
            self.site = make_site(self._settings, database, loaded=LoadedSettings(self._settings, {}, None))
            listener = listen("127.0.0.1", self._port)
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            # It listens already: who connects now is answered as soon as the server runs.
            self._loop.call_soon(self._ready.set)
            await serve(self.site, self._stop, self.lines.append, listener=listener)


@contextmanager
def served(
    store: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    tokens: dict[Role, str] | None = None,
    port: int = 0,
) -> Iterator[Served]:
    """A real server on that store, which is made if it is not there.

    Args:
        tokens: Those of an earlier server on this store; default: new ones.
        port: As the one of an earlier server, say; 0: any free one.
    """
    server = Served(web_settings(Path(store) if "://" not in str(store) else store, settings), tokens, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()
