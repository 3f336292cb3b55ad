"""Each kind of work: tasks, the repair of incidents, and exploring."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from operator_core.config.section import Section

__all__ = ["BlockedPattern", "ClaudeCodeSettings", "ExploreSettings", "IncidentSettings", "TaskSettings"]


class TaskSettings(Section):
    """How tasks that people submit are worked on."""

    root: Path | None = None
    """Where ``Operator Sessions`` is. None: beside an SQLite file, else ``~/.operator``."""
    engine: Literal["anthropic", "claude-code"] = "anthropic"
    """Of tasks that name none: our own loop over the Messages API, or the Claude Code CLI."""
    max_iterations: int = Field(default=10, ge=1, le=10)
    """How often a worker may try before the task is escalated."""
    verifier_model: str | None = None
    """Model of the verifier agent; None: the worker's."""
    require_checks: bool = False
    """Without a frozen check a task then ends as unproven, whatever a verifier agent says."""
    max_workspace_bytes: int = Field(default=4 << 30, gt=0)
    """A larger workspace is not copied, so that its work cannot be proved."""
    max_workspace_files: int = Field(default=500_000, gt=0)
    """Likewise."""


class ClaudeCodeSettings(Section):
    """The Claude Code CLI, for tasks with the engine ``claude-code``."""

    program: Path | None = None
    """The program. None: the one of the package ``claude-agent-sdk`` (`pip install 'operator-core[claude-code]'`)."""
    max_retries: int = Field(default=3, ge=0, le=20)
    """How often the CLI repeats a failing request; then the session rests and goes on later."""
    max_output_tokens: int = Field(default=32_000, ge=1)
    """Longest answer, in tokens; so much is reserved in the budget for each call."""
    memory_bytes: int = Field(default=4 << 30, ge=1 << 30)
    """Most data memory of one process of the agent; the CLI does not start with less than 1 GiB."""


class IncidentSettings(Section):
    """How repairs of incidents are judged, beside the clauses of their invariants."""

    verifier: bool = False
    """A verifier agent must also read what was changed, and fail to refute the repair."""


class BlockedPattern(Section):
    """A command that the advisor refuses."""

    pattern: str
    """A regular expression, searched for in the command."""
    reason: str
    """What the agent is told."""


class ExploreSettings(Section):
    """``operator explore``: an autonomous session in a workspace of its own."""

    shell_timeout_s: float = Field(default=30.0, gt=0)
    """Limit of one command."""
    blocked: tuple[BlockedPattern, ...] | None = None
    """Commands to refuse; replaces the built-in list. It is advice to the agent and no boundary: the sandbox is."""
    max_restarts: int | None = Field(default=None, ge=0)
    """How often it may begin anew with a fresh context; None: no limit."""
    auto_restart: bool = True
    """Without it, a full context pauses the session until a person says `operator explore resume`."""
