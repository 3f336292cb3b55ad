"""Ouroboros' contracts: the system prompt around an operator's own, and three tools with their dispatch."""

from __future__ import annotations

from operator_core.agent_lab.ouroboros import system_prompt, tools

__all__ = ["system_prompt", "tools"]
