"""Removing what an agent left behind, however deep it is and whatever rights it has; no link is ever followed."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from operator_core import clock
from operator_core.sandbox.linux.beneath import PATH_ONLY

__all__ = ["remove_tree"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays, and nothing is raised.

    Folders inside of folders are moved up before they are emptied, so that a tree of any depth needs no more than two
    open folders: ``shutil.rmtree`` gives up at a thousand.
    """
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.lstat(path).st_mode) or not path.is_dir():
            os.unlink(path)
            return
        os.chmod(path, 0o700)
        top = os.open(path, _FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path)


def _empty(top: int) -> None:
    mark, count = clock.new_id(), 0
    before: list[str] = []
    while (names := sorted(os.listdir(top))) and names != before:
        before = names
        for name in names:
            folder = _open(top, name)
            if folder is None:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=top)
                continue
            try:
                for inner in os.listdir(folder):
                    if _is_folder(folder, inner):
                        count += 1
                        with contextlib.suppress(OSError):
                            _open_up(folder, inner)
                            os.rename(inner, f"{mark}-{count}", src_dir_fd=folder, dst_dir_fd=top)
                    else:
                        with contextlib.suppress(OSError):
                            os.unlink(inner, dir_fd=folder)
            finally:
                os.close(folder)
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=top)


def _open(parent: int, name: str) -> int | None:
    """The folder of that name; None if it is something else."""
    if not _is_folder(parent, name):
        return None
    with contextlib.suppress(OSError):
        _open_up(parent, name)
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError:
        return None


def _open_up(parent: int, name: str) -> None:
    """Take back our own rights to a folder; a link that has just been put in its place is not followed."""
    if PATH_ONLY == os.O_RDONLY:  # not Linux: one that we may not read could not be opened
        os.chmod(name, 0o700, dir_fd=parent)
        return
    fd = os.open(name, PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _is_folder(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False
