"""What goes wrong around a session: a lost claim, a check nobody can read, a limit at the last moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text

from operator_core.errors import ModelNotUsable
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Failure, FunctionBrain, Reply, ScriptBrain, Turn
from tests.support import wait_until_async
from tests.support.rig import PROPOSE, command, open_rig, spec_of

FIX = Reply(calls=(command("touch fixed"),))


async def test_a_worker_that_lost_its_claim_starts_nothing_more(tmp_path: Path, store_url: str) -> None:
    """Not even the other calls of the same reply, which the runner goes on with by itself."""

    def reply(turn: Turn) -> Reply:
        if turn.step == 0:
            wait = "touch begun; until test -e go; do sleep 0.02; done"
            return Reply(calls=(command(wait), command("touch second")))
        return FIX if turn.step == 1 else PROPOSE

    async with open_rig(FunctionBrain(reply), tmp_path, store=store_url) as rig:
        number = await rig.incident()
        work = asyncio.create_task(rig.work())
        await wait_until_async(lambda: (rig.workspace / "begun").exists())
        async with rig.database.begin() as c:
            await c.execute(text("UPDATE tickets SET fence = fence + 1"))  # as the next claim does
        (rig.workspace / "go").touch()
        await work
        assert not (rig.workspace / "second").exists()
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
        results = [e for e in await rig.journal() if e.entry_type == "tool_result" and e.tool_name == "shell"]
        assert [(e.meta or {})["status"] for e in results] == ["ok", "not_executed", "ok"]
        await rig.assert_faithful()


async def test_a_check_that_cannot_be_read_stops_its_ticket_only(tmp_path: Path) -> None:
    """A newer version may have written it; the worker must survive it."""
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path) as rig:
        bad = await rig.incident(spec_of(rig.workspace, "from-the-future"))
        good = await rig.incident()
        async with rig.database.begin() as c:
            spec = '{"subject": {"name": "s"}, "invariant": {"name": "x", "teleport": true}}'
            await c.execute(text("UPDATE tickets SET check_spec = :spec WHERE id = :id"), {"spec": spec, "id": bad})
        await rig.work()
        ticket = await rig.tickets.get_ticket(bad)
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, "error")
        assert "invariant.teleport" in (ticket.diagnosis or "")
        assert (await rig.tickets.get_ticket(good)).status is TicketStatus.RESOLVED


async def test_a_proposal_at_the_very_end_of_the_time_counts(tmp_path: Path) -> None:
    """It is in the journal, so the live session must do what a resumed one would."""
    async with open_rig(
        ScriptBrain([PROPOSE]), tmp_path, limits={"wall_clock_s": 1.5}, worker={"lease_s": 60.0}
    ) as rig:
        (rig.workspace / "fixed").touch()
        number = await rig.incident()
        slow = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000000) SELECT count(*) FROM n"
        )
        async with rig.database.begin() as c:
            await c.execute(
                text(
                    "CREATE TRIGGER slow AFTER INSERT ON agent_log_entries WHEN NEW.entry_type = 'outcome' "
                    f"BEGIN {slow}; END"
                )
            )
        await rig.work()
        kinds = {(e.meta or {}).get("outcome") for e in await rig.journal()} - {None}
        assert kinds == {"proposed"}
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED


async def test_workers_that_give_a_ticket_back_are_not_lost(tmp_path: Path, store_url: str) -> None:
    """A wrong key or a restart, however often, must not hand the ticket to a person."""
    refusals = iter([Failure(401)] * 4)

    def reply(turn: Turn) -> Reply | Failure:
        return FIX if turn.step == 0 else next(refusals, PROPOSE)

    async with open_rig(FunctionBrain(reply), tmp_path, store=store_url) as rig:
        number = await rig.incident()
        for _ in range(4):
            with pytest.raises(ModelNotUsable):
                await rig.work()
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.fence) == (TicketStatus.RESOLVED, 5)


async def test_an_audit_folder_that_cannot_be_written_is_said_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file")
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path) as rig:
        assert (await rig.solve(audit_dir=tmp_path / "audit")).status is TicketStatus.RESOLVED
        assert "cannot be written" in rig.lines[-1]
        assert "--audit-dir" in rig.lines[-1]
