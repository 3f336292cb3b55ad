"""A verifier agent for incidents: switched on, it must fail to refute the repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from operator_core.model.ticket import Reason
from operator_core.scripted import Brain, FunctionBrain, Reply, Turn
from tests.support.rig import PROPOSE, command, open_rig
from tests.support.task_brain import run, verdict

ON = {"incidents": {"verifier": True}}


def brain(*verifier: Reply) -> Brain:
    def reply(turn: Turn) -> Reply:
        if "submit_verdict" in turn.tools:
            assert "touch fixed" in turn.first_text, "it is told what was run"
            return verifier[min(turn.step, len(verifier) - 1)]
        return PROPOSE if turn.step else Reply(calls=(command("touch fixed"),))

    return FunctionBrain(reply)


TEST = run("python3 -c 'import os; assert os.path.exists(\"fixed\")'; touch of-the-verifier")


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        ((TEST, verdict(True)), Reason.VERIFIED),
        ((TEST, verdict(False, "It is only a file; the cause is still there.")), Reason.REFUTED),
        ((run("cat fixed"), verdict(True)), Reason.INCONCLUSIVE),
        ((Reply(text="It is fine: approved."),), Reason.INCONCLUSIVE),
    ],
    ids=["approved", "refuted", "approved without a test", "no verdict"],
)
async def test_its_verdict_counts_beside_the_clauses(
    tmp_path: Path, verifier: tuple[Reply, ...], reason: Reason
) -> None:
    async with open_rig(brain(*verifier), tmp_path, limits={"turns": 8}, **ON) as rig:
        ticket = await rig.solve()
        assert ticket.reason == reason, ticket.diagnosis
        found = [e for e in await rig.journal() if e.entry_type == "verdict"]
        assert len(found) == 1
        clauses = [clause["clause"] for clause in found[0].body["clauses"]]
        assert "review" in clauses
        assert not (rig.workspace / "of-the-verifier").exists(), "it works on a copy"
        (report,) = [c.report for c in rig.conclusions]
        assert "### review" in report.markdown()


async def test_it_is_off_by_default_and_not_asked_about_what_is_refuted_already(tmp_path: Path) -> None:
    async with open_rig(brain(TEST, verdict(True)), tmp_path) as rig:
        await rig.solve()
        assert all("submit_verdict" not in str(r.body) for r in rig.server.model_calls())
