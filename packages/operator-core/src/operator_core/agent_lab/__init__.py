"""Agent Lab: v3.0 autonomous agent with shell access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operator_core.agent_lab.audit import SessionAuditor
    from operator_core.agent_lab.loop import run_agent_loop
    from operator_core.agent_lab.prompts import SYSTEM_PROMPT
    from operator_core.agent_lab.tools import shell

__all__ = ["SYSTEM_PROMPT", "SessionAuditor", "run_agent_loop", "shell"]

_HOMES = {"SYSTEM_PROMPT": "prompts", "SessionAuditor": "audit", "run_agent_loop": "loop", "shell": "tools"}


def __getattr__(name: str) -> Any:
    # The loop imports the SDK, which takes a second: only who asks for it pays.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
