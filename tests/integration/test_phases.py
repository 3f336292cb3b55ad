"""Where the time of a session on an incident is booked: the platform's looks are not the worker's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operator_core.api.sessions import read_session
from operator_core.model.entry import EntryKind
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Call, Reply, ScriptBrain
from tests.support.rig import PROPOSE, Rig, command, open_rig, spec_of

FIX = Reply(calls=(command("touch fixed"),))
SETTLE_S = 0.6


async def phases(rig: Rig) -> dict[str, dict[str, Any]]:
    (session,) = await rig.audit.sessions()
    found = await read_session(rig.database, rig.settings, session.session_id)
    return {phase["phase"]: phase for phase in found.phases}


async def test_the_time_of_the_looks_is_that_of_the_verification(tmp_path: Path) -> None:
    check = spec_of(tmp_path / "workspace", settle_s=SETTLE_S, settle_observations=2)
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path) as rig:
        ticket = await rig.solve(check)
        assert ticket.status is TicketStatus.RESOLVED
        found = await phases(rig)
        assert list(found) == ["prepare", "worker_1", "verify"]
        verify = found["verify"]
        assert (verify["ended_at"] - verify["started_at"]).total_seconds() >= SETTLE_S
        entries = await rig.journal()
        outcome = next(e for e in entries if e.entry_type == EntryKind.OUTCOME)
        begun = [e for e in entries if e.entry_type == EntryKind.PHASE_START]
        assert [(e.phase, e.seq > outcome.seq) for e in begun] == [("verify", True)]
        await rig.assert_faithful()


async def test_what_nobody_verified_has_no_such_phase(tmp_path: Path) -> None:
    gives_up = Reply(calls=(Call("give_up", {"reason": "It needs a key that I do not have."}),))
    async with open_rig(ScriptBrain([FIX, gives_up]), tmp_path) as rig:
        ticket = await rig.solve()
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, "gave_up")
        assert list(await phases(rig)) == ["prepare", "worker_1"]
