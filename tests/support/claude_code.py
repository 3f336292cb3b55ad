"""A phase of the real Claude Code CLI in a real sandbox, against the scripted model server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.claude_code import CliPhase, CliResult, find_program, run_claude_code
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.model.entry import Entry
from operator_core.model.usage import Usage
from operator_core.redaction import Redactor
from operator_core.sandbox import Limits, Policy, Sandbox, open_sandbox
from operator_core.scripted import Brain, Call, ScriptedServer

__all__ = ["API_KEY", "PHASE", "CliRig", "bash", "open_cli_rig"]

API_KEY = "the-real-key-of-the-service-0123456789"
PHASE = "worker_1"


def bash(command: str, **more: Any) -> Call:
    """A call of the CLI's Bash tool."""
    return Call("Bash", {"command": command, "description": "as the test says", **more})


@dataclass
class CliRig:
    """A journal, a scripted model and a workspace for one phase.

    Attributes:
        lines: What the phase printed.
        phase: The phase of the last :meth:`run`.
    """

    folder: Path
    settings: Settings
    database: Database
    base_url: str
    session_id: str
    backend: str = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    phase: CliPhase | None = None

    @property
    def workspace(self) -> Path:
        """Where the agent works."""
        return self.folder / "workspace"

    @property
    def audit(self) -> AuditLogDB:
        """The journal of the store."""
        return AuditLogDB(self.database)

    async def entries(self) -> list[Entry]:
        """The journal so far."""
        return await self.audit.entries(self.session_id)

    def open_box(
        self, readable: tuple[Path, ...], writable: tuple[Path, ...], env: Mapping[str, str], limits: Limits | None
    ) -> Sandbox:
        """The phase's sandbox, as a session makes it."""
        policy = Policy(
            self.workspace,
            readable,
            writable,
            env={**self.env, **env},
            limits=limits if limits is not None else Limits(),
        )
        return open_sandbox(self.backend, policy, session_dir=self.folder / "box", redact=self.database.redactor.filter)

    async def run(self, prompt: str = "Do it.", **more: Any) -> CliResult:
        """One phase; called again it goes on as a new worker would."""
        journal = await self.audit.journal(self.session_id)
        journal.phase = PHASE
        usage, turns = Usage(), 0
        entries = await self.entries()
        for entry in entries:
            if entry.meta and "usage" in entry.meta:
                usage, turns = usage.plus(Usage(**entry.meta["usage"])), turns + 1
        model = self.settings.model
        self.phase = CliPhase(
            program=find_program(self.settings.claude_code),
            settings=self.settings,
            journal=journal,
            entries=entries,
            open_box=self.open_box,
            folder=self.folder / "state" / PHASE,
            model=model.model,
            prompt=prompt,
            budget=Budget(self.settings.limits, model, usage, turns),
            api_key=API_KEY,
            base_url=self.base_url,
            say=self.lines.append,
        )
        for name, value in more.items():
            setattr(self.phase, name, value)
        return await run_claude_code(self.phase)


@asynccontextmanager
async def open_cli_rig(
    brain: Brain | str,
    folder: Path,
    *,
    session_id: str | None = None,
    secrets: tuple[str, ...] = (API_KEY,),
    **sections: dict[str, Any],
) -> AsyncIterator[CliRig]:
    """Everything for one test.

    Args:
        brain: Answers the model calls; an address uses a server that runs already.
        folder: Where workspace, store and state are made.
        session_id: A session that exists; default: a new one.
        secrets: What the journal masks.
        **sections: Overrides of settings, e.g. ``limits={"turns": 3}``.
    """
    (folder / "workspace").mkdir(exist_ok=True)
    server = None if isinstance(brain, str) else ScriptedServer(brain, api_key=API_KEY)
    async with Database.open(folder / "operator.db", redactor=Redactor(secrets)) as database:
        if server is not None:
            await server.__aenter__()
        try:
            base_url = brain if isinstance(brain, str) else server.base_url  # type: ignore[union-attr]
            values: dict[str, dict[str, Any]] = {
                "model": {"engine": "scripted", "base_url": base_url, "model": "claude-opus-5-5"},
                "claude_code": {"max_retries": 1},
            }
            for name, section in sections.items():
                values[name] = {**values.get(name, {}), **section}
            audit = AuditLogDB(database)
            session_id = session_id or await audit.create_session(None)
            yield CliRig(folder, Settings.model_validate(values), database, base_url, session_id)
        finally:
            if server is not None:
                await server.__aexit__(None, None, None)


async def _main(folder: str, base_url: str, session_id: str) -> None:
    """Run a phase in a process of its own, which a test may kill; prints its result as JSON."""
    async with open_cli_rig(base_url, Path(folder), session_id=session_id) as rig:
        result = await rig.run()
        print(json.dumps(result._asdict()))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
