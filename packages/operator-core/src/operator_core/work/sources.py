"""Systems that tickets come from and results go back to, brought by other packages.

An entry point of the group ``operator_core.sources`` names a function ``(settings, database, say)`` that returns an
:class:`Attached`, or None when its system is not configured. What it needs of the product is: to open tickets (with a
link to its own row, so that none is opened twice), to follow them, and to put effects into the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import entry_points
from typing import NamedTuple, Protocol

from operator_core.agent_lab.gateway import Say
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.errors import OperatorError

__all__ = ["Attach", "Attached", "WorkSource", "attach_sources", "look_everywhere", "work_beside"]


class WorkSource(Protocol):
    """One system that tickets come from."""

    async def start(self) -> None:
        """Before the worker's first look: take up what an earlier process left, and look once.

        Raises:
            OperatorError: It is not usable as it is configured; the worker does not start.
        """
        ...

    async def look(self) -> bool:
        """Look for work now; a worker that would end because nothing is left asks for it.

        Returns:
            Whether tickets came of it.
        """
        ...

    async def trouble(self, error: OperatorError) -> None:
        """The worker has to end because of this; tell those whom it concerns."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Keep both sides in agreement until ``stop`` is set; then bring away what is still to be said, for a while.

        Trouble with the other system is said and waited out; it never ends the worker. One that returns before that
        asks the worker to leave in good order, e.g. because a new version is in place.
        """
        ...


class Attached(NamedTuple):
    """A source, and the settings that the worker beside it is to use."""

    settings: Settings
    source: WorkSource


Attach = Callable[[Settings, Database, Say], Attached | None]


def attach_sources(settings: Settings, database: Database, say: Say) -> tuple[Settings, list[WorkSource]]:
    """Every configured source of the installed packages, and the settings as they want them."""
    sources: list[WorkSource] = []
    for point in sorted(entry_points(group="operator_core.sources"), key=lambda point: point.name):
        attach: Attach = point.load()
        attached = attach(settings, database, say)
        if attached is not None:
            settings, source = attached
            sources.append(source)
    return settings, sources


async def look_everywhere(sources: Sequence[WorkSource]) -> bool:
    """Let every source look for work now; whether tickets came of it."""
    return any([await source.look() for source in sources])


async def work_beside(sources: Sequence[WorkSource], stop: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    """Run the sources as long as ``work`` runs, and then let them bring away what is still to be said.

    Args:
        stop: Set when a source ends, so that the work ends too.

    Raises:
        OperatorError: A source, or the work, could not go on.
    """
    await _start(sources, stop)
    over = asyncio.Event()
    beside = [asyncio.create_task(source.run(over), name=f"source-{type(source).__name__}") for source in sources]
    working = asyncio.ensure_future(work())
    try:
        left = {working, *beside}
        while not working.done():
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if len(left - {working}) < len(beside):
                stop.set()
                break
        await working
    except OperatorError as error:
        for source in sources:
            await source.trouble(error)
        raise
    finally:
        if not working.done():  # this call itself was cancelled
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        over.set()
        ends = await asyncio.gather(*beside, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def _start(sources: Sequence[WorkSource], stop: asyncio.Event) -> None:
    """Start one after the other; whoever wants to leave meanwhile need not wait for a system that does not answer."""

    async def starts() -> None:
        for source in sources:
            await source.start()

    starting, stopped = asyncio.ensure_future(starts()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not starting.done():
            starting.cancel()
        await asyncio.gather(stopped, starting, return_exceptions=True)
    if not starting.cancelled():
        await starting
