"""Each stop reason has one meaning, and none of them is "resolved" by itself (rows A-060, D-02)."""

from __future__ import annotations

from pathlib import Path

import pytest

from operator_core.agent_lab.prompts import NUDGE
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Call, Reply, ScriptBrain
from tests.support.rig import PROPOSE, command, open_rig

FIX = Reply(calls=(command("touch fixed"),))


async def _end(
    folder: Path, *steps: Reply, **sections: dict[str, object]
) -> tuple[str, str | None, str | None, list[str]]:
    """State, reason and diagnosis of the ticket, and the text of each user message that the platform wrote."""
    async with open_rig(ScriptBrain(steps), folder, **sections) as rig:
        ticket = await rig.solve()
        await rig.assert_faithful()
        (session,) = await rig.audit.sessions()
        expected = "completed" if ticket.status is TicketStatus.RESOLVED else "escalated"
        assert session.status == expected
        told = [e.raw_content or "" for e in await rig.journal() if e.entry_type == "message" and e.raw_content]
        return ticket.status.value, ticket.reason, ticket.diagnosis, told[1:]


async def test_proposed_and_observed_is_resolved_with_the_agents_summary(tmp_path: Path) -> None:
    """Rows A-066 and A-034."""
    assert await _end(tmp_path, FIX, PROPOSE) == ("resolved", "verified", "The file is there again.", [])


async def test_an_end_without_outcome_is_asked_once(tmp_path: Path) -> None:
    assert await _end(tmp_path, FIX, Reply(text="Done!"), PROPOSE) == (
        "resolved",
        "verified",
        "The file is there again.",
        [NUDGE],
    )


async def test_a_second_end_without_outcome_proves_nothing_even_when_all_is_green(tmp_path: Path) -> None:
    """The seed called this resolved (D-02)."""
    state, reason, diagnosis, told = await _end(
        tmp_path, FIX, Reply(text="I was NOT able to fix this; a human must look."), Reply(text="As I said.")
    )
    assert (state, reason, told) == ("escalated", "unproven", [NUDGE])
    assert diagnosis == "ESCALATED: unproven: The agent stopped twice without saying how the ticket ends."


async def test_giving_up_hands_the_reason_to_a_person(tmp_path: Path) -> None:
    give_up = Reply(calls=(Call("give_up", {"reason": "It needs an approval."}),))
    assert await _end(tmp_path, give_up) == ("escalated", "gave_up", "ESCALATED: gave_up: It needs an approval.", [])


async def test_calls_behind_the_outcome_do_not_run_another_turn(tmp_path: Path) -> None:
    both = Reply(calls=(Call("propose_resolution", {"summary": "done"}), command("touch fixed")))
    async with open_rig(ScriptBrain([both]), tmp_path) as rig:
        ticket = await rig.solve()
        assert len(rig.sent()) == 1
        assert ticket.status is TicketStatus.RESOLVED


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ("refusal", "Session ended with stop_reason: refusal"),
        ("something_new", "Session ended with stop_reason: something_new"),
    ],
)
async def test_a_reply_that_ends_everything_is_escalated_with_its_reason(tmp_path: Path, stop: str, words: str) -> None:
    state, reason, diagnosis, _ = await _end(tmp_path, FIX, Reply(text="No.", stop_reason=stop), PROPOSE)
    assert (state, reason) == ("escalated", "error")
    assert words in (diagnosis or "")


async def test_a_reply_for_which_the_context_had_no_room_begins_it_anew(tmp_path: Path) -> None:
    cut = Reply(text="I begin to exp", stop_reason="model_context_window_exceeded")
    async with open_rig(ScriptBrain([FIX, cut, PROPOSE]), tmp_path) as rig:
        ticket = await rig.solve()
        await rig.assert_faithful()
        assert ticket.status is TicketStatus.RESOLVED
        kinds = [entry.entry_type for entry in await rig.journal()]
        assert kinds.count("restart") == 1


async def test_a_cut_off_text_goes_on(tmp_path: Path) -> None:
    cut = Reply(text="I begin to exp", stop_reason="max_tokens")
    state, _, _, told = await _end(tmp_path, cut, FIX, PROPOSE)
    assert state == "resolved"
    assert told == ["Your reply was cut off by the length limit; go on."]


@pytest.mark.parametrize("stop", ["max_tokens", "end_turn", "stop_sequence"])
async def test_calls_of_a_reply_that_stopped_otherwise_are_not_executed(tmp_path: Path, stop: str) -> None:
    """A cut-off command may be half a command: it is answered, and never run."""
    cut = Reply(calls=(command("touch wrong"), command("touch wrong2")), stop_reason=stop)
    state, *_ = await _end(tmp_path, cut, FIX, PROPOSE)
    assert state == "resolved"
    assert not list((tmp_path / "workspace").glob("wrong*"))


async def test_endless_cut_offs_end(tmp_path: Path) -> None:
    cut = Reply(text="and so on", stop_reason="max_tokens")
    state, reason, diagnosis, _ = await _end(tmp_path, *[cut] * 10)
    assert (state, reason) == ("escalated", "budget")
    assert "cut off 4 times" in (diagnosis or "")


async def test_pause_turn_is_sent_back_unchanged(tmp_path: Path) -> None:
    pause = Reply(text="Still at it.", thinking="long", stop_reason="pause_turn")
    state, _, _, told = await _end(tmp_path, pause, FIX, PROPOSE)
    assert (state, told) == ("resolved", [])


async def test_tool_use_without_a_call_asks_for_nothing(tmp_path: Path) -> None:
    """A server that says so must not be asked for ever."""
    state, _, _, told = await _end(tmp_path, Reply(text="hm", stop_reason="tool_use"), FIX, PROPOSE)
    assert (state, told) == ("resolved", [NUDGE])
