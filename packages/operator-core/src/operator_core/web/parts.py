"""Parts of pages that many people look at: made once for all who ask while nothing has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sqlalchemy import select

from operator_core import clock
from operator_core.db.engine import Database
from operator_core.db.schema import ledger_head

__all__ = ["Parts"]

_HEAD = select(ledger_head.c.seq)
_MOST = 64
_KEPT_S = 2.0


class Parts:
    """Parts by their address. One is of use until the ledger grows, and for two seconds at most.

    What has no row in the ledger (the newest command of an agent) may so be two seconds late; what has is never.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._made: dict[tuple[str, int, int], asyncio.Task[str]] = {}

    async def get(self, address: str, make: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """The part at that address, which must be the same for everybody.

        Args:
            make: Makes it; not called when somebody else has just done so, or is about to.
        """
        head = (await self._database.fetch(_HEAD))[0][0]
        key = (address, int(head), int(clock.monotonic() / _KEPT_S))
        task = self._made.get(key)
        if task is None:
            while len(self._made) >= _MOST:
                del self._made[next(iter(self._made))]
            task = self._made[key] = self._database.beside(make())
            task.add_done_callback(lambda done: self._forget_failed(key, done))
        # Who goes away does not take it from the others.
        return await asyncio.shield(task)

    def _forget_failed(self, key: tuple[str, int, int], task: asyncio.Task[str]) -> None:
        if (task.cancelled() or task.exception() is not None) and self._made.get(key) is task:
            del self._made[key]
