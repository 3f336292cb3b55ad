"""Ouroboros' safety layer: commands are advised against, writes stay in the workspace, and a sandbox is around both.

What holds is the sandbox. The :class:`~operator_core.safety.commands.CommandFilter` and the advisor tell an agent early
and in words that a command is not wanted; anybody can write a command that they do not recognise.
"""

from __future__ import annotations

from operator_core.safety.advice import CommandAdvisor
from operator_core.safety.commands import BlockedCommand, CommandFilter
from operator_core.safety.guard import WorkspaceGuard
from operator_core.safety.layer import ExecResult, SafetyConfig, SafetyLayer

__all__ = [
    "BlockedCommand",
    "CommandAdvisor",
    "CommandFilter",
    "ExecResult",
    "SafetyConfig",
    "SafetyLayer",
    "WorkspaceGuard",
]
