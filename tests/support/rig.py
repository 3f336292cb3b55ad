"""A store, a scripted model and a worker in one process: everything that a test of a session needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from operator_core import clock
from operator_core.agent_lab.engine import open_engine
from operator_core.agent_lab.history import fold
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Entry
from operator_core.model.invariant import CheckSpec, CommandProbe, Invariant, Subject
from operator_core.model.ticket import InvariantViolation, Ticket
from operator_core.redaction import Redactor
from operator_core.scripted import Brain, Call, Reply, ScriptedServer
from operator_core.work.session import Conclusion, SessionTools
from operator_core.work.worker import Worker

__all__ = ["PROPOSE", "Rig", "command", "open_rig", "propose", "spec_of"]


def command(text: str, reasoning: str = "because the test says so", **more: Any) -> Call:
    """A call of ``shell``."""
    return Call("shell", {"command": text, "reasoning": reasoning, **more})


def propose(summary: str = "The file is there again.") -> Reply:
    """The reply that claims the repair."""
    return Reply(calls=(Call("propose_resolution", {"summary": summary}),))


PROPOSE = propose()


def spec_of(workspace: Path, name: str = "file-exists", probe: str = "test -e fixed", **invariant: Any) -> CheckSpec:
    """An invariant that looks for the file ``fixed`` in the workspace, and is settled or refuted at once."""
    values: dict[str, Any] = {"settle_s": 0.0, "settle_observations": 1, "patience_s": 0.0, **invariant}
    return CheckSpec.of(
        Subject(name="subject", workspace=workspace),
        Invariant(name=name, probe=CommandProbe(type="command", command=f"cd {workspace} && {probe}"), **values),
    )


@dataclass
class Rig:
    """An open store, its scripted model, and what the workers said.

    Attributes:
        workspace: The agent's folder; the default invariant wants a file ``fixed`` in it.
        lines: Everything that workers printed.
        conclusions: The sessions that ended, in order.
    """

    workspace: Path
    settings: Settings
    database: Database
    server: ScriptedServer
    lines: list[str] = field(default_factory=list)
    conclusions: list[Conclusion] = field(default_factory=list)

    @property
    def tickets(self) -> TicketDB:
        """The tickets of the store."""
        return TicketDB(self.database)

    @property
    def audit(self) -> AuditLogDB:
        """The journal of the store."""
        return AuditLogDB(self.database)

    async def incident(self, check: CheckSpec | None = None, *, message: str = "The file is missing.") -> int:
        """Open an incident that the monitor has seen red; returns the ticket's number."""
        check = check or spec_of(self.workspace)
        seen = clock.now()
        violation = InvariantViolation(check.invariant.name, message, seen, seen)
        ticket = await self.tickets.create_or_update_ticket(violation, {"light": "red"}, check=check)
        assert ticket.id is not None
        return ticket.id

    @asynccontextmanager
    async def worker(self, **arguments: Any) -> AsyncIterator[Worker]:
        """A worker of this process that is not started yet."""
        engine = open_engine(self.settings.model)
        try:
            yield Worker(
                self.settings,
                self.database,
                engine,
                say=self.lines.append,
                on_conclusion=self.conclusions.append,
                **arguments,
            )
        finally:
            await engine.close()

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[SessionTools]:
        """What a session is given, for work outside of a worker."""
        engine = open_engine(self.settings.model)
        try:
            yield SessionTools.on(self.database, self.settings, engine, self.lines.append)
        finally:
            await engine.close()

    async def work(self, timeout: float = 60.0, **arguments: Any) -> None:
        """Let a worker do everything that is to be done."""
        async with self.worker(**arguments) as worker, asyncio.timeout(timeout):
            await worker.run(asyncio.Event(), until_idle=True)

    async def solve(self, check: CheckSpec | None = None, **arguments: Any) -> Ticket:
        """Open an incident, let a worker do it, and return the ticket."""
        number = await self.incident(check)
        await self.work(**arguments)
        return await self.tickets.get_ticket(number)

    async def journal(self, ticket: int = 1) -> list[Entry]:
        """The journal of the ticket's newest session."""
        (session, *_) = await self.audit.sessions(ticket_id=ticket)
        return await self.audit.entries(session.session_id)

    def sent(self) -> list[list[dict[str, Any]]]:
        """The ``messages`` of every request to the agent's model, oldest first."""
        return [r.body["messages"] for r in self.server.model_calls(self.settings.model.model) if r.body]

    async def assert_faithful(self, ticket: int = 1) -> None:
        """Every request had exactly the messages that the journal folds to, in the journal's order; the audit holds."""
        messages = fold(await self.journal(ticket), "worker_1").messages
        for number, sent in enumerate(self.sent()):
            assert sent == messages[: len(sent)], f"request {number} is not what the journal says"
        report = await verify(self.database)
        assert report.ok, report.problem


@asynccontextmanager
async def open_rig(
    brain: Brain,
    folder: Path,
    *,
    store: str | None = None,
    redactor: Redactor | None = None,
    **sections: Any,
) -> AsyncIterator[Rig]:
    """Everything, for one test.

    Args:
        folder: Where workspace, store and state are made.
        store: Path or URL; default: an SQLite file in ``folder``.
        **sections: Overrides of settings, e.g. ``limits={"turns": 3}``.
    """
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    async with (
        ScriptedServer(brain) as server,
        Database.open(store or folder / "operator.db", redactor=redactor) as database,
    ):
        defaults: dict[str, Any] = {
            "model": {"engine": "scripted", "base_url": server.base_url, "model": "claude-opus-5-5"},
            "sandbox": {"backend": "none"},
            "worker": {"lease_s": 10.0, "poll_s": 0.05, "state_dir": folder / "state", "concurrency": 1},
        }
        defaults["model"]["summaries"] = "deterministic"
        for name, values in sections.items():
            defaults[name] = {**defaults.get(name, {}), **values} if isinstance(values, dict) else values
        yield Rig(workspace, Settings.model_validate(defaults), database, server)
