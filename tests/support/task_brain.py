"""A scripted engine for tasks: each role is a script of its own, chosen by the tools of the request."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Router, Turn

__all__ = [
    "APPROVE",
    "REJECT",
    "Role",
    "blocked",
    "done",
    "hello",
    "role_of",
    "run",
    "sh",
    "sweep",
    "task_brain",
    "verdict",
]

Role = Sequence[Reply] | Callable[[Turn], Reply | Awaitable[Reply]]
"""Replies by step (the last one again and again), or a function, plain or ``async``."""

_PARSED = json.dumps({"task_description": "Make the file hello.", "success_criteria": "hello says hello"})


def sh(command: str, **more: Any) -> Call:
    """A shell call."""
    return Call("shell", {"command": command, "reasoning": "test", **more})


def run(*commands: str) -> Reply:
    """A reply that runs commands."""
    return Reply(calls=tuple(sh(command) for command in commands))


def done(text: str = "It is made.") -> Reply:
    """The worker says that it is done."""
    return Reply(text=f"{text}\nSTATUS: done")


def blocked(reason: str) -> Reply:
    """The worker asks a person."""
    return Reply(text=f"I cannot go on.\nSTATUS: blocked - {reason}")


def verdict(approved: bool, feedback: str = "", **fields: Any) -> Reply:
    """The verifier's verdict."""
    values: dict[str, Any] = {
        "approved": approved,
        "feedback": feedback,
        "testing_done": "ran it",
        "results": "as they should be" if approved else "wrong",
        "criteria_met": ["it says hello"] if approved else [],
        "criteria_failed": [] if approved else ["it says hello"],
        "expert_comparison": "what experts would do",
    }
    return Reply(calls=(Call("submit_verdict", {**values, **fields}),))


TEST = run("sh ./hello || python3 -c 'print(open(\"hello\").read())'")
APPROVE: Role = (TEST, verdict(True))
REJECT: Role = (TEST, verdict(False, "It does not say hello loudly enough."))


def role_of(turn: Turn) -> str:
    """``parser``, ``worker``, ``verifier`` or ``summarizer``."""
    if "submit_verdict" in turn.tools:
        return "verifier"
    if "report_done" in turn.tools:
        return "worker"
    return "parser" if "task_description" in turn.system else "summarizer"


def task_brain(worker: Role, verifier: Role = APPROVE, **others: Role) -> Brain:
    """A brain whose roles are scripts.

    Args:
        worker: Of every worker phase.
        verifier: Of every verifier phase.
        others: ``parser`` and ``summarizer``, where the defaults are not wanted.
    """
    roles: Mapping[str, Role] = {
        "worker": worker,
        "verifier": verifier,
        "parser": (Reply(text=_PARSED),),
        "summarizer": (Reply(text="# Task Summary: hello\n\n- The file is made.\n- It was tested."),),
        **others,
    }

    def reply(turn: Turn) -> Reply | Awaitable[Reply]:
        role = roles[role_of(turn)]
        return role(turn) if callable(role) else role[min(turn.step, len(role) - 1)]

    brain = FunctionBrain(reply)
    return Router(default=brain, summaries=brain)  # which would else answer all that has no tools


def hello() -> Brain:
    """The shortest task that is done and verified: two turns of the worker, two of the verifier."""
    return task_brain((run("printf 'echo hello\\n' > hello"), done()))


# ---- for crashes: agents that look at what was really done, and leave a trace of each effect

_FOLDER = re.compile(r"^(/.+/attempt-\d+)/TASK\.md is the task", re.MULTILINE)


def sweep() -> Brain:
    """A task with a rejection in it, and in each phase something that may be interrupted.

    The name of a file that a command writes is the call itself: how often it was executed is the number of its lines.
    """
    return task_brain(_sweep_worker, _sweep_verifier)


def _executed(turn: Turn) -> set[str]:
    """What really ended well, by the reasoning of the calls."""
    return {
        str(r.input["reasoning"])
        for r in turn.history()
        if r.name == "shell" and r.data is not None and r.data.get("exit_code") == 0
    }


def _effect(turn: Turn, item: str, more: str) -> Call:
    return Call("shell", {"command": f"echo x >> effect-{item}-{turn.step}; {more}", "reasoning": item})


def _sweep_worker(turn: Turn) -> Reply:
    done_ = _executed(turn)
    again = "loudly enough" in turn.first_text
    if again:
        if "louder" not in done_:
            return Reply(text="Louder.", calls=(_effect(turn, "louder", "printf 'echo HELLO\\n' > hello"),))
        return Reply(calls=(Call("report_done", {"summary": "It is loud now."}),))
    left = [item for item in ("one", "two") if item not in done_]
    if left:
        calls = [_effect(turn, item, "printf 'echo hello\\n' > hello") for item in left]
        if turn.step == 0:
            calls.insert(1, Call("nonsense", {}))
        return Reply(text=f"Now {left}.", thinking="Next.", calls=tuple(calls))
    if not any("STATUS" in str(m["content"]) for m in turn.messages[1:] if m["role"] == "user"):
        return Reply(text="I think that is all.")
    return done("It is made.")


def _sweep_verifier(turn: Turn) -> Reply:
    if "try" not in _executed(turn):
        found = _FOLDER.search(turn.system)
        loud = "loud" in turn.first_text.rpartition("LATEST WORKER OUTPUT")[2]
        trace = f"{found[1]}/effect-{'second' if loud else 'first'}-{turn.step}" if found else "/dev/null"
        # Its workspace is a copy that is gone in the end; without a sandbox it can leave the trace elsewhere.
        command = f"{{ echo x >> '{trace}'; }} 2>/dev/null; sh ./hello"
        return Reply(calls=(Call("shell", {"command": command, "reasoning": "try"}),))
    said = "".join(str(r.data.get("stdout")) for r in turn.history() if r.data and r.input.get("reasoning") == "try")
    return verdict(True) if "HELLO" in said else verdict(False, "It does not say hello loudly enough.")
