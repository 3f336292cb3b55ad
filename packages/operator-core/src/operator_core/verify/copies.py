"""Copies of a workspace and the digest of its content. Whatever an agent left there, no link is ever followed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from operator_core.errors import VerificationError
from operator_core.text import clip, printable

__all__ = ["MAX_DEPTH", "TreeCopy", "copy_tree", "plain_name", "tree_digest"]

MAX_DEPTH = 128
"""Folders inside of folders; a deeper tree is no work of people and is refused."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_SKIPPED_MAX = 50
_T = TypeVar("_T")


class TreeCopy(NamedTuple):
    """What was copied.

    Attributes:
        digest: As of :func:`tree_digest`, of the copy and so of the source.
        files: Files, folders and links.
        bytes: Bytes of all files.
        skipped: Names of pipes, sockets and devices, which have no content to copy (the first 50, made printable).
    """

    digest: str
    files: int
    bytes: int
    skipped: tuple[str, ...]


async def copy_tree(source: Path, target: Path, *, max_bytes: int, max_files: int) -> TreeCopy:
    """Copy a folder: files, links as links, modes (without setuid) and times of change.

    Args:
        source: The folder; nothing may be running in it.
        target: Where the copy goes: a folder that is empty or does not exist yet.
        max_bytes: Bytes of all files together.
        max_files: Files, folders and links together.

    Raises:
        VerificationError: It is too large, or something in it cannot be read.
    """
    return await _in_thread(lambda stop: _Walk(source, target, max_bytes, max_files, stop).run())


async def tree_digest(source: Path) -> str:
    """SHA-256 (hex) of what a folder holds: sorted paths, kinds, executable bits, contents, targets of links.

    Times do not matter, nor do pipes, sockets and devices. The folder ``.git`` at the top is left out: git rewrites
    it when it is only looked at.

    Raises:
        VerificationError: Something in it cannot be read.
    """
    return (await _in_thread(lambda stop: _Walk(source, None, None, None, stop).run())).digest


def plain_name(path: str) -> str:
    """A path from a hostile tree for people and for JSON: one printable line, no lone surrogates, 300 characters."""
    line = printable(path).replace("\n", "\\n").replace("\t", "\\t")
    return clip(line.encode("utf-8", "backslashreplace").decode(), 300)


async def _in_thread(work: Callable[[threading.Event], _T]) -> _T:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(work, stop)
    finally:
        # A thread cannot be cancelled; it sees this at the next file.
        stop.set()


class _Entry(NamedTuple):
    path: bytes
    kind: bytes
    mode: int
    content: bytes


