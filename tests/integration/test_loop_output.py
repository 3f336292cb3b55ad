"""Long output: bounded for the model, whole in the journal, and readable where the marker says (rows A-020, D-14)."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from operator_core.model.ticket import TicketStatus
from operator_core.scripted import FunctionBrain, Reply, ScriptBrain, Turn, unfence
from tests.support.rig import PROPOSE, Rig, command, open_rig

SIZE = 5_000_000
LONG = "python3 -c \"print('first\\n' + 'x' * 4999980 + '\\nlast', end='\\n')\" | tee fixed; echo oops >&2"


async def _blob(rig: Rig, digest: str) -> bytes:
    return b"".join([chunk async for chunk in rig.audit.read_blob(digest)])


@pytest.fixture(params=["none", "bubblewrap"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap":
        request.getfixturevalue("require_bubblewrap")
    return str(request.param)


async def test_five_megabytes(tmp_path: Path, backend: str) -> None:
    def reply(turn: Turn) -> Reply:
        if turn.step == 0:
            return Reply(calls=(command(LONG),))
        if turn.step == 1:
            shown = json.loads(turn.results[0].text)["stdout"]
            found = re.search(r"bytes omitted of (\d+); the output is in (\S+) \.\.\.\]", shown)
            assert found, shown[16000:17000]
            # The marker says where the rest is, and the agent can read it there.
            return Reply(calls=(command(f"wc -c < {found[2]}; tail -n 1 {found[2]}; sha256sum < {found[2]}"),))
        return PROPOSE

    async with open_rig(FunctionBrain(reply), tmp_path, sandbox={"backend": backend}) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED
        await rig.assert_faithful()
        whole = (rig.workspace / "fixed").read_bytes()
        assert len(whole) > 4_999_000

        answer = rig.sent()[1][-1]["content"][0]["content"]
        assert len(answer) < 40_000
        shown = json.loads(unfence(answer).text)
        assert shown["stdout"].startswith("first\nxxx")
        assert shown["stdout"].endswith("xxx\nlast\n")
        assert shown["stderr"] == "oops\n"

        looked = json.loads(unfence(rig.sent()[2][-1]["content"][0]["content"]).text)
        size, last, digest = looked["stdout"].split()[:3]
        assert (int(size), last) == (len(whole), "last")
        assert digest == hashlib.sha256(whole).hexdigest()

        entry = next(e for e in await rig.journal() if e.entry_type == "tool_result")
        assert entry.meta is not None
        assert entry.meta["stdout_blob"] == digest
        assert entry.meta["stdout_bytes"] == len(whole)
        assert await _blob(rig, digest) == whole


async def test_middling_output_is_whole_in_the_row_itself(tmp_path: Path) -> None:
    brain = ScriptBrain([Reply(calls=(command("touch fixed; seq 1 9000"),)), PROPOSE])
    async with open_rig(brain, tmp_path) as rig:
        await rig.solve()
        entry = next(e for e in await rig.journal() if e.entry_type == "tool_result")
        assert json.loads(entry.raw_content or "")["stdout"].split() == [str(n) for n in range(1, 9001)]
        assert "omitted" in rig.sent()[1][-1]["content"][0]["content"]


async def test_a_timeout_keeps_the_partial_output(tmp_path: Path) -> None:
    """Rows A-014 and D-19, through the whole loop."""
    brain = ScriptBrain([Reply(calls=(command("touch fixed; echo begun; sleep 60", timeout=0.5),)), PROPOSE])
    async with open_rig(brain, tmp_path) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED
        shown = json.loads(unfence(rig.sent()[1][-1]["content"][0]["content"]).text)
        assert shown == {
            "stdout": "begun\n",
            "stderr": "Command timed out after 0.5 seconds",
            "exit_code": -1,
            "timed_out": True,
        }
        assert [line for line in rig.lines if line.startswith("[Result (exit -1)] timed out: ")]


async def test_a_background_process_does_not_hold_the_call(tmp_path: Path) -> None:
    """D-01 through the whole loop: it is stopped, and the model is told."""
    brain = ScriptBrain([Reply(calls=(command("touch fixed; sleep 63.3 & echo started"),)), PROPOSE])
    async with open_rig(brain, tmp_path) as rig:
        await rig.solve(timeout=20)
        shown = json.loads(unfence(rig.sent()[1][-1]["content"][0]["content"]).text)
        assert shown["stdout"] == "started\n"
        assert "background process" in shown["stderr"]
