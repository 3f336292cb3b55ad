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


def test_every_context_begins_from_all_that_came_before_the_first_reply() -> None:
    """A person may have written before the task was told, and a note of one restart must not pile up in the next."""
    conversation = Conversation()
    conversation.add(EntryKind.NOTE, text="first of all")
    conversation.add(EntryKind.MESSAGE, body={"role": "user", "content": "the task"})
    body = {"masks": {}, "carried": 0, "system": None}
    for number in (2, 3):
        conversation.add(**_asked(f"call {number}"))
        conversation.add(**_result(f"call {number}"))
        conversation.add(EntryKind.RESTART, body=body, text=f"context {number}")
    first, second = conversation.ready()
    assert first == {"role": "user", "content": [{"type": "text", "text": "first of all"}]}
    assert [b["text"] for b in second["content"]] == ["the task", "context 3"]


def test_a_restart_in_the_middle_of_a_reply_leaves_it_the_models() -> None:
    conversation = Conversation()
    conversation.add(EntryKind.MESSAGE, body={"role": "user", "content": "go"})
    conversation.add(**_asked(stop="pause_turn"))
    conversation.add(EntryKind.RESTART, body={"masks": {}, "carried": 1, "system": None}, text="again")
    assert [m["role"] for m in conversation.ready()] == ["user", "assistant", "user"]
    assert conversation.ready()[1]["content"] == _asked()["body"]["content"]
