"""The second engine: the real Claude Code CLI, one process for each phase, inside our sandbox.

The CLI has no network but a loopback port that leads to a proxy of ours (:mod:`.proxy`). The proxy holds the API key,
keeps the budget, and journals each reply of the model before the CLI can act on it. What the CLI prints
(:mod:`.events`) adds the results of its tools and the live progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operator_core.agent_lab.claude_code.program import find_program, program_version
    from operator_core.agent_lab.claude_code.run import CliPhase, CliResult, run_claude_code

__all__ = ["CliPhase", "CliResult", "find_program", "program_version", "run_claude_code"]

_HOMES = {"program": ("find_program", "program_version"), "run": ("CliPhase", "CliResult", "run_claude_code")}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
