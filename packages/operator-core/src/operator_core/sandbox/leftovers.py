"""Session directories of workers that were killed: found beside a new one, and emptied."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from operator_core.sandbox.layout import Layout
from operator_core.sandbox.owner import is_left_over, owner
from operator_core.sandbox.removal import remove_tree

__all__ = ["MARK", "claim", "sweep_beside"]

MARK = "owner"
"""The file in a session directory that says whose it is."""


def claim(root: Path) -> None:
    """Say that a session directory is ours."""
    (root / MARK).write_text(owner(), encoding="ascii")


def sweep_beside(root: Path) -> None:
    """Empty the session directories in the same folder whose process is gone. Where they were is kept, for a resume."""
    with contextlib.suppress(OSError):
        for name in os.listdir(root.parent):
            other = root.parent / name
            if other != root and _is_left_over(other):
                for path in Layout.below(other)[1:]:
                    remove_tree(path)
                with contextlib.suppress(OSError):
                    (other / MARK).unlink()
                with contextlib.suppress(OSError):
                    other.rmdir()


def _is_left_over(folder: Path) -> bool:
    try:
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            return False
        return is_left_over((folder / MARK).read_text(encoding="ascii", errors="replace")[:100])
    except OSError:
        return False
