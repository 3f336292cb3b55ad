"""Waiting for work without asking for it all the time.

Within one process an event tells at once. Between processes PostgreSQL notifies; SQLite has nothing of that kind, so a
counter in shared memory is looked at ten times a second, which costs no query.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from operator_core import clock
from operator_core.db.engine import NOTIFY_CHANNEL, Database

if TYPE_CHECKING:
    import asyncpg

__all__ = ["Wakeup"]

_POLL_S = 0.1
_RECONNECT_S = (0.1, 5.0)
_CONNECT_S = 10.0


class Wakeup:
    """Tells a worker when looking for work may be worth it; a false alarm costs one look.

    There is one for each :class:`Database`. A wake-up is never lost: what happens between two waits ends the next one
    at once. It is only ever a hint, so a worker also looks when the time is over::

        async with Wakeup(database) as wakeup:
            while await work():
                await wakeup.wait(settings.worker.poll_s)
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._file: sqlite3.Connection | None = None
        self._version = 0
        self._listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self.database.sqlite:
            self._changed()
        else:
            self._listener = asyncio.create_task(self._listen(), name="operator-wakeup")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None
        if self._file is not None:
            self._file.close()
            self._file = None

    async def wait(self, timeout_s: float) -> bool:
        """Wait until work may be ready, at most ``timeout_s`` seconds; True if something was heard."""
        deadline = clock.monotonic() + timeout_s
        while True:
            left = deadline - clock.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.database.ready.wait(), max(0.0, min(left, self._step())))
            changed = self.database.sqlite and self._changed()
            if changed or self.database.ready.is_set():
                self.database.ready.clear()
                return True
            if left <= 0:
                return False

    def _step(self) -> float:
        return _POLL_S if self.database.sqlite else float("inf")

    def _changed(self) -> bool:
        """Whether any other connection, of this process or another, has written since the last look.

        The number means something only on one and the same connection, and the look takes microseconds: so it has a
        connection of its own, without a thread.
        """
        try:
            if self._file is None:
                path = Path(self.database.url.database or "").absolute()
                self._file = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None)
            version = int(self._file.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return False  # the time-out remains, and whoever then looks for work says what is wrong
        changed, self._version = version != self._version, version
        return changed

    async def _listen(self) -> None:
        pause = _RECONNECT_S[0]
        while True:
            lost = asyncio.Event()
            try:
                connection = await self._connect(lost)
            except _connect_errors():
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RECONNECT_S[1])
                continue
            pause = _RECONNECT_S[0]
            # Something may have become ready while nobody listened.
            self.database.ready.set()
            try:
                await lost.wait()
            finally:
                connection.terminate()

    async def _connect(self, lost: asyncio.Event) -> asyncpg.Connection:
        import asyncpg

        address = self.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        settings = {"application_name": "operator-wakeup"}
        connection = await asyncpg.connect(address, timeout=_CONNECT_S, server_settings=settings)
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(NOTIFY_CHANNEL, self._heard)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _heard(self, *_: Any) -> None:
        self.database.ready.set()


def _connect_errors() -> tuple[type[Exception], ...]:
    import asyncpg

    return OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError
