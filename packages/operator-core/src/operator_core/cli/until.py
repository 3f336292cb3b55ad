"""How long a process works: until a signal, or until one of its parts fails."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

__all__ = ["until_one_ends", "until_signal"]


def until_signal() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set; a second SIGINT ends the process the hard way."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def first() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    loop.add_signal_handler(signal.SIGINT, first)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    return stop


async def until_one_ends(stop: asyncio.Event, works: Sequence[Any]) -> None:
    """Wait for all of them; when one fails, ``stop`` is set and the others end in good order."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        # In good order: sessions finish their command, and what is claimed is given back.
        stop.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
