"""What a test of a context that fills up needs: an agent that talks much, and what its requests must have been."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from operator_core.agent_lab.history import fold
from operator_core.model.entry import Entry, EntryKind
from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Turn

__all__ = ["assert_only_folds_were_sent", "assert_sent_is_journaled", "chatty", "counting", "wordy"]

_COUNT = re.compile(r"step (\d+) of")


def counting(steps: int, *, output: int = 3000, end: str = "propose_resolution", fix: str = "touch fixed") -> Brain:
    """An agent whose every command prints much, and which counts its steps in a file, so that a restart loses none.

    Each step appends a line to ``steps``; after the last one it runs ``fix``, and then ends.
    """

    def reply(turn: Turn) -> Reply:
        done = max((int(n) for r in turn.results for n in _COUNT.findall(r.text)), default=0)
        if turn.results and turn.results[-1].input.get("reasoning") == "fix":
            return Reply(calls=(Call(end, {"summary": "All steps are done."}),))
        if done >= steps:
            return Reply(calls=(Call("shell", {"command": fix, "reasoning": "fix"}),))
        command = (
            f"n=$(wc -l < steps 2>/dev/null || echo 0); n=$((n+1)); echo $n >> steps; head -c {output} /dev/zero | "
            f"tr '\\0' 'x'; echo; echo \"step $n of {steps}\""
        )
        return Reply(text=f"After step {done}.", calls=(Call("shell", {"command": command, "reasoning": "go on"}),))

    return FunctionBrain(reply)


def wordy(steps: int) -> Brain:
    """One whose own words fill the context, which no mask can help."""
    inner = counting(steps, output=10)

    async def reply(turn: Turn) -> Any:
        answer = await inner.reply(turn)
        assert isinstance(answer, Reply)
        return Reply(text="Let me think about it. " * 60, calls=answer.calls)

    return FunctionBrain(reply)


def chatty() -> Brain:
    """One that fills a small context with its words and with what its commands print, in fourteen steps."""
    inner = counting(14, output=2200)

    async def reply(turn: Turn) -> Any:
        answer = await inner.reply(turn)
        assert isinstance(answer, Reply)
        return Reply(text="Let me think about it. " * 45, thinking="Hm.", calls=answer.calls)

    return FunctionBrain(reply)


def assert_only_folds_were_sent(entries: Sequence[Entry], sent: Sequence[Any], phase: str = "worker_1") -> None:
    """Every request, also one whose reply was lost, had the messages of a fold of some beginning of the journal."""
    folds = set()
    for i, entry in enumerate(entries, 1):
        if entry.phase == phase:
            conversation = fold(entries[:i], phase)
            if not conversation.open_calls and not conversation.unanswered:
                folds.add(json.dumps(conversation.ready()))
    strangers = [i for i, messages in enumerate(sent) if json.dumps(messages) not in folds]
    assert strangers == [], f"requests {strangers} of {len(sent)} are not what the journal says"


def assert_sent_is_journaled(entries: Sequence[Entry], sent: Sequence[Any], phase: str = "worker_1") -> None:
    """Each request that was answered had the messages, byte for byte, of a fold of the journal up to its reply."""
    folds = [
        json.dumps(fold(entries[:i], phase).ready())
        for i, entry in enumerate(entries)
        if entry.phase == phase and entry.entry_type == EntryKind.MESSAGE and entry.body["role"] == "assistant"
    ]
    asked = [json.dumps(messages) for messages in sent]
    missing = [i for i, text in enumerate(folds) if text not in asked]
    assert missing == [], f"replies {missing} of {len(folds)} answer a request that was never made"
