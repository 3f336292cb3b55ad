"""Where a session's files are: on the host, and as commands see them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["HOME", "ROOM", "SECRETS", "Layout"]

HOME = "/home/agent"
ROOM = "/run/operator"
SECRETS = "/run/secrets"


class Layout(NamedTuple):
    """The directories of a session on the host: all below the session directory, all 0700."""

    root: Path
    tmp: Path
    home: Path
    out: Path
    etc: Path
    state: Path

    @classmethod
    def below(cls, root: Path) -> Layout:
        """The layout of a session directory."""
        return cls(root, *(root / name for name in ("tmp", "home", "out", "etc", "state")))
