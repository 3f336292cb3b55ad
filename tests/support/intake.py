"""One dev box at the double: its store, its rounds, and what a worker on it does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from operator_core.config import Settings, StoreSettings, WorkerSettings
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.links import Links
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.ticket import Reason, Ticket, TicketStatus
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.intake.desk import Desk, open_desk
from operator_dataverse.intake.rounds import Rounds
from operator_dataverse.intake.state import SOURCE, LinkState
from operator_dataverse.settings import DataverseSettings

__all__ = ["ALICE", "MESSAGES", "TASKS", "Site", "here", "site"]

TASKS, MESSAGES = "cr_shraga_tasks", "cr_shragamessages"
ALICE = "alice@example.com"


class Site:
    """One dev box: its store, its rounds, and what a worker on it does."""

    def __init__(self, desk: Desk, server: Double, said: list[str]) -> None:
        self.desk, self.server, self.said = desk, server, said
        self.rounds = Rounds(desk)
        self.worker = ""

    async def look(self) -> int:
        return await self.rounds.look()

    def seed(self, **values: Any) -> str:
        given: dict[str, Any] = {"cr_name": "Try", "cr_prompt": "Say hello.", "cr_status": 1, "crb3b_useremail": ALICE}
        return self.server.seed(TASKS, **(given | values))

    def row(self, row_id: str) -> dict[str, Any]:
        return self.server.tables[TASKS][row_id]

    def codes(self, row_id: str) -> list[Any]:
        return self.server.history.values(TASKS, row_id, "cr_status")

    async def state(self, row_id: str) -> LinkState:
        link = await Links(self.desk.database).get(SOURCE, row_id)
        assert link is not None
        return LinkState.model_validate(link.state)

    async def ticket(self, row_id: str) -> Ticket:
        link = await Links(self.desk.database).get(SOURCE, row_id)
        assert link is not None
        assert link.ticket_id is not None
        return await TicketDB(self.desk.database).get_ticket(link.ticket_id)

    async def begin(self) -> list[Claim]:
        """As a worker: claim what can be claimed."""
        queue, name = WorkQueue(self.desk.database), self.desk.settings.worker.name
        if not self.worker:
            self.worker = "w1"
            await queue.register("w1", 3600, name)
        return await queue.claim("w1", 10, name)

    async def end(self, claim: Claim, status: TicketStatus = TicketStatus.RESOLVED) -> None:
        reason = Reason.VERIFIED if status is TicketStatus.RESOLVED else Reason.GAVE_UP
        await WorkQueue(self.desk.database).finish(
            claim, status, reason, diagnosis="d", session_id=None, session_status="completed"
        )

    async def ask(self, row_id: str, claim: Claim) -> None:
        """As a worker and its reporter: the session rests, and the row says so."""
        assert await WorkQueue(self.desk.database).park(claim, claim.wake)
        self.server.change(TASKS, row_id, cr_status=6)

    async def report(self, row_id: str, code: int) -> None:
        """As the reporter: the row says how it ended, and nothing is left to be said."""
        self.server.change(TASKS, row_id, cr_status=code)
        await self.desk.remember(row_id, settled=True, status=code)

    def answer(self, row_id: str, text: str, **values: Any) -> str:
        given = {"cr_name": text[:50], "cr_content": text, "cr_from": ALICE, "cr_to": self.desk.box}
        return self.server.seed(MESSAGES, **(given | {"crb3b_taskid": row_id} | values))


@asynccontextmanager
async def site(
    server: Double,
    store: str,
    *,
    box: str = "box-1",
    slots: int = 1,
    token: str | None = None,
    trusted: Sequence[str] = (),
    **mine: Any,
) -> AsyncIterator[Site]:
    said: list[str] = []
    settings = Settings(store=StoreSettings(url=store), worker=WorkerSettings(name=box, concurrency=slots))
    given = {"url": server.url, "user": ALICE, "box": box, "retry_s": 20, "poll_s": 0.2} | mine
    own = DataverseSettings.model_validate(given)
    async with (
        Database.open(store) as database,
        Dataverse(server.url, StaticToken(token or server.token), retry_s=own.retry_s, trusted=trusted) as client,
    ):
        yield Site(await open_desk(settings, own, database, client, said.append), server, said)


@pytest.fixture
async def here(double: Double, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(double, str(tmp_path / "a.db")) as found:
        yield found
