"""The fold of a journal into messages: order of results, notes, and what is still open."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from operator_core.agent_lab.history import Conversation
from operator_core.model.entry import EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind


def _asked(*ids: str, stop: str = "tool_use") -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": i, "name": "shell", "input": {}} for i in ids]
    body = {"role": "assistant", "content": [{"type": "text", "text": "x"}, *blocks]}
    return {"kind": EntryKind.MESSAGE, "body": body, "meta": {"stop_reason": stop}}


def _result(call: str) -> dict[str, Any]:
    return {"kind": EntryKind.TOOL_RESULT, "body": {"type": "tool_result", "tool_use_id": call, "content": call}}


@given(order=st.permutations(["a", "b", "c", "d"]), notes=st.lists(st.integers(0, 4), max_size=3))
def test_results_are_sent_in_the_order_of_the_calls_and_notes_behind_them(order: list[str], notes: list[int]) -> None:
    """A recovered call is answered after the others; the API wants the results first, whenever a note came."""
    conversation = Conversation()
    conversation.add(EntryKind.MESSAGE, body={"role": "user", "content": "go"})
    conversation.add(**_asked("a", "b", "c", "d"))
    for place in range(5):
        for _ in range(notes.count(place)):
            conversation.add(EntryKind.NOTE, text=f"note {place}")
        if place < 4:
            assert conversation.open_calls
            conversation.add(**_result(order[place]))
    content = conversation.ready()[-1]["content"]
    assert [b["tool_use_id"] for b in content[:4]] == ["a", "b", "c", "d"]
    assert [b["text"] for b in content[4:]] == [f"note {place}" for place in sorted(notes)]


def test_who_has_the_last_word() -> None:
    conversation = Conversation()
    assert not conversation.unanswered
    conversation.add(EntryKind.MESSAGE, body={"role": "user", "content": "go"})
    assert not conversation.unanswered
    conversation.add(**_asked(stop="end_turn"))
    assert conversation.unanswered
    assert (conversation.stop_reason, conversation.turns) == ("end_turn", 1)
    conversation.add(EntryKind.MESSAGE, body={"role": "user", "content": "say how it ends"}, meta={"nudge": True})
    assert (conversation.unanswered, conversation.nudges) == (False, 1)
    conversation.add(**_asked("a"))
    conversation.add(**_result("a"))
    assert not conversation.unanswered
    assert conversation.open_calls == []


def test_the_outcome() -> None:
    conversation = Conversation()
    conversation.add(EntryKind.OUTCOME, meta={"outcome": "gave_up"}, text="why")
    assert conversation.outcome == Outcome(OutcomeKind.GAVE_UP, "why")


def test_ready_is_a_copy() -> None:
    """The SDK's runner appends to the list that it is given; the journal's own must not grow by that."""
    conversation = Conversation()
    conversation.add(EntryKind.MESSAGE, body={"role": "user", "content": "go"})
    conversation.ready().append({"role": "assistant", "content": "x"})
    assert len(conversation.messages) == 1
