"""What the sessions on an incident and on a task share: the journal, sandboxes, and how they end.

Each phase leaves its mark in the journal, and a phase whose mark is there is not repeated: that is all a resumed
session needs to know.
"""

from __future__ import annotations

import abc
import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from operator_core.agent_lab.engine import Engine
from operator_core.agent_lab.gateway import Say, ToolGateway
from operator_core.clock import Clock
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.journal import Journal
from operator_core.db.queue import WorkQueue
from operator_core.errors import VerificationError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind, canonical
from operator_core.model.invariant import Subject
from operator_core.model.outcome import OutcomeKind
from operator_core.model.ticket import Reason, Ticket, TicketStatus
from operator_core.model.verdict import VerdictKind
from operator_core.probes import Observation
from operator_core.sandbox import ExecResult, Policy, Sandbox
from operator_core.text import clip, printable
from operator_core.verify.report import ClosureReport
from operator_core.work.boxes import CHECKS, make_box
from operator_core.work.entries import newest, report_draft
from operator_core.work.state import StateFolder

__all__ = [
    "PREPARE",
    "REASON_OF_OUTCOME",
    "REASON_OF_VERDICT",
    "Conclusion",
    "LookWithChecker",
    "Run",
    "Session",
    "SessionBase",
    "SessionTools",
    "TaskResult",
    "frozen_in",
]

M = TypeVar("M", bound=BaseModel)

LookWithChecker = Callable[[Subject, str, datetime], Awaitable[Observation]]
"""Looks through a plug-in's checker: subject, violation key, start of the episode."""
Run = Callable[[str, float], Awaitable[ExecResult]]
"""Runs a command of the platform's own in a fresh sandbox: command, time limit in seconds."""

PREPARE = "prepare"

REASON_OF_VERDICT = {
    VerdictKind.VERIFIED: Reason.VERIFIED,
    VerdictKind.REFUTED: Reason.REFUTED,
    VerdictKind.INCONCLUSIVE: Reason.INCONCLUSIVE,
    VerdictKind.UNPROVEN: Reason.UNPROVEN,
}
REASON_OF_OUTCOME = {
    OutcomeKind.GAVE_UP: Reason.GAVE_UP,
    OutcomeKind.NO_OUTCOME: Reason.UNPROVEN,
    OutcomeKind.LIMIT: Reason.BUDGET,
    OutcomeKind.REFUSED: Reason.ERROR,
    OutcomeKind.ERROR: Reason.ERROR,
}


class SessionTools(NamedTuple):
    """What every session of a worker shares."""

    settings: Settings
    audit: AuditLogDB
    queue: WorkQueue
    engine: Engine
    state: StateFolder
    clock: Clock
    say: Say
    look_with_checker: LookWithChecker | None = None

    @classmethod
    def on(
        cls,
        database: Database,
        settings: Settings,
        engine: Engine,
        say: Say,
        *,
        clock: Clock | None = None,
        look_with_checker: LookWithChecker | None = None,
    ) -> SessionTools:
        """The tools of sessions whose journals are in this store."""
        audit, queue, state = AuditLogDB(database), WorkQueue(database), StateFolder(settings, database)
        return cls(settings, audit, queue, engine, state, clock or Clock(), say, look_with_checker)


class TaskResult(NamedTuple):
    """What a task's execution returns (row B-029).

    Attributes:
        ok: Whether it is verified.
        message: Its result, ``Task canceled by user``, ``Blocked: <reason>`` or what went wrong.
        transcript: All phases as JSON lines.
        stats: The content of ``session_summary.json``.
    """

    ok: bool
    message: str
    transcript: str
    stats: dict[str, Any]


class Conclusion(NamedTuple):
    """How a session ended or where it rests: the ticket's state now, why, and the closure report."""

    status: TicketStatus
    reason: Reason
    report: ClosureReport
    result: TaskResult | None = None


