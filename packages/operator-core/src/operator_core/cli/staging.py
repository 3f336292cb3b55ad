"""Running and ending what the demo starts: nothing is left behind, whoever ends it and when."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from operator_core.errors import OperatorError

__all__ = ["ended_by_sigterm", "first", "free_port", "in_thread", "to_its_end"]

T = TypeVar("T")


async def first(up: asyncio.Future[None], wanted: Awaitable[T]) -> T:
    """What is wanted; or, when monitor and worker end before, why they did."""
    waiting = asyncio.ensure_future(wanted)
    try:
        either: set[asyncio.Future[Any]] = {up, waiting}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        up.result()
        raise OperatorError("The monitor and the worker ended before the demo did; start it again.")
    finally:
        if not waiting.done() and not isinstance(wanted, asyncio.Future):
            waiting.cancel()


async def in_thread(call: Callable[[], T], undo: Callable[[T], None] = lambda result: None) -> T:
    """Call something that blocks; when this task is cancelled meanwhile, its end is awaited, and it is undone."""
    future = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        if not future.cancelled() and future.exception() is None:
            undo(future.result())
        raise


async def to_its_end(up: asyncio.Future[None]) -> None:
    """Wait, also while this task is being cancelled: what runs must end in good order."""
    canceled: asyncio.CancelledError | None = None
    while not up.done():
        try:
            await asyncio.wait({up})
        except asyncio.CancelledError as error:
            canceled = error
            up.cancel()
    if canceled is not None:
        raise canceled
    up.result()


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: in order, and with everything gone."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    terminated = False

    def end() -> None:
        nonlocal terminated
        terminated = True
        me.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if terminated:
            raise SystemExit(143) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
