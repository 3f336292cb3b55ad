"""What every section of the configuration is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """One table of the file: frozen, and an unknown key in it is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
