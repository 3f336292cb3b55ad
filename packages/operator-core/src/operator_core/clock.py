"""The only source of time and of identifiers.

Wall-clock times are UTC-aware; durations come from the monotonic clock. Code that waits takes a :class:`Clock`, so that
a test can run an hour in a second.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime

__all__ = ["Clock", "iso", "monotonic", "new_id", "new_session_id", "now", "parse_iso"]


class Clock:
    """Real time, optionally sped up.

    Args:
        rate: How many seconds of this clock pass in one real second (default 1.0). A fake clock is a large rate.
    """

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = rate
        self._wall = time.time()
        self._mono = time.monotonic()

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""
        return self._mono + (time.monotonic() - self._mono) * self.rate

    def now(self) -> datetime:
        """The UTC-aware time of day."""
        if self.rate == 1.0:
            return datetime.now(UTC)
        return datetime.fromtimestamp(self._wall + self.monotonic() - self._mono, UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait for that many seconds of this clock."""
        await asyncio.sleep(max(0.0, seconds) / self.rate)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until the event is set, at most that many seconds of this clock; True if it is set."""
        try:
            await asyncio.wait_for(event.wait(), max(0.0, seconds) / self.rate)
        except TimeoutError:
            return event.is_set()
        return True


_REAL = Clock()


def now() -> datetime:
    """The UTC-aware time of day."""
    return _REAL.now()


def monotonic() -> float:
    """Seconds on a clock that never jumps; only differences mean anything."""
    return _REAL.monotonic()


def iso(moment: datetime | None = None) -> str:
    """ISO 8601 with microseconds and ``+00:00``, e.g. ``2026-01-28T10:30:45.123456+00:00`` (default: now)."""
    return (moment or now()).astimezone(UTC).isoformat(timespec="microseconds")


def parse_iso(text: str) -> datetime:
    """The UTC-aware moment that :func:`iso` wrote; a time without a zone is read as UTC."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def new_id() -> str:
    """A random identifier: 32 hexadecimal digits."""
    return uuid.uuid4().hex


def new_session_id(moment: datetime | None = None) -> str:
    """``{timestamp}-{uuid8}``, e.g. ``2026-01-28T10-30-45-abc12345`` (rows A-023, A-024); the time is UTC."""
    return f"{(moment or now()).astimezone(UTC):%Y-%m-%dT%H-%M-%S}-{str(uuid.uuid4())[:8]}"
