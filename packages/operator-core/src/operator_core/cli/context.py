"""What every command knows: the global options, the settings and the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from operator_core.config import LoadedSettings, Settings
    from operator_core.db.engine import Database

__all__ = ["AsJson", "Invocation", "invocation", "open_store", "run"]

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", "-j", help="Print one JSON document.")]


@dataclass
class Invocation:
    """The global options.

    Attributes:
        db: ``--db``, a path or a URL.
        config: ``--config``.
    """

    db: str | None = None
    config: Path | None = None

    def load(self) -> LoadedSettings:
        """The settings and where they come from."""
        from operator_core.config import load_settings

        return load_settings(self.config, db=self.db)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.load().settings


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

    settings = invocation(context).settings
    async with Database.open(settings.store.url, create=create) as database:
        if settings.credential:
            from operator_core.work.boxes import learn_credentials

            learn_credentials(database.redactor, settings)
        yield database


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end."""
    return asyncio.run(work)
