"""One background job of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from operator_core.sandbox.protocol import JobStatus
from operator_core.sandbox.runner import RawResult, exit_status
from operator_core.sandbox.sink import LogSink

__all__ = ["BackgroundJob"]


class BackgroundJob:
    """See :class:`~operator_core.sandbox.protocol.Job`.

    Args:
        identity: Its id in the session.
        name: What people call it.
        sink: Its log.
        live: Runs it to its end; the future it is given asks it to stop.
    """

    def __init__(
        self, identity: str, name: str, sink: LogSink, live: Callable[[asyncio.Future[None]], Awaitable[RawResult]]
    ) -> None:
        self.id, self.name, self.log = identity, name, sink.path
        self._sink = sink
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._raw: RawResult | None = None

        async def run() -> None:
            self._raw = await live(self._stop)

        self._task = asyncio.create_task(run(), name=identity)

    def status(self) -> JobStatus:
        raw = self._raw
        if raw is not None:
            return JobStatus(False, exit_status(raw.returncode)[0], raw.reason, self._sink.total)
        running = not self._task.done()
        return JobStatus(running, None, None if running else "cancelled", self._sink.total)

    def output(self, offset: int = 0, limit: int = 16384) -> bytes:
        with open(self.log, "rb") as file:
            file.seek(max(0, offset))
            return file.read(max(0, limit))

    async def wait(self, timeout: float | None = None) -> JobStatus:
        await asyncio.wait({self._task}, timeout=timeout)
        if self._task.done() and not self._task.cancelled():
            self._task.result()
        return self.status()

    def stop(self) -> None:
        """Ask it to end, and do not wait."""
        if not self._stop.done():
            self._stop.set_result(None)

    async def kill(self) -> JobStatus:
        self.stop()
        return await self.wait()
