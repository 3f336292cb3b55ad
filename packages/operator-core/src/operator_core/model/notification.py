"""Who is told what: the channels and rules of notifications (`[notify]`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Channel", "NotifyRule"]


class Channel(BaseModel):
    """One way to reach people or programs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """What rules call it."""
    kind: Literal["apprise", "webhook"]
    """``apprise``: Slack, Teams, e-mail and many others; ``webhook``: a signed POST of JSON."""


class NotifyRule(BaseModel):
    """What a channel is told; all conditions that are given must hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    channels: tuple[str, ...] = Field(min_length=1)
    """Names of channels."""
