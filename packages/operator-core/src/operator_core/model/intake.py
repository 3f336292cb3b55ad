"""What comes in from elsewhere: the doors for webhooks (`[[intake]]`)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Intake"]


class Intake(BaseModel):
    """One door for webhooks, at ``/api/v1/intake/<name>``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Part of its address."""
    kind: Literal["alertmanager", "webhook", "github"]
    """Whose form the messages have."""
    secret_env: str | None = None
    """Variable of the server that holds the secret which senders know. Either this or ``secret_file``."""
    secret_file: Path | None = None
    """File that holds it."""
