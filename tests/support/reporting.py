"""A task row of the double that was claimed, its ticket, and the session of a worker that a test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from operator_core import clock
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.journal import Journal
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.notify.outbox import Slip, slips
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.intake.claims import claim_task
from operator_dataverse.intake.desk import Desk, open_desk
from operator_dataverse.intake.state import SOURCE, LinkState
from operator_dataverse.reporting import Reporter
from operator_dataverse.settings import DataverseSettings

__all__ = ["BOX", "FOLDER", "PERSON", "Scene", "desk_of", "open_scene"]

PERSON = "alice.o'hara@example.com"
BOX = "box-1"
FOLDER = "/srv/sessions/task_1/attempt-1"


@dataclass
class Scene:
    """See the module.

    Attributes:
        said: What was printed for a person.
    """

    double: Double
    desk: Desk
    reporter: Reporter
    said: list[str]
    row_id: str = ""
    ticket: int = 0
    session: str = ""
    worker: str = ""
    claim: Claim | None = None
    journal: Journal | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The task row as it is now."""
        return self.double.tables["cr_shraga_tasks"][self.row_id]

    @property
    def messages(self) -> list[str]:
        """What was said about the task, oldest first."""
        rows = self.double.tables["cr_shragamessages"].where(crb3b_taskid=self.row_id)
        return [str(row["cr_content"]) for row in rows]

    def wrote(self, column: str) -> list[Any]:
        """Every value that a column of the row was given."""
        return self.double.history.values("cr_shraga_tasks", self.row_id, column)

    async def state(self) -> LinkState:
        """The state of the link."""
        link = await self.desk.links.get(SOURCE, self.row_id)
        assert link is not None
        return LinkState.model_validate(link.state)

    async def task(self, name: str = "Mend it", **values: Any) -> str:
        """A row that the intake claims; it becomes the scene's."""
        columns = {"cr_prompt": "Please mend it.", "crb3b_useremail": PERSON, "crb3b_devbox": BOX, **values}
        self.row_id = self.double.seed("cr_shraga_tasks", cr_name=name, cr_status=1, **columns)
        row = await self.desk.row(self.row_id)
        assert row is not None
        assert await claim_task(self.desk, row)
        link = await self.desk.links.get(SOURCE, self.row_id)
        assert link is not None
        assert link.ticket_id is not None
        self.ticket = link.ticket_id
        return self.row_id

    async def begin(self) -> Journal:
        """A worker claims the ticket, and its session begins or goes on."""
        queue, audit = WorkQueue(self.desk.database), AuditLogDB(self.desk.database)
        self.worker = clock.new_id()
        await queue.register(self.worker, 600, self.desk.settings.worker.name)
        (self.claim,) = await queue.claim(self.worker, 1, self.desk.settings.worker.name)
        assert self.claim.ticket_id == self.ticket
        self.session = self.claim.ticket.session_id or await audit.create_session(self.ticket, claim=self.claim)
        self.journal = await audit.journal(self.session, self.claim)
        return self.journal

    async def prepare(self, description: str = "Mend the shop", folder: str = FOLDER) -> None:
        """The entries of the phase `prepare`."""
        await self.write(
            Draft(EntryKind.TASK, "read", body={"task_description": description, "success_criteria": "it works"}),
            Draft(EntryKind.BASELINE, "before", body={"seen": [], "commit": None, "folder": folder, "brief": {}}),
            Draft(EntryKind.PHASE_START, "engine x", body={"engine": "x", "model": "m"}, phase="worker_1"),
        )

    async def write(self, *drafts: Draft) -> None:
        """Journal entries."""
        assert self.journal is not None
        await self.journal.append(*drafts)

    async def say(self, *texts: str) -> None:
        """The worker thinks aloud."""
        await self.write(*(Draft(EntryKind.REASONING, text[:50], text, phase="worker_1") for text in texts))

    async def end(
        self, status: TicketStatus = TicketStatus.RESOLVED, text: str = "It is mended.", reason: Reason | None = None
    ) -> TicketStatus:
        """The session ends."""
        assert self.claim is not None
        ended = {TicketStatus.RESOLVED: "completed", TicketStatus.CANCELED: "canceled"}.get(status, "escalated")
        chosen = {TicketStatus.RESOLVED: Reason.VERIFIED, TicketStatus.CANCELED: Reason.BY_HAND}
        await self.write(Draft(EntryKind.SESSION_END, ended, meta={"status": ended}, phase="deliver"))
        return await WorkQueue(self.desk.database).finish(
            self.claim,
            status,
            reason or chosen.get(status, Reason.GAVE_UP),
            diagnosis=text,
            session_id=self.session,
            session_status=ended,
        )

    async def ask(self, question: str) -> None:
        """The session asks a person, and rests."""
        assert self.claim is not None
        blocked = Draft(
            EntryKind.OUTCOME, f"blocked: {question[:50]}", question, meta={"outcome": "blocked"}, phase="worker_1"
        )
        await self.write(blocked)
        assert self.journal is not None
        _, wake = await self.journal.drain()
        assert await WorkQueue(self.desk.database).park(self.claim, wake)

    async def answer(self, text: str) -> None:
        """Somebody answers here."""
        await TicketDB(self.desk.database).reply(self.ticket, text)

    async def report(self, timeout_s: float = 20.0) -> int:
        """Tell everything, and carry it out; how many letters are left."""
        return await self.reporter.drain(timeout_s)

    async def problems(self) -> list[Slip]:
        """Letters that wait or were given up."""
        return await slips(self.desk.database)


async def desk_of(database: Database, dataverse: Dataverse, mine: DataverseSettings, said: list[str]) -> Desk:
    """Both sides, as the source opens them."""
    settings = Settings().extended("dataverse", mine)
    return await open_desk(settings, mine, database, dataverse, said.append)


@asynccontextmanager
async def open_scene(double: Double, store_url: str, **values: Any) -> AsyncIterator[Scene]:
    """A scene without a task; ``values`` are settings of ``[dataverse]``."""
    said: list[str] = []
    chosen = {"message_s": 0.0, "messages_per_minute": 60_000, "retry_s": 5.0, "onedrive": False, **values}
    mine = DataverseSettings(url=double.url, user=PERSON, box=BOX, **chosen)
    async with (
        Database.open(store_url) as database,
        Dataverse(double.url, StaticToken(double.token), retry_s=mine.retry_s) as dataverse,
    ):
        desk = await desk_of(database, dataverse, mine, said)
        yield Scene(double, desk, Reporter(desk, urls=_url, lease_s=2.0), said)


def _url(path: Any) -> str | None:
    text = str(path)
    return f"https://files.example.com{text}" if text.startswith("/srv/sessions") else None
