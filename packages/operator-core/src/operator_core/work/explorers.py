"""Explorers and their workspaces: what is explored, which session is meant, whether anybody runs it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from operator_core.config import LimitSettings, Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.explorers import ExplorerInfo, Explorers, Wanted
from operator_core.errors import ConfigError
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.sandbox.policy import Network
from operator_core.work.entries import newest
from operator_core.work.state import StateFolder

__all__ = [
    "PHASE",
    "Exploration",
    "end_if_dead",
    "exploration_of",
    "held",
    "is_alive",
    "is_held",
    "start_of",
    "unfinished_in",
]

PHASE = "explorer"


class Exploration(NamedTuple):
    """What is to be explored, and how.

    Attributes:
        workspace: The agent's folder; it has a ``SYSTEM_PROMPT.md``.
        limits: Of the session; ``wall_clock_s`` counts working time and begins again when it is resumed.
        model: None: the configured one.
        network: Of its commands.
        allow_hosts: For ``allowlist``.
    """

    workspace: Path
    limits: LimitSettings
    model: str | None = None
    network: Network = "none"
    allow_hosts: tuple[str, ...] = ()


def start_of(entries: list[Entry]) -> dict[str, Any] | None:
    """What an explorer began with, from its journal; None if it did not come so far."""
    found = newest(entries, EntryKind.SESSION_START)
    return dict(found.body) if found is not None else None


async def unfinished_in(database: Database, workspace: Path) -> ExplorerInfo | None:
    """The explorer in this workspace that is not over."""
    audit = AuditLogDB(database)
    for info in await Explorers(database).list(running=True, limit=1000):
        start = start_of(await audit.entries(info.session_id, kinds=[EntryKind.SESSION_START]))
        if start is not None and start["workspace"] == str(workspace):
            return info
    return None


async def exploration_of(
    database: Database, asked: Exploration, session: str | None, *, anywhere: bool
) -> tuple[str, Exploration]:
    """The session to resume, and what it explores.

    Args:
        asked: What the person said; of it count the limits and, without ``session``, the workspace.
        session: Its id, if the person said one.
        anywhere: Whether the only session that is not over is meant if there is none in the workspace.

    Raises:
        ConfigError: There is nothing to resume, or it cannot be told which.
    """
    explorers, audit = Explorers(database), AuditLogDB(database)
    info = await explorers.find(session) if session else await unfinished_in(database, asked.workspace)
    if info is None and anywhere:
        left = await explorers.list(running=True, limit=2)
        info = left[0] if len(left) == 1 else None
    if info is None:
        raise ConfigError(
            f"There is no session to go on with in {asked.workspace}; list them with `operator explore status`."
        )
    if info.status != "running":
        raise ConfigError(f"The session {info.session_id} is {info.status}; begin a new one with `operator explore`.")
    start = start_of(await audit.entries(info.session_id, kinds=[EntryKind.SESSION_START]))
    if info.wanted is Wanted.PAUSED:
        await explorers.want(info.session_id, Wanted.RUNNING)
    if start is None:  # it died before it began
        return info.session_id, asked
    known = {"network": start["network"], "allow_hosts": tuple(start["allow_hosts"]), "model": start["model"]}
    return info.session_id, asked._replace(workspace=Path(start["workspace"]), **known)


async def is_alive(database: Database, info: ExplorerInfo) -> bool:
    """Whether a process of this machine runs it."""
    start = start_of(await AuditLogDB(database).entries(info.session_id, kinds=[EntryKind.SESSION_START]))
    return start is not None and is_held(Path(start["workspace"]))


async def end_if_dead(settings: Settings, database: Database, info: ExplorerInfo) -> bool:
    """End an explorer that was told to stop and that no process of this machine runs.

    Returns:
        False if a process runs it, or may run it on another machine: that one then ends it.
    """
    audit = AuditLogDB(database)
    start = start_of(await audit.entries(info.session_id, kinds=[EntryKind.SESSION_START]))
    if start is not None and not Path(start["workspace"]).is_dir():
        return False
    try:
        with held(Path(start["workspace"])) if start is not None else contextlib.nullcontext():
            if (await Explorers(database).find(info.session_id)).status != "running":
                return True  # it has ended meanwhile
            journal = await audit.journal(info.session_id)
            why = "stopped by a person"
            await journal.append(Draft(EntryKind.SESSION_END, why, why, phase=PHASE, meta={"ok": True}))
            await audit.complete_session(info.session_id, "completed", why)
            await asyncio.to_thread(StateFolder(settings, database).drop, info.session_id)
    except ConfigError:
        return False
    return True


def is_held(workspace: Path) -> bool:
    """Whether a process of this machine explores there."""
    try:
        with held(workspace):
            return False
    except ConfigError:
        return workspace.is_dir()


@contextmanager
def held(workspace: Path) -> Iterator[None]:
    """Be the only explorer in a workspace, as long as this process lives.

    The lock is the kernel's, on the folder itself: there is no file that the agent could remove, and none that a dead
    process leaves.

    Raises:
        ConfigError: There is no such folder, or another process is there.
    """
    try:
        fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"The workspace {workspace} cannot be opened ({error.strerror}); make it first.") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"Another process explores {workspace} already; look with `operator explore status`, or choose another "
                "workspace."
            ) from None
        yield
    finally:
        os.close(fd)
