"""Rules that let an act of the agent wait for a person's word (`[approvals]`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["ApprovalRule", "ApprovalState"]

ApprovalState = Literal["pending", "approved", "denied", "expired", "used"]


class ApprovalRule(BaseModel):
    """One rule; the first one that matches decides."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    decision: Literal["allow", "ask", "deny"]
    """What happens to a call that matches."""
    tool: str = "*"
    """Name of the tool, with ``*`` for anything."""
