"""What a command prints, shown to people while it runs: off the path of the command itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from operator_core import clock

__all__ = ["TAIL_BYTES", "LiveTail"]

TAIL_BYTES = 8192
_EVERY_S = 1.0
# A store that is slow must not spend its time on this: at most a twentieth of it.
_SHARE = 20

Show = Callable[[str, int], Awaitable[None]]
"""Shows the last text and how many bytes there were in all."""


class LiveTail:
    """Collects the end of a command's output, and shows it at most once a second from its first second on.

    A command that is done before then costs nothing. What goes wrong while it is shown is of no concern to the command.

    Args:
        show: Shows it.
        clear: Takes it away, when the command has ended and something was shown.
    """

    def __init__(self, show: Show, clear: Callable[[], Awaitable[None]], *, every_s: float = _EVERY_S) -> None:
        self._show, self._clear, self._every_s = show, clear, every_s
        self._tail = bytearray()
        self._total = 0
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, stream: str, data: memoryview) -> None:
        """Take the next (redacted) bytes of either stream."""
        self._total += len(data)
        self._tail += data[-TAIL_BYTES:]
        if len(self._tail) > 4 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    async def __aenter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._over.set()
        if self._task is not None:
            await self._task

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        shown, anything, pause = 0, False, 0.0
        while not self._over.is_set():
            if self._total > shown:
                shown, anything, before = self._total, True, clock.monotonic()
                with contextlib.suppress(Exception):  # whatever it is: the command goes on
                    await self._show(self._text(), shown)
                pause = _SHARE * (clock.monotonic() - before)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), max(self._every_s, pause))
        if anything:
            with contextlib.suppress(Exception):
                await self._clear()

    def _text(self) -> str:
        tail = bytes(self._tail[-TAIL_BYTES:])
        if self._total > len(tail):
            tail = _whole_characters(tail)
        return tail.decode("utf-8", "replace")


def _whole_characters(tail: bytes) -> bytes:
    """Without the rest of a character whose beginning was cut off."""
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return tail[start:]
