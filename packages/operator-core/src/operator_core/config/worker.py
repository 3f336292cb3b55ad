"""Workers, and the store that they share."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pydantic import Field

from operator_core.config.section import Section

__all__ = ["StoreSettings", "WorkerSettings"]


class StoreSettings(Section):
    """Where the tickets and the journal live."""

    url: str = "~/.operator/operator.db"
    """Path of an SQLite file, or ``postgresql://user@host/name`` (``?sslmode=require`` for an encrypted way there)."""


def _sessions_at_once() -> int:
    """Four for each core, as long as there are 256 MiB of memory for each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(4 * (os.cpu_count() or 1), memory >> 28))


class WorkerSettings(Section):
    """How a worker claims and works."""

    name: str = Field(default_factory=socket.gethostname, min_length=1)
    """What a ticket is pinned to (`operator submit --on NAME`); default: the name of the host."""
    concurrency: int = Field(default_factory=_sessions_at_once, ge=1, le=1000)
    """Sessions at once in one process; default: four for each core, at most one for each 256 MiB of memory."""
    lease_s: float = Field(default=30.0, gt=0)
    """Without a heartbeat for so long a worker is dead and another one takes over its sessions."""
    poll_s: float = Field(default=1.0, gt=0)
    """Fallback when no notification arrives."""
    state_dir: Path | None = None
    """Folder of session files. None: ``<database>.d`` beside an SQLite file, else ``~/.operator/state``."""
    lost_after: int = Field(default=3, ge=1)
    """Recoveries without any progress after which a ticket is escalated as ``lost_worker``."""
