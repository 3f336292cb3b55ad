"""What every command knows: the global options, the settings and the store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from operator_core.errors import ConfigError

if TYPE_CHECKING:
    from operator_core.api.protocol import Api
    from operator_core.client import Client
    from operator_core.config import LoadedSettings, Settings
    from operator_core.db.engine import Database

__all__ = ["AsJson", "Invocation", "invocation", "open_api", "open_server", "open_store", "run"]

T = TypeVar("T")

_TOKEN_BYTES = 4096

AsJson = Annotated[bool, typer.Option("--json", "-j", help="Print one JSON document.")]


@dataclass
class Invocation:
    """The global options.

    Attributes:
        db: ``--db``, a path or a URL.
        config: ``--config``.
        server: ``--server``; None: the command works on the store itself.
        token_file: ``--token-file``.
    """

    db: str | None = None
    config: Path | None = None
    server: str | None = None
    token_file: Path | None = None

    def load(self) -> LoadedSettings:
        """The settings and where they come from."""
        from operator_core.config import load_settings

        return load_settings(self.config, db=self.db)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.load().settings

    def token(self) -> str:
        """The token for the server.

        Raises:
            ConfigError: There is none, or its file cannot be read.
        """
        if self.token_file is None:
            return os.environ.get("OPERATOR_TOKEN", "")
        path = self.token_file.expanduser()
        try:
            with path.open("rb") as file:
                found = file.read(_TOKEN_BYTES).decode("ascii").strip()
        except OSError as error:
            raise ConfigError(f"The token file {path} cannot be read ({error.strerror}); check --token-file.") from None
        except UnicodeDecodeError:
            found = ""
        if not found:
            raise ConfigError(f"The file {path} holds no token; check --token-file.")
        return found


def invocation(context: typer.Context) -> Invocation:
    """The global options of this call."""
    found = context.find_object(Invocation)
    return found if found is not None else Invocation()


@asynccontextmanager
async def open_store(context: typer.Context, *, create: bool = False) -> AsyncIterator[Database]:
    """The store of the configuration.

    Args:
        create: Make one if there is none; commands that only read do not.
    """
    from operator_core.db.engine import Database

    if invocation(context).server is not None:
        raise ConfigError(f"`{context.command_path}` works on the store itself; leave --server out, or use --db.")
    settings = invocation(context).settings
    async with Database.open(settings.store.url, create=create) as database:
        if settings.credential:
            from operator_core.work.boxes import learn_credentials

            learn_credentials(database.redactor, settings)
        yield database


@asynccontextmanager
async def open_server(context: typer.Context) -> AsyncIterator[Client]:
    """The server that ``--server`` names."""
    from operator_core.client import Client

    call = invocation(context)
    async with Client(call.server or "", call.token()) as client:
        yield client


@asynccontextmanager
async def open_api(context: typer.Context, *, create: bool = False) -> AsyncIterator[Api]:
    """The product, on the server that ``--server`` names, or on the store of the configuration.

    Args:
        create: As of :func:`open_store`.
    """
    if invocation(context).server is not None:
        async with open_server(context) as client:
            yield client
        return
    from operator_core.api.local import LocalApi
    from operator_core.model.person import Actor, Role

    loaded = invocation(context).load()
    async with open_store(context, create=create) as database:
        yield LocalApi(database, loaded.settings, Actor("person", Role.ADMIN, "cli"), loaded=loaded)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end."""
    return asyncio.run(work)
