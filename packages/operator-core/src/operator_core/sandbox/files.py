"""Reading and writing one file inside of the places a sandbox shows. No link is followed, so none can lead outside."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from operator_core.clock import new_id
from operator_core.errors import SandboxError
from operator_core.sandbox.protocol import FileView

__all__ = ["Place", "read", "write"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Place(NamedTuple):
    """A directory that a sandbox shows.

    Attributes:
        inside: Its path for a command.
        host: Its path here; None for a part of another place that has an access of its own.
        access: ``write``, ``read``, or ``none`` (hidden).
    """

    inside: str
    host: Path | None
    access: str


def _find(places: Sequence[Place], path: str, cwd: str) -> tuple[str, Place, list[str]]:
    if "\0" in path:
        raise SandboxError("The path holds a NUL character; give a real path.")
    full = posixpath.normpath(posixpath.join(cwd, path))
    matches = [item for item in places if full == item.inside or full.startswith(item.inside.rstrip("/") + "/")]
    if not matches:
        raise SandboxError(f"`{full}` is outside of what this sandbox shows; use a path in the workspace.")
    # The longest wins; of equals the later one, as with mounts.
    place = max(enumerate(matches), key=lambda item: (len(item[1].inside), item[0]))[1]
    rooms = [item for item in matches if item.host is not None]
    if not rooms:
        raise SandboxError(f"`{full}` is outside of what this sandbox shows; use a path in the workspace.")
    if place.access == "none":
        raise SandboxError(f"`{full}` is hidden in this sandbox; ask for it to be taken off the masked paths.")
    # From a place that no command can replace by a link; below it no link is followed.
    room = max(enumerate(rooms), key=lambda item: (len(item[1].inside), item[0]))[1]
    rest = full[len(room.inside) :].strip("/")
    return full, room._replace(access=place.access), rest.split("/") if rest else []


def _open_parent(place: Place, parts: list[str], *, create: bool) -> int:
    assert place.host is not None
    fd = os.open(place.host, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for part in parts[:-1]:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
            child = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = child
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(places: Sequence[Place], path: str, cwd: str, offset: int, limit: int) -> FileView:
    """See :meth:`Sandbox.read_file`."""
    full, place, parts = _find(places, path, cwd)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if parts:
            parent = _open_parent(place, parts, create=False)
            try:
                fd = os.open(parts[-1], flags, dir_fd=parent)
            finally:
                os.close(parent)
        else:
            assert place.host is not None
            fd = os.open(place.host, flags)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise SandboxError(f"`{full}` is not a plain file; use the shell to look at it.")
            return FileView(full, os.pread(fd, max(0, limit), max(0, offset)), max(0, offset), info.st_size)
        finally:
            os.close(fd)
    except OSError as error:
        raise _refusal("read", full, error) from error


def write(places: Sequence[Place], path: str, cwd: str, data: bytes) -> None:
    """See :meth:`Sandbox.write_file`."""
    full, place, parts = _find(places, path, cwd)
    if place.access != "write" or not parts:
        raise SandboxError(f"`{full}` is write-protected in this sandbox; write somewhere else in the workspace.")
    try:
        parent = _open_parent(place, parts, create=True)
        try:
            _replace(parent, parts[-1], data)
        finally:
            os.close(parent)
    except OSError as error:
        raise _refusal("write", full, error) from error


def _replace(parent: int, name: str, data: bytes) -> None:
    mode = 0o644
    with contextlib.suppress(FileNotFoundError):
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"it is not a plain file: {name}")
        mode = info.st_mode & 0o777
    temporary = f".{name[:100]}.{new_id()[:8]}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        # A rename also breaks a hard link, whose other name may be outside.
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


def _refusal(verb: str, path: str, error: OSError) -> SandboxError:
    why = error.strerror or str(error)
    if error.errno in (40, 20):  # ELOOP, ENOTDIR: what O_NOFOLLOW says of a link
        why = "it is, or lies behind, a symbolic link or a file; use the shell"
    return SandboxError(f"Cannot {verb} `{path}`: {why}.")
