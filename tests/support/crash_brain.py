"""The brain of the crash tests: an agent that works through a list, and does again what it is told was not done."""

from __future__ import annotations

from operator_core.agent_lab.prompts import NUDGE
from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Turn

__all__ = ["long", "short"]


def _done(turn: Turn) -> set[str]:
    return {
        str(r.input["reasoning"])
        for r in turn.history()
        if r.name == "shell" and r.data is not None and r.data.get("exit_code") == 0
    }


def _call(turn: Turn, item: str, more: str) -> Call:
    # The name of the file is the call: how often it was executed is the number of lines in it.
    return Call("shell", {"command": f"echo x >> effect-{item}-{turn.step}; {more}", "reasoning": item})


def _brain(groups: list[list[str]], more: str, *, odd: bool) -> Brain:
    def reply(turn: Turn) -> Reply:
        done = _done(turn)
        for group in groups:
            left = [item for item in group if item not in done]
            if left:
                calls = [_call(turn, item, more) for item in left]
                if odd and turn.step == 0:
                    calls.insert(1, Call("nonsense", {}))
                return Reply(text=f"Now {left}.", thinking="Next.", calls=tuple(calls))
        if odd and not any(m["content"] == NUDGE for m in turn.messages):
            return Reply(text="I think that is all.")
        if "fix" not in done:
            return Reply(calls=(_call(turn, "fix", "touch fixed"),))
        return Reply(calls=(Call("propose_resolution", {"summary": "The list is done."}),))

    return FunctionBrain(reply)


def short() -> Brain:
    """Two calls at once (and one of a tool that does not exist), an end without outcome, the fix."""
    return _brain([["a", "b"]], "true", odd=True)


def long() -> Brain:
    """Five calls in three groups, each taking half a second, and the fix."""
    return _brain([["a"], ["b", "c"], ["d", "e"]], "sleep 0.5", odd=False)
