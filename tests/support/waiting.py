"""Waiting for conditions with a deadline, and free ports."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["free_port", "wait_until", "wait_until_async"]

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 10.0, *, every: float = 0.01, what: str = "") -> T:
    """Call ``predicate`` until it returns something true, and return that.

    Args:
        predicate: The condition; an exception from it ends the wait.
        timeout: Seconds until the test fails (default 10).
        every: Seconds between two looks (default 0.01).
        what: What is awaited, for the message.

    Raises:
        AssertionError: The condition was not met in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        if value := predicate():
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not met within {timeout} s: {what or predicate}; the last look gave {value!r}")
        time.sleep(every)


async def wait_until_async(
    predicate: Callable[[], T | Awaitable[T]], timeout: float = 10.0, *, every: float = 0.01, what: str = ""
) -> T:
    """As :func:`wait_until`, without blocking the event loop; ``predicate`` may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        value = await answer if isinstance(answer, Awaitable) else answer
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not met within {timeout} s: {what or predicate}; the last look gave {value!r}")
        await asyncio.sleep(every)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