class SessionBase(abc.ABC):
    """A journal, its phases, and their sandboxes; with or without a ticket.

    Attributes:
        tools: What the worker provides.
        gateway: The tools of the phase that runs now, if it has any.
        stopping: Set when the worker leaves: the session rests at the next good moment.
        session_id: Empty before :meth:`open_journal`.
        entries: What was read of the journal.
        journal: Open after :meth:`open_journal`.
    """

    def __init__(self, tools: SessionTools) -> None:
        self.tools = tools
        self.gateway: ToolGateway | None = None
        self.stopping = asyncio.Event()
        self.session_id = ""
        self.entries: list[Entry] = []
        self.journal: Journal | None = None
        self._boxes = 0

    @property
    @abc.abstractmethod
    def generation(self) -> int:
        """Which process in turn works on the session; a later one has a larger number."""

    @abc.abstractmethod
    def policy(self, *readable: Path) -> Policy:
        """What the commands of this session may see and change."""

    @abc.abstractmethod
    async def open_journal(self) -> Journal:
        """The session's journal; opened, and the session created, by the first call."""

    async def refresh(self) -> list[Entry]:
        """Read what was written since the last look."""
        after = self.entries[-1].seq if self.entries else -1
        self.entries += await self.tools.audit.entries(self.session_id, after=after)
        return self.entries

    def find(self, kind: EntryKind, phase: str | None = None) -> Entry | None:
        """The newest entry of a kind, among those that were read."""
        return newest(self.entries, kind, phase)

    @property
    def calls(self) -> Path:
        """Folder of the call files; its commands may read it, because the markers in long output point there."""
        calls = self.tools.state.session(self.session_id) / "calls"
        calls.mkdir(exist_ok=True)
        return calls

    # ---- sandboxes

    def keep_apart(self, folders: Iterable[Path]) -> None:
        """Make sure that neither the store nor another session's files are in them."""
        self.tools.state.keep_from(folders)

    def box(self, policy: Policy, phase: str = CHECKS) -> Sandbox:
        """A new sandbox, not started, for an agent's phase or for the platform's own commands."""
        self._boxes += 1
        return make_box(
            self.tools.settings,
            policy,
            session_dir=self.tools.state.session(self.session_id) / f"box-{self.generation}-{self._boxes}",
            redactor=self.tools.audit.database.redactor,
            phase=phase,
            journal=self.open_journal,
        )

    @asynccontextmanager
    async def platform_box(self, policy: Policy | None = None) -> AsyncIterator[Run]:
        """A fresh sandbox for the platform's own commands; nothing of the agent lives in it."""
        box = self.box(policy or self.policy())
        started = False

        async def run(command: str, timeout: float) -> ExecResult:
            nonlocal started
            if not started:
                await box.start()
                started = True
            # Always in the workspace: a `cd` in one check must not decide where the next one looks.
            return await box.exec(command, timeout=timeout, cwd=".")

        try:
            yield run
        finally:
            await box.close()


