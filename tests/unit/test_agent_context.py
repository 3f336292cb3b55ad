"""The thresholds of a context, what stands for a result, and when an agent goes round in circles."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from operator_core.agent_lab.context import Window, characters_per_token
from operator_core.agent_lab.explorer import SAME_TURNS, pause_after
from operator_core.agent_lab.fence import Fence, Origin
from operator_core.agent_lab.history import Conversation, Measured
from operator_core.agent_lab.placeholders import clipped, placeholder
from operator_core.config import ContextSettings
from operator_core.errors import LimitReached
from operator_core.model.entry import EntryKind


@given(st.integers(4096, 2_000_000), st.floats(0.01, 0.98), st.floats(0.01, 0.99), st.integers(1, 21_333))
def test_the_thresholds_are_in_order_and_leave_room_for_the_reply(
    limit: int, soft: float, hard: float, reply: int
) -> None:
    if soft >= hard:
        with pytest.raises(ValidationError, match="must be below"):
            ContextSettings(limit_tokens=limit, soft=soft, hard=hard)
        return
    window = Window.of(ContextSettings(limit_tokens=limit, soft=soft, hard=hard), reply)
    assert 0 <= window.low <= window.soft <= window.hard < window.full
    assert window.full + window.reply == limit
    assert 1 <= window.reply <= reply
    assert window.hard <= hard * limit


def test_placeholders_are_those_of_the_seed() -> None:
    shown = json.dumps({"stdout": "grüße", "stderr": "", "exit_code": 3, "timed_out": False}, ensure_ascii=False)
    assert placeholder("shell_exec", shown) == "[shell_exec result masked -- exit_code=3, stdout=7 bytes]"
    fenced = Fence.new().wrap(Origin.TOOL, shown, "shell")
    assert placeholder("shell", fenced) == "[shell result masked -- exit_code=3, stdout=7 bytes]"
    fence = Fence.new()
    text = fence.wrap(Origin.FILES, "\n{not json\nsecond é\n" + "x" * 500, "file_read")
    # Its beginning is still somebody else's words.
    kept = fence.wrap(Origin.FILES, "[file_read result masked -- 4 lines, starts with: {not json...]", "file_read")
    assert placeholder("file_read", text) == kept
    short = clipped("file_read", text, 100)
    assert "did not fit" in short
    assert short.startswith(f"<<<{fence.mark} ")
    assert short.endswith(f"\n{fence.mark}>>>")
    unknown = json.dumps({"error": "interrupted; outcome unknown", "partial_output": "x" * 500})
    assert placeholder("shell", unknown) == "[shell result masked -- interrupted; outcome unknown]"
    assert placeholder("file_write", "1234") == "[file_write result masked -- 4 bytes]"
    assert placeholder("odd\x1b[31m", "1234") == "[odd result masked -- 4 bytes of output]"
    assert placeholder("shell", "not json at all") == "[shell result masked -- 15 bytes of output]"
    # Output that merely looks like a placeholder is an output like any other (D-74).
    looks = "[shell result masked -- exit_code=0, stdout=1 bytes]" + "y" * 100
    assert placeholder("shell", json.dumps({"stdout": looks, "exit_code": 0})).endswith("stdout=152 bytes]")


@given(st.text(alphabet=st.characters(), max_size=400), st.integers(0, 300))
def test_a_clipped_result_is_never_much_longer_than_asked(text: str, length: int) -> None:
    short = clipped("shell", text, length)
    assert short == text or len(short) <= length + 100
    assert placeholder("file_read", text)
    json.dumps(short)


def test_a_service_that_does_not_count_or_counts_too_little() -> None:
    assert characters_per_token(None, 100) is None
    assert characters_per_token(Measured(0, 10_000, None), 100) is None
    assert characters_per_token(Measured(1000, 100_000, None), 100) is None
    assert characters_per_token(Measured(1000, 3900, None), 100) == 4.0
    assert characters_per_token(Measured(10_000, 900, None), 100) == 1.0


def _turn(conversation: Conversation, call: str, command: str, result: str) -> None:
    block = {"type": "tool_use", "id": call, "name": "shell", "input": {"command": command}}
    body = {"role": "assistant", "content": [block]}
    conversation.add(EntryKind.MESSAGE, body=body, meta={"stop_reason": "tool_use"})
    conversation.add(EntryKind.TOOL_RESULT, body={"type": "tool_result", "tool_use_id": call, "content": result})


def test_the_same_turn_is_the_same_call_with_the_same_result() -> None:
    conversation = Conversation()
    conversation.add(EntryKind.MESSAGE, body={"role": "user", "content": "go"})
    seen = []
    for n, (command, result) in enumerate([("a", "1"), ("a", "1"), ("a", "1"), ("a", "2"), ("a", "1"), ("b", "1")]):
        _turn(conversation, f"t{n}", command, result)
        seen.append(conversation.same())
    assert seen == [0, 1, 2, 0, 1, 0]
    conversation.add(EntryKind.NOTE, text="Try something else.")
    _turn(conversation, "t9", "a", "1")
    assert conversation.same() == 0


def test_pauses_grow_and_circles_end() -> None:
    assert [pause_after(n, 0) for n in range(SAME_TURNS)] == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60]
    assert pause_after(0, 1000) == 60
    with pytest.raises(LimitReached, match="11 times in a row"):
        pause_after(SAME_TURNS, 0)


def test_a_masked_result_changes_nothing_else() -> None:
    conversation = Conversation()
    conversation.add(EntryKind.MESSAGE, body={"role": "user", "content": "go"})
    for n in range(3):
        _turn(conversation, f"t{n}", "x", f"result {n} " * 50)
    before = conversation.ready()
    kept = json.dumps(before)
    conversation.add(EntryKind.COMPACTION, body={"masks": {"t0": "[gone]"}}, text="[Context compressed]")
    after = conversation.ready()
    assert json.dumps(before) == kept, "what was sent already was changed in place"
    assert after[2]["content"] == [{"type": "tool_result", "tool_use_id": "t0", "content": "[gone]"}]
    assert after[3:6] == before[3:6]
    assert after[6]["content"] == [*before[6]["content"], {"type": "text", "text": "[Context compressed]"}]
    assert conversation.masked == {"t0"}
    assert conversation.size == sum(len(json.dumps(m, ensure_ascii=False)) for m in after[:6]) + sum(
        len(json.dumps(b, ensure_ascii=False)) for b in after[6]["content"]
    )
