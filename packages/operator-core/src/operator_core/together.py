"""Several things at once that begin and end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

__all__ = ["Group", "together"]

T = TypeVar("T")


class Group:
    """The tasks that were begun in one :func:`together`."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something; it has ended when the block has."""
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task


@asynccontextmanager
async def together() -> AsyncIterator[Group]:
    """A group of tasks that fails as its first task did, when the others have ended.

    ``asyncio.gather`` leaves the others running when one fails. Those who read the store would still hold a connection
    when it is closed, and nobody would ever close that one. A group of asyncio's own may fail where it is cancelled,
    and a loop that goes on after errors would never hear that it is to end.

    Raises:
        Exception: What the first task to fail raised; not a group of it.
    """
    group = Group()
    try:
        yield group
        if group.tasks:
            await asyncio.wait(group.tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in group.tasks:
            if task.done():
                task.result()
    finally:
        for task in group.tasks:
            task.cancel()
        await asyncio.gather(*group.tasks, return_exceptions=True)
