"""Who acts: people and programs that came in with a token, and what their roles allow."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Actor", "Role"]


class Role(StrEnum):
    """Each role may do what those before it may."""

    VIEWER = "viewer"
    """Read everything."""
    OPERATOR = "operator"
    """Also submit, reply, steer, cancel, reopen, resolve, approve."""
    ADMIN = "admin"
    """Also tokens, drain of workers, settings."""

    def allows(self, other: Role) -> bool:
        """Whether this role may do what ``other`` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class Actor(NamedTuple):
    """Who does something, as the ledger records it.

    Attributes:
        name: Name of the token, or ``person`` on the command line.
        via: How it came: ``cli``, ``api``, ``console``, ``mcp``, ``link``, ``intake``.
        token_id: Of the token; None on the command line.
    """

    name: str
    role: Role
    via: str = "api"
    token_id: str | None = None

    def __str__(self) -> str:
        return self.name if self.via == "cli" else f"{self.name} ({self.via})"
