"""Profiles: which tools an agent has, and how its conversation ends."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from anthropic import beta_async_tool
from anthropic.lib.tools import BetaAsyncFunctionTool

from operator_core.agent_lab.gateway import text_of
from operator_core.agent_lab.prompts import NUDGE, STATUS_NUDGE
from operator_core.agent_lab.toolbox.files import FILE_EDIT, FILE_READ, FILE_WRITE
from operator_core.agent_lab.toolbox.jobs import job_tools
from operator_core.agent_lab.toolbox.shell import SHELL
from operator_core.agent_lab.toolbox.tool import ONLY_A_SCHEMA, Tool
from operator_core.model.outcome import Outcome, OutcomeKind

__all__ = ["ONLY_A_SCHEMA", "OPERATOR", "WORKER", "OutcomeTool", "Profile", "status_line"]

_STATUS = re.compile(r"STATUS:\s*(done|blocked)\b\s*(.*)\Z", re.IGNORECASE)


class OutcomeTool(NamedTuple):
    """A tool that ends the conversation.

    Attributes:
        schema: Its name, description and parameters.
        read: Makes the outcome of its arguments; refuses with :class:`ToolRefused`, and the conversation goes on.
        said: The tool's answer.
    """

    schema: BetaAsyncFunctionTool[Any]
    read: Callable[[dict[str, Any]], Awaitable[Outcome]]
    said: str


@dataclass(frozen=True)
class Profile:
    """How one kind of agent works.

    Attributes:
        name: For the journal.
        endings: Its outcome tools.
        nudge: What it is told when its turn ends without an outcome.
        ending: Reads an outcome from the last words of a turn, if they say one.
        silent: The outcome when it was asked once and still says none.
        kit: The tools with which it works.
        tireless: Whether it is asked again and again: its turn ends, its work does not.
    """

    name: str
    endings: tuple[OutcomeTool, ...]
    nudge: str
    ending: Callable[[str], Outcome | None]
    silent: Outcome
    kit: tuple[Tool, ...] = (SHELL,)
    tireless: bool = False

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of its tools, in order."""
        schemas = [*(tool.schema for tool in self.kit), *(tool.schema for tool in self.endings)]
        return tuple(schema.name for schema in schemas)


def status_line(text: str) -> Outcome | None:
    """The ``STATUS:`` of a worker's reply: its last line that is not empty, and nothing else (row B-017).

    What is quoted in the middle, in a longer line or in a code fence says nothing.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    match = _STATUS.match(lines[-1].strip("*_ ")) if lines else None
    if match is None:
        return None
    words, rest = "\n".join(lines[:-1]), match[2].strip().lstrip("-–—: ").strip()
    if match[1].lower() == "done":
        return None if rest.strip(".!") else Outcome(OutcomeKind.PROPOSED, words or "(the worker said nothing more)")
    return Outcome(OutcomeKind.BLOCKED, rest or words or "(no reason given)")


def _ends_with(kind: OutcomeKind, argument: str) -> Callable[[dict[str, Any]], Awaitable[Outcome]]:
    async def read(arguments: dict[str, Any]) -> Outcome:
        return Outcome(kind, text_of(arguments, argument))

    return read


@beta_async_tool
async def propose_resolution(summary: str) -> str:
    """Say that the cause is repaired. Your work on the ticket ends here and the platform looks for itself.

    Args:
        summary: The cause, what you changed, and what you observed afterwards.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def give_up(reason: str) -> str:
    """Hand the ticket to a person, because you cannot or must not repair it, or because nothing is wrong.

    Args:
        reason: What you found, and what a person needs to know or decide.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def report_done(summary: str) -> str:
    """Say that the task is complete. Your work ends here and is then tested by somebody else.

    Args:
        summary: What you made or changed, where it is, and how you tried it.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def report_blocked(reason: str) -> str:
    """Stop, because only a person can decide or supply what is missing; you go on here when they answer.

    Args:
        reason: The question, and what you found out so far.
    """
    raise AssertionError(ONLY_A_SCHEMA)


OPERATOR = Profile(
    "operator",
    (
        OutcomeTool(
            propose_resolution,
            _ends_with(OutcomeKind.PROPOSED, "summary"),
            "Noted. The platform now looks for itself.",
        ),
        OutcomeTool(give_up, _ends_with(OutcomeKind.GAVE_UP, "reason"), "Noted. The ticket goes to a person."),
    ),
    NUDGE,
    lambda text: None,
    Outcome(OutcomeKind.NO_OUTCOME, "The agent stopped twice without saying how the ticket ends."),
)
"""An SRE at work on an incident."""

WORKER = Profile(
    "worker",
    (
        OutcomeTool(
            report_done, _ends_with(OutcomeKind.PROPOSED, "summary"), "Noted. The work is now tested by somebody else."
        ),
        OutcomeTool(
            report_blocked, _ends_with(OutcomeKind.BLOCKED, "reason"), "Noted. A person is asked; wait for the answer."
        ),
    ),
    STATUS_NUDGE,
    status_line,
    Outcome(OutcomeKind.BLOCKED, "Status unclear - please clarify"),
    (SHELL, FILE_READ, FILE_WRITE, FILE_EDIT, *job_tools()),
)
"""The worker of a task."""
