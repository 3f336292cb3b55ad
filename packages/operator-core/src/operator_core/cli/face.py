"""What a process shows and tells: the console and the API, letters to people, and the sums of what was spent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from operator_core import clock
from operator_core.announce.announcer import Announcer
from operator_core.announce.delivery import base_url_of
from operator_core.api.costs import expect_costs
from operator_core.cli.staging import to_its_end
from operator_core.cli.until import until_one_ends, until_signal
from operator_core.config import LoadedSettings, Settings, WebSettings
from operator_core.db.engine import Database
from operator_core.db.tokens import Tokens
from operator_core.db.usage import UsageTotals
from operator_core.errors import ConfigError, StoreError
from operator_core.http_server import address_of, listen
from operator_core.intake.reception import closed_doors
from operator_core.web.serve import serve
from operator_core.web.site import Site, make_site

__all__ = ["Beside", "Face", "console_beside", "listen_if_possible"]

_COUNT_S = 2.0


def listen_if_possible(web: WebSettings, *, say: Callable[[str], None]) -> socket.socket | None:
    """A socket for the console beside work that does not depend on it; None, which is said: the address is taken."""
    try:
        return listen(web.host, web.port)
    except ConfigError as error:
        say(f"[Web] {error} The work goes on without the console.")
        return None


class Face:
    """The face of a process over an open store.

    Args:
        loaded: The settings and where they come from.
        say: Prints one line for a person. The token of a first start goes there.

    Attributes:
        first_token: That token; None: there was one before.
    """

    def __init__(self, loaded: LoadedSettings, database: Database, *, say: Callable[[str], None]) -> None:
        self._loaded = loaded
        self._database = database
        self._say = say
        self.first_token: str | None = None
        self._announces = True
        self._shows = False

    async def run(self, stop: asyncio.Event, listener: socket.socket | None) -> None:
        """Show and tell until ``stop`` is set; when one part fails, the others end too.

        Args:
            listener: A socket that listens; None: letters and sums alone.

        Raises:
            OperatorError: Why it could not go on.
        """
        settings = self._loaded.settings
        works: list[Coroutine[Any, Any, None]] = [self._count(stop)]
        site = make_site(settings, self._database, loaded=self._loaded, say=self._say)
        if listener is not None:
            self._shows = True
            site.courier_lives = lambda: self._announces
            works.append(self._serve(site, stop, listener))
        here = None if listener is None or settings.web.public_url else address_of(listener)
        announcer = Announcer(settings, self._database, base_url=here or base_url_of(settings), say=self._say)
        works.append(self._announce(announcer, stop))
        await until_one_ends(stop, works)

    async def _serve(self, site: Site, stop: asyncio.Event, listener: socket.socket) -> None:
        first = await Tokens(self._database).first()
        if first is not None:
            self._say("There was no token, so this one for an administrator was made; it is shown only now:")
            self._say(first.text)
            self.first_token = first.text
        for sentence in closed_doors(self._loaded.settings):
            self._say(f"[Intake] {sentence}")
        await serve(site, stop, self._say, listener=listener)

    async def _count(self, stop: asyncio.Event) -> None:
        time, totals, complaint = clock.Clock(), UsageTotals(self._database), ""
        while not stop.is_set():
            try:
                await totals.catch_up()
                if self._shows:
                    await expect_costs(self._database)
                complaint = ""
            except StoreError:
                pass  # a store that is away for a while says so where something is asked of it
            except Exception as error:
                said = self._words(error)
                if said != complaint:
                    complaint = said
                    self._say(f"[Costs] What was spent cannot be added up ({said}); the pages show what was, before.")
            await time.wait(stop, _COUNT_S)

    async def _announce(self, announcer: Announcer, stop: asyncio.Event) -> None:
        self._announces = True
        try:
            await announcer.run(stop)
        except Exception as error:
            # What is shown and done does not depend on it; `/readyz` says that it failed.
            self._say(f"[Notify] Nobody is told anything any more ({self._words(error)}); start this process again.")
        finally:
            self._announces = stop.is_set()

    def _words(self, error: Exception) -> str:
        return self._database.redactor.text(" ".join(f"{type(error).__name__}: {error}".split()))[:300]


class Beside(NamedTuple):
    """A console that is served beside something else.

    Attributes:
        url: Where it is.
        token: The token that this start made; None: the store had one before.
        until_told: Waits for SIGINT or SIGTERM, or until the console fails.
    """

    url: str
    token: Callable[[], str | None]
    until_told: Callable[[], Awaitable[None]]


@asynccontextmanager
async def console_beside(settings: Settings, database: Database, say: Callable[[str], None]) -> AsyncIterator[Beside]:
    """The console beside something else, at any free port when the one of the settings is taken."""
    try:
        listener = listen(settings.web.host, settings.web.port)
    except ConfigError:
        listener = listen(settings.web.host, 0)
    stop = asyncio.Event()
    # What its pages say of the store is what it is, whatever the configuration says.
    here = settings.model_copy(update={"store": settings.store.model_copy(update={"url": database.name})})
    face = Face(LoadedSettings(here, {"store.url": "this command"}, None), database, say=say)
    running = asyncio.ensure_future(face.run(stop, listener))

    async def until_told() -> None:
        told = asyncio.ensure_future(until_signal().wait())
        await asyncio.wait({told, running}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()

    try:
        yield Beside(settings.web.public_url or address_of(listener), lambda: face.first_token, until_told)
    finally:
        stop.set()
        await to_its_end(running)
