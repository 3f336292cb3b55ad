"""An autonomous agent in a workspace of its own: its tools, what it is told, and when it has to slow down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from operator_core.agent_lab.profiles import Profile
from operator_core.agent_lab.toolbox.discovery import DISCOVERY
from operator_core.agent_lab.toolbox.files import FILE_EDIT, FILE_READ, FILE_WRITE
from operator_core.agent_lab.toolbox.jobs import job_tools
from operator_core.agent_lab.toolbox.shell import shell_exec_tool
from operator_core.agent_lab.toolbox.tool import Tool
from operator_core.errors import LimitReached
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.safety.layer import SafetyLayer

__all__ = ["NUDGE", "OPENING", "SAME_TURNS", "continuity", "describe", "explorer_profile", "pause_after"]

OPENING = (
    "You are running now, on your own: nobody answers questions, and your work does not end when your turn does. "
    "Decide yourself what to do, and keep in files of the workspace what you will need later."
)
NUDGE = "[No tool was called. Nobody reads along; go on with your work.]"
SAME_TURNS = 10
"""After so many turns that are the same, results included, it is stopped."""

_PATIENT = 2
_LONGEST_PAUSE_S = 60.0


def explorer_profile(safety: SafetyLayer) -> Profile:
    """Its profile.

    Args:
        safety: Judges its commands.
    """
    return Profile(
        name="ouroboros",
        endings=(),
        nudge=NUDGE,
        ending=lambda text: None,
        silent=Outcome(OutcomeKind.NO_OUTCOME, "The agent stopped."),
        kit=(shell_exec_tool(safety), FILE_READ, FILE_WRITE, FILE_EDIT, *job_tools(safety), DISCOVERY),
        tireless=True,
    )


def describe(kit: Sequence[Tool]) -> str:
    """The tools with their parameters, for the system prompt."""
    parts = []
    for tool in kit:
        schema: Any = tool.schema.to_dict()
        properties = dict(schema["input_schema"].get("properties") or {})
        lines = [f"### {schema['name']}", str(schema.get("description", "")).strip(), "Parameters:"]
        for name, value in properties.items():
            needed = "required" if name in (schema["input_schema"].get("required") or ()) else "optional"
            about = value.get("description", "")
            lines.append(f"  - {name} ({value.get('type', 'string')}, {needed}): {about}".rstrip())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def continuity(number: int) -> str:
    """What the system prompt adds when the context was begun anew.

    Args:
        number: Of the context; the first is 1.
    """
    return (
        f"## Session Continuity\n\nThis is session #{number}. The context of the one before was full. Its last turns "
        "may stand at the beginning of the conversation; everything else that you know is in the files of your "
        "workspace. Look there for the state of your work before you go on. Your system prompt was read again from "
        "SYSTEM_PROMPT.md just now; you may change that file."
    )


def pause_after(same: int, idle: int) -> float:
    """Seconds to wait before the next request.

    Args:
        same: How many turns in a row were the same as one shortly before.
        idle: How many replies in a row called no tool.

    Raises:
        LimitReached: It goes round in circles.
    """
    if same >= SAME_TURNS:
        raise LimitReached(
            f"The agent did the same thing {same + 1} times in a row, with the same result, and was stopped; change "
            "its SYSTEM_PROMPT.md and begin again."
        )
    excess = max(same, idle) - _PATIENT
    return min(_LONGEST_PAUSE_S, 2.0 ** (excess - 1)) if excess > 0 else 0.0
