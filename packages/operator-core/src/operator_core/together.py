"""Several things at once that begin and end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["together"]


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that fails as its first task did, when the others have ended.

    ``asyncio.gather`` leaves the others running when one fails. Those who read the store would still hold a connection
    when it is closed, and nobody would ever close that one.

    Raises:
        Exception: What the first task to fail raised; not a group of it.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