class Session(SessionBase):
    """Runs, or goes on with, the session of one claim.

    Args:
        tools: What the worker provides.
        claim: The claim; its ticket's ``session_id`` is the session to resume, if there is one.

    Attributes:
        canceling: Set when a person canceled, and the session may choose the moment.
        mail: Whether a message may wait.
        ended: Whether its end is in the store; what it does then is to tidy up.
    """

    cancels_at_once = True
    """Whether a cancellation breaks into a phase, or waits for the next checkpoint."""

    def __init__(self, tools: SessionTools, claim: Claim) -> None:
        super().__init__(tools)
        self.claim = claim
        self.ticket: Ticket = claim.ticket
        self.canceling = asyncio.Event()
        self.mail = True
        self.ended = False

    @property
    def generation(self) -> int:
        return self.claim.fence

    @abc.abstractmethod
    async def run(self) -> Conclusion:
        """All phases, from wherever the journal says.

        Raises:
            Fenced: The ticket belongs to another worker now.
            StoreError: The journal cannot be written; another worker goes on later.
            ModelNotUsable: The model service refuses this worker's key or model; the ticket can be released.
            ModelUnreachable: It did not answer for ``retry_deadline_s``; likewise.
            SandboxUnavailable: No sandbox can be started here; the ticket is untouched and can be released.
            VerificationError: The ticket's check cannot be read.
        """

    @property
    def ends_in(self) -> str:
        """The phase of the entries that end the session."""
        return PREPARE

    async def canceled_report(self) -> ClosureReport | None:
        """What is to be said of a session that a person ends; None: nothing can be."""
        return None

    def post(self) -> None:
        """There may be a message from a person; the phase that runs looks at its next good moment."""
        self.mail = True
        if self.gateway is not None:
            self.gateway.mail = True

    async def abandon(self, why: str) -> TicketStatus:
        """A person canceled: close the session as that."""
        journal = await self.open_journal()
        if self.gateway is not None:
            await self.gateway.recover()
        report = None if self.find(EntryKind.REPORT) else await self.canceled_report()
        ended = Draft(EntryKind.SESSION_END, why, why, phase=self.ends_in, meta={"status": "canceled"})
        await journal.append(*([report_draft(report, self.ends_in)] if report else []), ended)
        return await self.finish(TicketStatus.CANCELED, Reason.BY_HAND, why, "canceled")

    async def fail(self, reason: Reason, why: str) -> TicketStatus:
        """Something that is neither the agent's nor the verification's: escalate with its sentence."""
        journal = await self.open_journal()
        sentence = clip(printable(self.tools.audit.database.redactor.text(why)), 2000)
        await journal.append(Draft(EntryKind.ERROR, clip(sentence, 200), sentence, phase=self.ends_in))
        diagnosis = f"ESCALATED: {reason.value}: {sentence}"
        return await self.finish(TicketStatus.ESCALATED, reason, diagnosis, "failed")

    # ---- the journal

    async def open_journal(self) -> Journal:
        if self.journal is not None:
            return self.journal
        audit = self.tools.audit
        resumed = self.ticket.session_id is not None
        if self.ticket.session_id is not None:
            self.session_id = self.ticket.session_id
        elif not self.session_id:
            self.session_id = await audit.create_session(self.ticket.id, claim=self.claim)
            reach("session.created")
        journal = self.journal = await audit.journal(self.session_id, self.claim)
        await self.refresh()
        if resumed:
            text = f"resumed by worker {self.claim.worker[:8]} with fence {self.claim.fence}"
            await journal.append(Draft(EntryKind.RESUMED, text, phase=PREPARE))
            self.tools.say(f"[Resumed] session {self.session_id} goes on where its journal ends")
        return journal

    async def finish(self, status: TicketStatus, reason: Reason, diagnosis: str, session_status: str) -> TicketStatus:
        """End the session and the work on the ticket; returns the state that it has now: a cancellation wins."""
        status_now = await self.tools.queue.finish(
            self.claim,
            status,
            reason,
            diagnosis=diagnosis,
            session_id=self.session_id,
            session_status=session_status,
            watch_s=self.watch_s,
        )
        self.ended = True
        reach("session.finished")
        if status_now is not status:
            await self.overruled()
        await asyncio.to_thread(self.tools.state.drop, self.session_id)  # a whole repository may be in it
        return status_now

    async def overruled(self) -> None:
        """A cancellation won over the end that was written; whoever dies here leaves the state folder as a sign."""

    @property
    def watch_s(self) -> float:
        """Seconds for which the same violation reopens the ticket."""
        return 0.0


def frozen_in(ticket: Ticket, kind: type[M]) -> M:
    """What counts as a ticket's proof, as it was frozen when the ticket opened.

    Raises:
        VerificationError: It cannot be read, or is not what its hash was made of.
    """
    try:
        spec = kind.model_validate(ticket.check_spec)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise VerificationError(
            f"The check of ticket #{ticket.id} cannot be read ({where}: {first['msg']}); another version of Operator "
            "wrote it, so update this worker and reopen the ticket."
        ) from None
    # Of the stored value, because a later version of Operator may add fields to what it reads.
    found = hashlib.sha256(canonical(ticket.check_spec).encode("utf-8", "surrogatepass")).hexdigest()
    if found != ticket.check_hash:
        raise VerificationError(
            f"The check of ticket #{ticket.id} is not what was submitted: somebody has changed it in the store, so "
            "nothing could be proved by it; cancel the ticket and submit it again."
        )
    return spec
