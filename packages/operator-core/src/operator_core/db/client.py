"""What the faces of the store have in common: they share an open one, or open and close one of their own."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from operator_core.db.engine import Database
from operator_core.errors import StoreError

__all__ = ["StoreClient"]


class StoreClient:
    """Something that works on a store.

    Args:
        where: An open :class:`Database`, or a path or URL that this object then opens and closes itself, as a context
            manager.
    """

    def __init__(self, where: Database | str | os.PathLike[str]) -> None:
        self._where = where
        self._stack = AsyncExitStack()
        self._database: Database | None = where if isinstance(where, Database) else None

    async def __aenter__(self) -> Self:
        if not isinstance(self._where, Database):
            self._database = await self._stack.enter_async_context(Database.open(self._where))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def database(self) -> Database:
        """The open store.

        Raises:
            StoreError: It is not open.
        """
        if self._database is None:
            name = type(self).__name__
            raise StoreError(f"This {name} is not open; use `async with {name}(...) as db`.")
        return self._database
