"""``kill -9`` of `operator verify`: the session in which it judged does not run for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.integrity import verify
from operator_core.model.task import TaskCheck
from operator_core.model.verdict import VerdictKind
from operator_core.scripted import Reply, Turn
from operator_core.work.left_behind import close_left_behind, hold
from operator_core.work.rejudge import rejudge
from operator_core.work.state import StateFolder
from tests.integration.test_task_pipeline import CHECK, MAKE, spec
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import done, task_brain

VERIFY = """
import asyncio, sys
from operator_core.agent_lab.engine import unused_engine
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.work.rejudge import rejudge
from operator_core.work.session import SessionTools

async def main(store, settings, number):
    settings = Settings.model_validate_json(settings)
    async with Database.open(store) as database:
        tools = SessionTools.on(database, settings, unused_engine(settings.model), print)
        await rejudge(tools, int(number), checks_only=True)

asyncio.run(main(*sys.argv[1:]))
"""


def worker(turn: Turn) -> Reply:
    return MAKE[0] if turn.step == 0 else done()


async def killed(rig: Rig, store: str, number: int, place: str) -> None:
    """Judge in a process of its own, which dies at that place."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", VERIFY, store, rig.settings.model_dump_json(), str(number)),
        env={**os.environ, "OPERATOR_CRASH_AT": place},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL, out.decode()


@pytest.mark.parametrize("place", ["again.created", "again.begun", "task.copied", "again.judged"])
async def test_the_next_one_closes_it(place: str, tmp_path: Path) -> None:
    store = str(tmp_path / "operator.db")
    async with open_rig(task_brain(worker), tmp_path, store=store, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec(checks=CHECK))).id or 0
        await rig.work()
        before = await rig.tickets.get_ticket(number)
        await killed(rig, store, number, place)
        left = [s.session_id for s in await rig.audit.sessions(ticket_id=number) if s.status == "running"]
        assert len(left) == 1
        if place == "again.begun":
            await rig.work()  # a worker that starts
        else:
            async with rig.tools() as tools:
                assert (await rejudge(tools, number, checks_only=True)).verdict.kind is VerdictKind.VERIFIED
        (found,) = await rig.audit.sessions(session_id=left[0])
        assert (found.status, found.outcome_summary) == (
            "failed",
            "judging again did not come to an end: its process was killed",
        )
        assert not any(s.status == "running" for s in await rig.audit.sessions(ticket_id=number))
        after = await rig.tickets.get_ticket(number)
        assert (after.status, after.session_id, after.fence) == (before.status, before.session_id, before.fence)
        report = await verify(rig.database)
        assert report.ok, report.problem


class _LooksLate(AuditLogDB):
    """Between its look at the locks and its look at the sessions another process locks one and shows it."""

    state: StateFolder
    held: int = -1

    async def sessions(self, **wanted: Any) -> Any:
        if self.held < 0:
            self.held = hold(self.state, str(wanted["session_id"]))
        return await super().sessions(**wanted)


async def test_one_that_begins_just_now_is_left_alone(tmp_path: Path) -> None:
    async with open_rig(task_brain(worker), tmp_path, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec(checks=(TaskCheck(command="sh ./hello"),)))).id or 0
        audit = _LooksLate(rig.database)
        audit.state = StateFolder(rig.settings, rig.database)
        session_id = await audit.create_session(number)
        (audit.state.session(session_id) / "judging").touch()
        try:
            assert await close_left_behind(audit, audit.state) == []
            assert (await audit.sessions(session_id=session_id))[0].status == "running"
            assert session_id in audit.state.names()
        finally:
            os.close(audit.held)
        assert await close_left_behind(audit, audit.state) == [session_id]


async def test_one_that_lives_is_left_alone(tmp_path: Path) -> None:
    async with open_rig(task_brain(worker), tmp_path, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec(checks=(TaskCheck(command="sh ./hello"),)))).id or 0
        await rig.work()
        audit, state = AuditLogDB(rig.database), StateFolder(rig.settings, rig.database)
        session_id = await audit.create_session(number)
        held = hold(state, session_id)
        try:
            assert await close_left_behind(audit, state) == []
            (found,) = await audit.sessions(session_id=session_id)
            assert found.status == "running"
        finally:
            os.close(held)
        assert await close_left_behind(audit, state) == [session_id]
        assert session_id not in state.names()
        assert await close_left_behind(audit, state) == []
