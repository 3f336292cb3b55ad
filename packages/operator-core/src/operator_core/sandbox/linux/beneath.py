"""Opening files strictly beneath a directory, whoever moves directories and links about meanwhile.

The kernel decides (``openat2`` with ``RESOLVE_BENEATH``), in the same step in which it opens: a path that is checked
first and opened afterwards is another path when somebody swaps a directory in between. Where ``openat2`` is missing,
a walk follows no link at all. A path that leads outside is an :class:`OSError` with ``EXDEV`` (or ``ELOOP``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import posixpath
import stat
import struct
import sys
from collections.abc import Callable

__all__ = [
    "PATH_ONLY",
    "kind",
    "lexical",
    "make_directory",
    "open_beneath",
    "open_parent",
    "parent_beneath",
    "read_plain",
    "replace_plain",
    "walk",
]

_OPENAT2 = 437  # on every architecture
_RESOLVE = 0x08 | 0x02  # RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS
_RACES = 128
_LINKS = 8
PATH_ONLY: int = getattr(os, "O_PATH", os.O_RDONLY)  # Linux has it
_DIRECTORY = PATH_ONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open a path that must not leave the directory ``root``; links that stay below it are followed.

    Raises:
        OSError: As ``open``; ``EXDEV`` if the path leads outside, or over a link with an absolute target.
    """
    if _syscall() is None:
        return walk(root, path, flags)
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE)
    for _ in range(_RACES):
        fd, number = _openat2(root, path, how)
        if fd >= 0:
            return fd
        if number in (errno.ENOSYS, errno.EPERM):  # EPERM: what a container's filter says of calls it does not know
            return walk(root, path, flags)
        if number != errno.EAGAIN:  # somebody moved a directory during the look-up
            raise OSError(number, os.strerror(number), path)
    raise OSError(errno.EAGAIN, "directories on the way are being moved all the time", path)


def walk(root: int, path: str, flags: int) -> int:
    """As :func:`open_beneath`, by hand and without following any link."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    fd = os.dup(root)
    try:
        for part in parts[:-1]:
            child = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = child
        last = os.open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)
    if stat.S_ISLNK(os.fstat(last).st_mode):  # O_PATH opens the link itself
        os.close(last)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return last


def lexical(path: str) -> str:
    """The path without ``.``, ``..`` and repeated slashes.

    Raises:
        OSError: ``EXDEV``: even as a text it leads outside. Nothing may be created on the way to such a path.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "the path holds a NUL character", path)
    normal = posixpath.normpath(path)
    if normal.startswith("/") or normal.split("/", 1)[0] == "..":
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return normal


def open_parent(root: int, path: str, *, create: bool = False) -> tuple[int, str]:
    """The directory that holds a path's last name, and that name.

    Args:
        root: A descriptor of the directory that must not be left.
        path: Relative to it.
        create: Make the directories that are missing; always inside of the root.

    Raises:
        OSError: It leads outside, or cannot be opened or made.
    """
    normal = lexical(path)
    parent, name = posixpath.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    try:
        return open_beneath(root, parent or ".", _DIRECTORY), name
    except FileNotFoundError:
        if not create:
            raise
    parent, name = posixpath.split(normal)
    fd = os.dup(root)
    done = ""
    try:
        for part in parent.split("/"):
            done = posixpath.join(done, part)
            make_directory(fd, part)
            # From the root again, so that a link which somebody put in the way must stay inside too.
            child = open_beneath(root, done, _DIRECTORY)
            os.close(fd)
            fd = child
    except BaseException:
        os.close(fd)
        raise
    return fd, name


def parent_beneath(root: int, path: str, *, above: str | None = None, create: bool = False) -> tuple[int, str]:
    """As :func:`open_parent`, where a last name that is a link counts as what it leads to.

    Args:
        root: See :func:`open_parent`.
        path: See :func:`open_parent`.
        above: Path of the root, for links with an absolute target inside of it (default: they lead outside).
        create: See :func:`open_parent`.
    """
    for _ in range(_LINKS):
        fd, name = open_parent(root, path, create=create)
        try:
            target = _link(fd, name)
        except BaseException:
            os.close(fd)
            raise
        if target is None:
            return fd, name
        os.close(fd)
        if target.startswith("/"):
            if above is None or not target.startswith(above.rstrip("/") + "/"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            path = target[len(above.rstrip("/")) + 1 :]
        else:
            path = posixpath.join(posixpath.dirname(path), target)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _link(fd: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # there, and no link
            return None
        raise


def read_plain(fd: int, offset: int, limit: int) -> tuple[bytes, int]:
    """A part of an open file, and the size of the whole.

    Open it with ``O_NONBLOCK``: a named pipe would keep the caller waiting for a writer.

    Raises:
        OSError: ``EINVAL``: it is a directory, a pipe, a device; the text says which.
    """
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind(info.st_mode)} and not a plain file")
    return os.pread(fd, max(0, limit), max(0, offset)), info.st_size


def replace_plain(parent: int, name: str, data: bytes) -> None:
    """Put a file into an open directory, whole or not at all.

    The new file takes the place of the old one by a rename, which follows no link and leaves other names of the old
    file (hard links, whose other end may be outside) with the old content. Mode and owner stay, setuid bits do not.

    Raises:
        OSError: What is there is no plain file, or the disk refuses.
    """
    mode = 0o644
    owner = None
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, f"it is {kind(found.st_mode)} and not a plain file")
        mode, owner = found.st_mode & 0o777, found
    except FileNotFoundError:
        pass
    # 255 bytes is the longest name; what comes from a descriptor's directory must not be longer than its target.
    temporary = f".{os.urandom(6).hex()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            _give(fd, owner or os.stat(parent))
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


def make_directory(parent: int, name: str) -> None:
    """Make a directory in an open one, for its owner; harmless if there is something of that name."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            if not os.listdir(fd):  # else somebody has put another one here meanwhile, which is not ours to give
                _give(fd, os.stat(parent))
        finally:
            os.close(fd)


def _give(fd: int, owner: os.stat_result) -> None:
    """What root makes for an agent belongs to whom the place belongs, or the agent's commands could not change it."""
    if owner.st_uid and os.geteuid() == 0:
        os.chown(fd, owner.st_uid, owner.st_gid)


def kind(mode: int) -> str:
    """What a file is, in words."""
    names = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISCHR, "a device"),
    )
    return next((name for test, name in names if test(mode)), "something else")


def _openat2(root: int, path: str, how: bytes) -> tuple[int, int]:
    call = _syscall()
    assert call is not None
    fd = call(_OPENAT2, ctypes.c_long(root), os.fsencode(path), how, ctypes.c_long(len(how)))
    return fd, 0 if fd >= 0 else ctypes.get_errno()


@functools.cache
def _syscall() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function
