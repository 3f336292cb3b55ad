"""Explorers in the store: sessions without a ticket, and what people want of them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Text, bindparam, select, update

from operator_core.db.client import StoreClient
from operator_core.db.schema import agent_sessions
from operator_core.errors import NotFound, TransitionRefused

__all__ = ["ExplorerInfo", "Explorers", "Wanted"]

_EXPLORERS = (
    select(
        agent_sessions.c.session_id,
        agent_sessions.c.status,
        agent_sessions.c.wanted,
        agent_sessions.c.started_at,
        agent_sessions.c.ended_at,
        agent_sessions.c.outcome_summary,
    )
    .where(agent_sessions.c.wanted.is_not(None))
    .order_by(agent_sessions.c.id.desc())
)
_ONE = _EXPLORERS.where(agent_sessions.c.session_id == bindparam("session", type_=Text))
_WANTED = select(agent_sessions.c.wanted).where(agent_sessions.c.session_id == bindparam("session", type_=Text))
_WANT = (
    update(agent_sessions)
    .where(
        agent_sessions.c.session_id == bindparam("session", type_=Text),
        agent_sessions.c.status == "running",
        agent_sessions.c.wanted.is_not(None),
        agent_sessions.c.wanted != "stopped",
    )
    .values(wanted=bindparam("new", type_=Text))
    .returning(agent_sessions.c.session_id)
)


class Wanted(StrEnum):
    """What people want of an explorer; ``stopped`` is for good."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class ExplorerInfo(NamedTuple):
    """One explorer as listed; times are ISO 8601 (UTC)."""

    session_id: str
    status: str
    wanted: Wanted
    started_at: str
    ended_at: str | None
    outcome_summary: str | None


class Explorers(StoreClient):
    """Explorers, and what people want of them.

    The process that runs an explorer looks here between two requests; a person may be anywhere.
    """

    async def find(self, session_id: str) -> ExplorerInfo:
        """One explorer.

        Raises:
            NotFound: There is none with that id.
        """
        rows = await self.database.fetch(_ONE, session=session_id)
        if not rows:
            raise NotFound(f"There is no explorer {session_id!r}; list them with `operator explore status`.")
        return _info(rows[0])

    async def list(self, *, running: bool = False, limit: int = 20) -> list[ExplorerInfo]:
        """The newest explorers.

        Args:
            running: Only those that have not ended.
        """
        statement = _EXPLORERS.limit(limit)
        if running:
            statement = statement.where(agent_sessions.c.status == "running")
        return [_info(row) for row in await self.database.fetch(statement)]

    async def wanted(self, session_id: str) -> Wanted:
        """What is wanted of one; ``stopped`` if it is not there any more."""
        rows = await self.database.fetch(_WANTED, session=session_id)
        return Wanted(rows[0].wanted) if rows and rows[0].wanted else Wanted.STOPPED

    async def want(self, session_id: str, wanted: Wanted) -> None:
        """Say what is wanted of one.

        Raises:
            NotFound: There is none with that id.
            TransitionRefused: It has ended, or somebody stopped it.
        """
        if await self.database.one(_WANT, session=session_id, new=wanted.value):
            return
        found = await self.find(session_id)
        if wanted is not Wanted.STOPPED or found.status != "running":
            said = f"is {found.status}" if found.status != "running" else "was told to stop"
            raise TransitionRefused(f"The explorer {session_id} {said}; begin a new one with `operator explore`.")


def _info(row: object) -> ExplorerInfo:
    values = row._mapping  # type: ignore[attr-defined]
    return ExplorerInfo(**{**values, "wanted": Wanted(values["wanted"])})
