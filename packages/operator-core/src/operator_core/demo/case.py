"""Commands that a brain knows, and what a conversation says so far about them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from operator_core.scripted.brain import Call, Reply
from operator_core.scripted.turn import Result, Turn

__all__ = ["TRIES", "Case", "Step", "brief", "run_step"]

TRIES = 3
"""So often a change is made, or a look that brings nothing is repeated, before it is given up."""


@dataclass(frozen=True)
class Step:
    """A command, why it is run, and which earlier looks it makes worthless."""

    command: str
    why: str
    outdates: tuple[str, ...] = ()


class Case:
    """What the conversation says so far about some steps.

    Attributes:
        known: By step, the result of its last run, if that is known and nothing has outdated it.
        tries: How often each change was made, whatever came of it, and how often each look has brought nothing since
            it last brought something.
        last: The step that was run last; ``""`` if none was.
        unsure: The result of that step says nothing.
    """

    def __init__(self, turn: Turn, steps: Mapping[str, Step]) -> None:
        self.known: dict[str, Mapping[str, Any]] = {}
        self.tries: Counter[str] = Counter()
        self.last = ""
        self.unsure = False
        names = {step.command: name for name, step in steps.items()}
        for result in turn.history():
            name = names.get(str(result.input.get("command"))) if result.name == "shell" else None
            if name is None:
                continue
            self.last = name
            self.tries[name] += 1
            for old in (name, *steps[name].outdates):
                self.known.pop(old, None)
            self.unsure = not _is_known(result)
            if result.data is not None and not self.unsure:
                self.known[name] = result.data
                if not steps[name].outdates:
                    self.tries[name] = 0

    def worked(self, name: str) -> bool:
        """Whether the step is known to have ended with 0."""
        return name in self.known and self.known[name]["exit_code"] == 0

    def printed(self, name: str) -> str:
        """What the step printed, standard output first."""
        result = self.known.get(name, {})
        return f"{result.get('stdout') or ''}{result.get('stderr') or ''}".strip()

    def json(self, name: str) -> dict[str, Any] | None:
        """The JSON object that the step printed, after an optional first line; None if it is not one."""
        text = str(self.known.get(name, {}).get("stdout") or "")
        try:
            value = json.loads(text[text.index("{") :])
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def run_step(step: Step, text: str) -> Reply:
    """The reply that runs a step, with some words before it."""
    return Reply(text=text, calls=(Call("shell", {"command": step.command, "reasoning": step.why}),))


def brief(text: str, *, last: bool = False) -> str:
    """A text, or its last line, on one line; at most its last 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (" ".join(lines[-1:] if last else lines) or "nothing")[-300:]


def _is_known(result: Result) -> bool:
    data = result.data
    return data is not None and type(data.get("exit_code")) is int and not data.get("timed_out")