class _Walk:
    def __init__(
        self,
        source: Path,
        target: Path | None,
        max_bytes: int | None,
        max_files: int | None,
        stop: threading.Event,
    ) -> None:
        self.source = source
        self.target = target
        self.max_bytes = max_bytes
        self.max_files = max_files
        self.stop = stop
        self.entries: list[_Entry] = []
        self.bytes = 0
        self.count = 0
        self.skipped: list[str] = []

    def run(self) -> TreeCopy:
        into: int | None = None
        try:
            from_ = os.open(self.source, _FOLDER)
        except OSError as error:
            raise _unreadable(str(self.source), error) from error
        try:
            if self.target is not None:
                into = self._open_target(self.target)
            self._folder(from_, into, "", 0)
        finally:
            os.close(from_)
            if into is not None:
                os.close(into)
        digest = hashlib.sha256()
        for entry in sorted(self.entries):
            digest.update(b"%s\0%s\0%o\0%d\0" % (entry.path, entry.kind, entry.mode, len(entry.content)))
            digest.update(entry.content)
        return TreeCopy(digest.hexdigest(), self.count, self.bytes, tuple(self.skipped))

    def _open_target(self, target: Path) -> int:
        try:
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(target, _FOLDER)
        except OSError as error:
            raise VerificationError(
                f"The copy `{target}` of the workspace cannot be made ({error.strerror}); free some space there."
            ) from error
        if os.listdir(fd):
            os.close(fd)
            raise VerificationError(f"The folder `{target}` for a copy of the workspace is not empty; empty it.")
        return fd

    def _folder(self, from_: int, into: int | None, prefix: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise VerificationError(
                f"The workspace is nested deeper than {MAX_DEPTH} folders (`{plain_name(prefix)}`), so it is not "
                "copied and its work cannot be proved; flatten it."
            )
        try:
            names = os.listdir(from_)
        except OSError as error:
            raise _unreadable(prefix or ".", error) from error
        for name in names:
            if self.stop.is_set():
                raise VerificationError("The copy of the workspace was not finished, because it is no longer wanted.")
            path = f"{prefix}/{name}" if prefix else name
            try:
                self._entry(from_, into, name, path, depth)
            except OSError as error:
                raise _unreadable(path, error) from error

    def _entry(self, from_: int, into: int | None, name: str, path: str, depth: int) -> None:
        info = os.stat(name, dir_fd=from_, follow_symlinks=False)
        kind = stat.S_IFMT(info.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            if len(self.skipped) < _SKIPPED_MAX:
                self.skipped.append(plain_name(path))
            return
        self._count(path)
        if kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=from_)
            self._note(path, b"link", 0, os.fsencode(target))
            if into is not None:
                os.symlink(target, name, dir_fd=into)
                os.utime(name, ns=(info.st_mtime_ns, info.st_mtime_ns), dir_fd=into, follow_symlinks=False)
        elif kind == stat.S_IFREG:
            self._file(from_, into, name, path)
        else:
            self._note(path, b"folder", 0, b"")
            self._below(from_, into, name, path, depth)

    def _below(self, from_: int, into: int | None, name: str, path: str, depth: int) -> None:
        inner = os.open(name, _FOLDER, dir_fd=from_)
        copy: int | None = None
        try:
            if into is not None:
                os.mkdir(name, 0o700, dir_fd=into)
                copy = os.open(name, _FOLDER, dir_fd=into)
            self._folder(inner, copy, path, depth + 1)
            if copy is not None:
                info = os.fstat(inner)
                # We have to be able to work in the copy and to remove it.
                os.fchmod(copy, (info.st_mode & 0o777) | 0o700)
                os.utime(copy, ns=(info.st_mtime_ns, info.st_mtime_ns))
        finally:
            os.close(inner)
            if copy is not None:
                os.close(copy)

    def _file(self, from_: int, into: int | None, name: str, path: str) -> None:
        fd = os.open(name, _FILE, dir_fd=from_)
        copy: int | None = None
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise VerificationError(f"`{plain_name(path)}` changed while it was copied; something still runs.")
            # Before it is read: a sparse file can claim any size.
            self._weigh(info.st_size, path)
            if into is not None:
                copy = os.open(name, _NEW, 0o600, dir_fd=into)
            content, size = hashlib.sha256(), 0
            while chunk := os.read(fd, _CHUNK):
                size += len(chunk)
                if self.stop.is_set():
                    break
                self._weigh(size, path)
                content.update(chunk)
                while copy is not None and chunk:
                    chunk = chunk[os.write(copy, chunk) :]
            self.bytes += size
            self._note(path, b"file", info.st_mode & 0o111, content.digest())
            if copy is not None:
                os.fchmod(copy, info.st_mode & 0o777)
                os.utime(copy, ns=(info.st_mtime_ns, info.st_mtime_ns))
        finally:
            os.close(fd)
            if copy is not None:
                os.close(copy)

    def _note(self, path: str, kind: bytes, mode: int, content: bytes) -> None:
        if path != ".git" and not path.startswith(".git/"):
            self.entries.append(_Entry(os.fsencode(path), kind, mode, content))

    def _count(self, path: str) -> None:
        self.count += 1
        if self.max_files is not None and self.count > self.max_files:
            raise VerificationError(
                f"The workspace holds more than {self.max_files} files (seen at `{plain_name(path)}`), so it is not "
                "copied and its work cannot be proved; remove what is not needed, or raise "
                "`[tasks] max_workspace_files`."
            )

    def _weigh(self, size: int, path: str) -> None:
        if self.max_bytes is not None and self.bytes + size > self.max_bytes:
            raise VerificationError(
                f"The workspace is larger than {self.max_bytes} bytes (seen at `{plain_name(path)}`), so it is not "
                "copied and its work cannot be proved; remove what is not needed, or raise "
                "`[tasks] max_workspace_bytes`."
            )


def _unreadable(path: str, error: OSError) -> VerificationError:
    return VerificationError(
        f"`{plain_name(path)}` cannot be copied for the verification ({error.strerror or error}), so nothing about the "
        "work can be proved; make it readable, or remove it."
    )
