"""The workspace guard: writes of a file tool stay in the workspace."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from operator_core.errors import ConfigError, SandboxError
from operator_core.sandbox.linux.beneath import lexical, open_beneath, parent_beneath, read_plain, replace_plain
from operator_core.sandbox.policy import DEFAULT_PROTECTED

__all__ = ["WorkspaceGuard"]


class WorkspaceGuard:
    """Keeps writes in one directory.

    :meth:`is_write_allowed` is the seed's question, and its answer is a forecast: what a path leads to can change after
    it was asked. :meth:`write` needs no forecast, because the kernel judges the path in the step that opens it.

    Args:
        path: The workspace; it is made if it is missing.
        protected: Names in it that cannot be written because they run later, outside of any sandbox.

    Attributes:
        root: Its canonical path.

    Raises:
        ConfigError: It cannot be made, or is no directory.
    """

    def __init__(self, path: Path | str, protected: Sequence[str] = DEFAULT_PROTECTED) -> None:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
            self.root = Path(path).resolve(strict=True)
        except OSError as error:
            raise ConfigError(f"The workspace `{path}` cannot be used ({error.strerror}); choose another.") from None
        self._below = str(self.root).rstrip("/") + "/"
        self._protected = tuple(name.strip("/") + "/" for name in protected)

    def is_write_allowed(self, target: Path | str) -> bool:
        """Whether a path leads into the workspace now (rows C-019, C-026).

        A target that exists is judged by where it really is, so that a link to the outside is refused; one that does
        not exist by where its directory really is. Without that directory the answer is no.
        """
        path = os.path.join(self.root, target)
        if "\0" in path:
            return False
        try:
            if os.path.exists(path):
                real = os.path.realpath(path, strict=True)
            elif os.path.islink(path):  # to nothing; a write would make it
                return False
            else:
                real = os.path.join(os.path.realpath(os.path.dirname(path), strict=True), os.path.basename(path))
        except (OSError, ValueError):
            return False
        return Path(real).is_relative_to(self.root)

    def write(self, target: Path | str, data: bytes) -> None:
        """Put a file into the workspace, whole or not at all; directories on the way are made, inside only.

        Raises:
            SandboxError: It leads outside, is protected, is no plain file, or the disk refuses. Nothing was changed.
        """
        try:
            path = self._relative(os.fspath(target))
            # A look before anything is made; the one that counts comes with the directory in hand.
            self._refuse_protected(path)
            root = self._open()
            try:
                parent, name = parent_beneath(root, path, above=str(self.root), create=True)
            finally:
                os.close(root)
            try:
                self._refuse_protected(self._where(parent) + name)
                replace_plain(parent, name, data)
            finally:
                os.close(parent)
        except (OSError, ValueError) as error:
            raise _refusal(os.fspath(target), error, "write") from None

    def read(self, target: Path | str, limit: int) -> bytes:
        """A file of the workspace; its first ``limit`` bytes.

        Raises:
            SandboxError: It leads outside, is no plain file, or cannot be read.
        """
        try:
            root = self._open()
            try:
                fd = open_beneath(root, self._relative(os.fspath(target)), os.O_RDONLY | os.O_NONBLOCK)
            finally:
                os.close(root)
            try:
                return read_plain(fd, 0, limit)[0]
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise _refusal(os.fspath(target), error, "read") from None

    def _open(self) -> int:
        return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _relative(self, target: str) -> str:
        """A target as a path below the root.

        Raises:
            OSError: ``EXDEV``: it is absolute and not below it.
        """
        if target.startswith("/"):
            if not (target + "/").startswith(self._below):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
            target = target[len(self._below) :].lstrip("/") or "."
        lexical(target)
        return target

    def _where(self, fd: int) -> str:
        """The path of an open directory, from the root; empty or with a slash at its end.

        Raises:
            OSError: ``EXDEV``: by now it is somewhere else.
        """
        path = os.readlink(f"/proc/self/fd/{fd}") + "/"
        if not path.startswith(self._below):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        return path[len(self._below) :]

    def _refuse_protected(self, path: str) -> None:
        normal = os.path.normpath(path) + "/"
        if normal.startswith(self._protected):
            name = next(name for name in self._protected if normal.startswith(name)).rstrip("/")
            raise OSError(errno.EACCES, f"`{name}` is protected, because it runs later and outside of the sandbox")


def _refusal(path: str, error: OSError | ValueError, verb: str) -> SandboxError:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EXDEV, errno.ELOOP):
        return SandboxError(f"path '{path}' is outside the workspace directory")
    why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return SandboxError(f"cannot {verb} '{path}': {why}")
