"""The product's interface on a store, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import event

from operator_core.api.local import LocalApi
from operator_core.config import Settings, StoreSettings
from operator_core.db.engine import Database
from operator_core.model.person import Actor, Role

__all__ = ["ANN", "open_api", "statements"]

ANN = Actor("ann", Role.OPERATOR, "api", "t1")


@asynccontextmanager
async def open_api(url: str, settings: Settings | None = None, *, actor: Actor = ANN) -> AsyncIterator[LocalApi]:
    """The interface on a store that is opened for it."""
    base = (settings or Settings()).model_copy(update={"store": StoreSettings(url=url)})
    async with Database.open(url) as database:
        yield LocalApi(database, base, actor)


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """What is asked of the store meanwhile: each statement with its parameters."""
    asked: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if not statement.startswith(("PRAGMA", "BEGIN")):
            asked.append((statement, parameters))

    engine = database._ro.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(engine, "before_cursor_execute", note)
