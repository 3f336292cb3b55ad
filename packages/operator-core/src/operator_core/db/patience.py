"""How long somebody waits for the store: a person does not for ever, work does.

A server of PostgreSQL that is frozen keeps its connections and says nothing, which no time limit of TCP notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["STORE_S", "patience", "waiting_at_most"]

STORE_S = 20.0
"""For so long a request waits for a PostgreSQL store that says nothing, in seconds; then it is answered with 503."""

_patience: ContextVar[float | None] = ContextVar("patience", default=None)


def patience() -> float | None:
    """Seconds that a visit to the store may take, in this task and those that it begins; None: as long as it takes."""
    return _patience.get()


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Let each visit to a PostgreSQL store in here end after so many seconds, with ``StoreUnavailable``.

    A transaction is one visit. One that was ended while it committed may be there or not, as when a connection breaks.
    """
    token = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(token)
