"""Working in a folder that an agent had in its hands: by paths relative to it, and never through a link."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from operator_core.errors import VerificationError
from operator_core.verify.copies import MAX_DEPTH, plain_name

__all__ = ["Tree"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


class Tree:
    """A folder; paths are relative to it, with ``/``. A context manager.

    Raises:
        VerificationError: The folder is missing, or an operation in it fails.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fd = -1

    def __enter__(self) -> Tree:
        try:
            self._fd = os.open(self.root, _FOLDER)
        except OSError as error:
            raise VerificationError(
                f"The folder `{self.root}` of the verification cannot be opened ({error.strerror}); "
                "judge the work again."
            ) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def walk(self, below: str = "") -> Iterator[tuple[str, str]]:
        """Every path and its kind (``file``, ``folder``, ``link``, ``other``), parents first; not the top ``.git``."""
        stack = [below]
        while stack:
            folder = stack.pop()
            try:
                fd = self._open_folder(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue  # taken out meanwhile
            except OSError as error:
                raise _failure(folder, error) from error
            try:
                with os.scandir(fd) as entries:
                    found = sorted((e.name, _kind(e.stat(follow_symlinks=False).st_mode)) for e in entries)
            except OSError as error:
                raise _failure(folder, error) from error
            finally:
                os.close(fd)
            for name, kind in found:
                path = f"{folder}/{name}" if folder else name
                if path == ".git":
                    continue
                yield path, kind
                if kind == "folder":
                    if path.count("/") >= MAX_DEPTH:
                        raise VerificationError(f"`{plain_name(path)}` is nested too deeply; flatten it.")
                    stack.append(path)

    def files(self, folder: str) -> list[str]:
        """The files and links below a folder."""
        return [p for p, kind in self.walk(folder) if kind in ("file", "link")]

    def kind(self, path: str) -> str | None:
        """What is at a path (see :meth:`walk`); None if nothing is, or only behind a link."""
        with self._parent(path) as found:
            if found is None:
                return None
            try:
                return _kind(os.stat(found[1], dir_fd=found[0], follow_symlinks=False).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, path: str, limit: int) -> bytes:
        """The first bytes of a plain file; empty for anything else."""
        with self._parent(path) as found:
            if found is None:
                return b""
            try:
                fd = os.open(found[1], _FILE, dir_fd=found[0])
            except OSError:
                return b""
            try:
                return os.pread(fd, limit, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
            finally:
                os.close(fd)

    def same(self, other: Tree, path: str) -> bool:
        """Whether both hold the same there: kind, content (or where the link leads) and executable bits."""
        kind = self.kind(path)
        if kind != other.kind(path) or kind not in ("file", "link"):
            return False
        with self._parent(path) as mine, other._parent(path) as theirs:
            assert mine is not None
            assert theirs is not None
            if kind == "link":
                return os.readlink(mine[1], dir_fd=mine[0]) == os.readlink(theirs[1], dir_fd=theirs[0])
            a, b = os.open(mine[1], _FILE, dir_fd=mine[0]), os.open(theirs[1], _FILE, dir_fd=theirs[0])
            try:
                one, two = os.fstat(a), os.fstat(b)
                if one.st_size != two.st_size or (one.st_mode ^ two.st_mode) & 0o111:
                    return False
                while chunk := os.read(a, _CHUNK):
                    if chunk != os.read(b, len(chunk)):
                        return False
                return True
            finally:
                os.close(a)
                os.close(b)

    def put(self, source: Tree, path: str) -> None:
        """Make this path what it is in the other tree, a file or a link, whatever stands in its way here."""
        self._make_way(path)
        with self._parent(path) as mine, source._parent(path) as theirs:
            try:
                if mine is None or theirs is None:
                    raise FileNotFoundError(2, "it is missing")
                info = os.stat(theirs[1], dir_fd=theirs[0], follow_symlinks=False)
                if stat.S_ISLNK(info.st_mode):
                    os.symlink(os.readlink(theirs[1], dir_fd=theirs[0]), mine[1], dir_fd=mine[0])
                else:
                    _copy_file(theirs, mine)
            except OSError as error:
                raise _failure(path, error) from error

    def write(self, path: str, data: bytes) -> None:
        """Replace a plain file by one with this content, with its mode."""
        with self._parent(path) as found:
            try:
                if found is None:
                    raise FileNotFoundError(2, "it is missing")
                mode = os.stat(found[1], dir_fd=found[0], follow_symlinks=False).st_mode
                os.unlink(found[1], dir_fd=found[0])
                fd = os.open(found[1], _NEW, 0o600, dir_fd=found[0])
                try:
                    while data:
                        data = data[os.write(fd, data) :]
                    os.fchmod(fd, mode & 0o777)
                finally:
                    os.close(fd)
            except OSError as error:
                raise _failure(path, error) from error

    def target(self, path: str) -> str | None:
        """Where a link leads, as a path of this tree; None if it is no link, or leads out of the tree."""
        with self._parent(path) as found:
            try:
                text = os.readlink(found[1], dir_fd=found[0]) if found else ""
            except OSError:
                return None
        full = posixpath.normpath(posixpath.join(posixpath.dirname(path), text))
        return None if not text or full.startswith(("/", "..")) else full

    def remove(self, path: str) -> None:
        """Remove what is there, with all that is in it; nothing happens if nothing is."""
        with self._parent(path) as found:
            if found is not None:
                try:
                    _remove(found[0], found[1])
                except OSError as error:
                    raise _failure(path, error) from error

    def _make_way(self, path: str) -> None:
        """Folders above the path, in place of what is there instead, and nothing at the path itself."""
        *folders, name = path.split("/")
        fd = os.dup(self._fd)
        try:
            for folder in folders:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o755, dir_fd=fd)
                try:
                    inner = os.open(folder, _FOLDER, dir_fd=fd)
                except OSError:
                    os.unlink(folder, dir_fd=fd)
                    os.mkdir(folder, 0o755, dir_fd=fd)
                    inner = os.open(folder, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = inner
            with contextlib.suppress(FileNotFoundError):
                _remove(fd, name)
        except OSError as error:
            raise _failure(path, error) from error
        finally:
            os.close(fd)

    def _open_folder(self, path: str) -> int:
        fd = os.dup(self._fd)
        for part in path.split("/") if path else []:
            try:
                inner = os.open(part, _FOLDER, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str] | None]:
        """The folder of a path, open, and the last name; None if there is no such folder without following links."""
        folder, _, name = path.rpartition("/")
        try:
            fd = self._open_folder(folder)
        except OSError:
            yield None
            return
        try:
            yield fd, name
        finally:
            os.close(fd)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "other")


def _copy_file(source: tuple[int, str], target: tuple[int, str]) -> None:
    from_ = os.open(source[1], _FILE, dir_fd=source[0])
    try:
        info = os.fstat(from_)
        into = os.open(target[1], _NEW, 0o600, dir_fd=target[0])
        try:
            while chunk := os.read(from_, _CHUNK):
                while chunk:
                    chunk = chunk[os.write(into, chunk) :]
            os.fchmod(into, info.st_mode & 0o777 | 0o400)
            os.utime(into, ns=(info.st_mtime_ns, info.st_mtime_ns))
        finally:
            os.close(into)
    finally:
        os.close(from_)


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
        return
    except IsADirectoryError:
        pass
    except PermissionError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        for inner in os.listdir(fd):
            _remove(fd, inner)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=folder)


def _failure(path: str, error: OSError) -> VerificationError:
    return VerificationError(
        f"`{plain_name(path)}` could not be put back for the checks ({error.strerror or error}), so nothing is proved; "
        "judge the work again."
    )
