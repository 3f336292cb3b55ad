"""``kill -9`` around a call of an MCP server's tool: made at most once, and what is not known is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from operator_core.model.entry import EntryKind
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Turn
from tests.support.mcp_server import PROGRAM
from tests.support.rig import PROPOSE, command, open_rig
from tests.support.worker_process import kill_at

SERVER = {"name": "desk", "command": sys.executable, "args": [PROGRAM]}
KNOWN = {"gateway.published", "journal.append.before:tool_result", "journal.append.after:tool_result"}


def agent() -> Brain:
    """Notes once, and repairs."""

    def reply(turn: Turn) -> Reply:
        if turn.step == 0:
            return Reply(calls=(Call("desk__note", {"file": "noted"}),))
        return Reply(calls=(command("touch fixed"),)) if turn.step == 1 else PROPOSE

    return FunctionBrain(reply)


@pytest.mark.parametrize("place", ["session.begun", "gateway.started", "gateway.executed", *sorted(KNOWN)])
async def test_a_call_is_made_at_most_once(place: str, tmp_path: Path) -> None:
    store = str(tmp_path / "operator.db")
    async with open_rig(agent(), tmp_path, store=store, mcp_server=[SERVER]) as rig:
        number = await rig.incident()
        await kill_at(rig, store, place, tmp_path)
        await rig.work()
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED, rig.lines
        (result,) = [
            json.loads(e.raw_content or "")
            for e in await rig.journal()
            if e.entry_type == EntryKind.TOOL_RESULT and e.tool_name == "desk__note"
        ]
        noted = rig.workspace / "noted"
        times = noted.read_text().count("x") if noted.exists() else 0
        if place in KNOWN or place == "session.begun":
            assert (times, result) == (1, {"result": "noted"})
        else:
            assert times == (place == "gateway.executed")
            assert "outcome unknown, check before repeating" in result["error"]
        await rig.assert_faithful()
