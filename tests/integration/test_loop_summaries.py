"""Summaries by a model: off the hot path, bounded, and never a reason to fail (row D-12)."""

from __future__ import annotations

import time
from pathlib import Path

from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Failure, FunctionBrain, Reply, Router, ScriptBrain
from tests.support.rig import PROPOSE, command, open_rig

WORDS = "I look at the disk, because the message says that it is full; after that I shall look at what filled it up."
STEPS = [Reply(text=WORDS, calls=(command("seq 1 200"), command("touch fixed; echo short"))), Reply(text="ok"), PROPOSE]
BY_MODEL = {"summaries": "model"}


async def test_they_replace_the_first_ones_and_nothing_else(tmp_path: Path) -> None:
    summaries = FunctionBrain(lambda turn: Reply(text="A better summary."))
    brain = Router(default=ScriptBrain(STEPS), summaries=summaries)
    async with open_rig(brain, tmp_path, model=BY_MODEL) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED
        by_raw = {e.raw_content: e.content for e in await rig.journal()}
        assert by_raw[WORDS] == "A better summary."
        assert by_raw["ok"] == "ok"
        asked = [str(r.body) for r in rig.server.model_calls("claude-haiku")]
        assert len(asked) == 2
        assert "I look at the disk" in asked[0]
        # They are outside of the hash, so the chain still holds.
        await rig.assert_faithful()


async def test_a_slow_one_holds_nothing_up(tmp_path: Path) -> None:
    brain = Router(default=ScriptBrain(STEPS), summaries=FunctionBrain(lambda turn: Reply(text="late", delay_s=30)))
    async with open_rig(brain, tmp_path, model=BY_MODEL) as rig:
        started = time.monotonic()
        assert (await rig.solve()).status is TicketStatus.RESOLVED
        last = rig.server.model_calls("claude-opus")[-1]
        first = rig.server.model_calls("claude-opus")[0]
        assert (last.at - first.at).total_seconds() < 3, "the turns did not wait"
        assert time.monotonic() - started < 12, "nor did the end wait for long"
        by_raw = {e.raw_content: e.content for e in await rig.journal()}
        assert by_raw[WORDS] == WORDS[:200]


async def test_a_failing_one_leaves_the_first_summary(tmp_path: Path) -> None:
    brain = Router(default=ScriptBrain(STEPS), summaries=FunctionBrain(lambda turn: Failure(400)))
    async with open_rig(brain, tmp_path, model=BY_MODEL) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED
        entry = next(e for e in await rig.journal() if e.entry_type == "tool_result")
        assert entry.content == "exit 0: 200 (200 lines)"
