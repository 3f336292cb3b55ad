"""Reading and writing one file inside of the places a sandbox shows.

A path is walked name by name through the same table of mounts that commands have, with each directory held open. Links
are read and followed here, never by the kernel: a link to ``/tmp/x`` leads to the ``/tmp`` of the session, as it does
for a command, and nothing leads outside, whoever swaps directories and links meanwhile. What may be done is decided by
where the walk really ends, so that a link in the workspace is no way around a protected path.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from operator_core.errors import SandboxError
from operator_core.sandbox.linux.beneath import PATH_ONLY, kind, make_directory, read_plain, replace_plain
from operator_core.sandbox.protocol import FileView

__all__ = ["Place", "read", "write"]

_LOOK = PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = 40


class Place(NamedTuple):
    """A directory that a sandbox shows.

    Attributes:
        inside: Its path for a command.
        host: Its path here; None for a part of another place that has an access of its own.
        access: ``write``, ``read``, ``public`` (only what every user of this machine can read) or ``none`` (hidden).
    """

    inside: str
    host: Path | None
    access: str


class _Outside(Exception):
    """The path leads to what the sandbox does not show."""


class _End(NamedTuple):
    """Where a walk ended.

    Attributes:
        path: The real path, as a command sees it.
        parent: The directory, open; None if the end is a place itself, or a part of the table only.
        name: The last name; empty if the end is a directory that was walked through.
        place: The place that the end is, if it is one.
    """

    path: str
    parent: int | None
    name: str
    place: Place | None = None


class _Walk:
    """One walk through the table; holds the directories of the path open until it is closed."""

    def __init__(self, places: Sequence[Place], *, create: bool) -> None:
        self._places = places
        self._create = create
        self._rooms = {place.inside: place for place in places if place.host is not None}
        # Of a directory that exists only because something is mounted below it there is nothing to hold open.
        self._stack: list[tuple[str, int | None]] = []

    def close(self) -> None:
        self._empty()

    def access(self, path: str) -> str:
        """What may be done at a path; empty if it is not shown."""
        best = ""
        length = -1
        for place in self._places:
            inside = place.inside
            # The longest wins; of equals the later one, as with mounts.
            if len(inside) >= length and (path == inside or path.startswith(inside.rstrip("/") + "/")):
                best, length = place.access, len(inside)
        return best

    def to(self, path: str) -> _End:
        """Walk a path that begins with ``/``.

        Raises:
            _Outside: It leads to what the sandbox does not show.
            SandboxError: It leads to what is hidden.
            OSError: A directory on the way is missing or is none.
        """
        names = _names(path)
        self._restart()
        links = 0
        while names:
            name = names.pop()
            if name == ".":
                continue
            if name == "..":
                self._up()
                continue
            here, fd = self._stack[-1]
            there = posixpath.join(here, name)
            if self.access(there) == "none":
                raise SandboxError(f"`{there}` is hidden in this sandbox; ask for it to be taken off the masked paths.")
            if (place := self._rooms.get(there)) is not None:
                assert place.host is not None
                if not names and not place.host.is_dir():
                    return _End(there, None, "", place)
                self._stack.append((there, os.open(place.host, PATH_ONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
                continue
            child, mode = self._look(there, name, fd, names)
            if child is not None and stat.S_ISLNK(mode):
                target = os.readlink("", dir_fd=child)
                os.close(child)
                links += 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, "there are too many links, or they lead in a circle")
                names += _names(target)
                if target.startswith("/"):
                    self._restart()
            elif mode and stat.S_ISDIR(mode):
                self._stack.append((there, child))
                if child is not None and not mode & stat.S_IXOTH and self.access(there) == "public":
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            elif names:
                if child is not None:
                    os.close(child)
                raise NotADirectoryError(errno.ENOTDIR, f"`{there}` is {kind(mode)} and not a directory")
            else:
                if child is not None:
                    os.close(child)
                return _End(there, fd, name)
        return _End(self._stack[-1][0], None, "")

    def _look(self, path: str, name: str, fd: int | None, rest: list[str]) -> tuple[int | None, int]:
        """Open what is at a path, not following a link; mode 0: nothing is there, and it is the end of the path."""
        mounted = any(inside.startswith(path + "/") for inside in self._rooms)
        child = None
        if fd is not None:
            child = self._open(path, name, fd, [] if mounted else rest)
        if child is None:
            if fd is None and not mounted:
                raise _Outside
            return None, stat.S_IFDIR if mounted else 0
        mode = os.fstat(child).st_mode
        if mounted and not stat.S_ISDIR(mode):
            os.close(child)
            return None, stat.S_IFDIR
        return child, mode

    def _open(self, path: str, name: str, fd: int, rest: list[str]) -> int | None:
        try:
            return os.open(name, _LOOK, dir_fd=fd)
        except FileNotFoundError:
            if set(rest) <= {"."}:
                return None
            if not self._create:
                raise
        # Below what does not exist there is no link, so that it is known where the path ends: nothing is made on the
        # way to a refusal.
        for end in (path, posixpath.normpath(posixpath.join(path, *reversed(rest)))):
            if not (access := self.access(end)):
                raise _Outside
            if access != "write":
                raise _write_protected(end)
        make_directory(fd, name)
        return os.open(name, _LOOK, dir_fd=fd)

    def _up(self) -> None:
        if len(self._stack) > 1:
            _, fd = self._stack.pop()
            if fd is not None:
                os.close(fd)

    def _empty(self) -> None:
        while self._stack:
            _, fd = self._stack.pop()
            if fd is not None:
                os.close(fd)

    def _restart(self) -> None:
        self._empty()
        root = self._rooms.get("/")
        fd = None
        if root is not None and root.host is not None:
            fd = os.open(root.host, PATH_ONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._stack.append(("/", fd))


def _names(path: str) -> list[str]:
    """The names of a path, the last one first. A dot behind a name, or a slash, says that it is a directory."""
    path = path + "." if path.endswith("/") else path
    return [name for name in reversed(path.split("/")) if name]


@contextmanager
def _walk(places: Sequence[Place], path: str, cwd: str, verb: str) -> Iterator[tuple[_Walk, _End]]:
    if "\0" in path:
        raise SandboxError("The path holds a NUL character; give a real path.")
    full = posixpath.join(cwd, path)
    walk = _Walk(places, create=verb == "write")
    try:
        yield walk, walk.to(full)
    except _Outside:
        raise _outside(full) from None
    except OSError as error:
        raise SandboxError(f"Cannot {verb} `{posixpath.normpath(full)}`: {error.strerror or error}.") from error
    finally:
        walk.close()


def _outside(path: str) -> SandboxError:
    return SandboxError(
        f"`{posixpath.normpath(path)}` is outside of what this sandbox shows; use a path in the workspace."
    )


def _write_protected(path: str) -> SandboxError:
    return SandboxError(f"`{path}` is write-protected in this sandbox; write somewhere else in the workspace.")


def read(places: Sequence[Place], path: str, cwd: str, offset: int, limit: int) -> FileView:
    """See :meth:`Sandbox.read_file`."""
    with _walk(places, path, cwd, "read") as (walk, end):
        access = walk.access(end.path)
        if not access:
            raise _Outside
        if end.place is None and end.parent is None:
            raise SandboxError(f"`{end.path}` is a directory; list it with the shell.")
        # A pipe must not keep us waiting for a writer. A link that was not there a moment ago is refused.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        if end.place is not None and end.place.host is not None:
            fd = os.open(end.place.host, flags)
        else:
            mode = os.stat(end.name, dir_fd=end.parent, follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode):  # opening a device may already do something
                raise SandboxError(f"`{end.path}` is {kind(mode)} and not a plain file; use the shell to look at it.")
            fd = os.open(end.name, flags | os.O_NOFOLLOW, dir_fd=end.parent)
        try:
            if access == "public" and not os.fstat(fd).st_mode & stat.S_IROTH:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            data, size = read_plain(fd, offset, limit)
        finally:
            os.close(fd)
        return FileView(end.path, data, max(0, offset), size)


def write(places: Sequence[Place], path: str, cwd: str, data: bytes) -> None:
    """See :meth:`Sandbox.write_file`."""
    with _walk(places, path, cwd, "write") as (walk, end):
        if walk.access(end.path) != "write" or end.parent is None:
            if end.place is None and not end.name:
                raise SandboxError(f"`{end.path}` is a directory; give the path of a file in it.")
            raise _write_protected(end.path)
        replace_plain(end.parent, end.name, data)
