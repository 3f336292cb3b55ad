"""A folder as one archive: the same folder gives the same bytes, whoever packs it and whenever."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

from operator_core.errors import ConfigError
from operator_core.text import clip, printable

__all__ = ["MAX_FOLDER_BYTES", "pack_folder", "read_plain_file"]

MAX_FOLDER_BYTES = 200_000_000
"""Of the archive of a folder; what is larger belongs into a repository."""

_NO_FOLLOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def pack_folder(
    folder: Path, archive: Path, *, without: Collection[Path] = (), most: int = MAX_FOLDER_BYTES
) -> list[str]:
    """Write a folder into a tar file: sorted, without owners and times, without ``.git``, links as links.

    Args:
        archive: The file to write; outside of the folder.
        without: Files and folders (absolute) to leave out.
        most: Bytes of the archive.

    Returns:
        Links that lead out of the folder, which are left out.

    Raises:
        ConfigError: It holds something that is neither a file, a folder nor a link, cannot be read, or is too large.
    """
    left_out: list[str] = []
    shown = clip(printable(str(folder)))
    try:
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
            for path, info in _walk(folder, {os.fspath(p) for p in without}):
                name = path.relative_to(folder).as_posix()
                if stat.S_ISLNK(info.st_mode) and not _stays_inside(name, os.readlink(path)):
                    left_out.append(printable(name))
                    continue
                if tar.offset + info.st_size > most:
                    raise ConfigError(
                        f"The folder {shown} is larger than {most // 1_000_000} MB; make it a git repository, or "
                        "give a smaller folder with --repo."
                    )
                _add(tar, path, name, info)
    except OSError as error:
        where = printable(os.fsdecode(error.filename)) if error.filename else shown
        why = error.strerror or "it changed while it was read"
        raise ConfigError(
            f"The folder {shown} cannot be packed ({clip(where)}: {why}); check it and try again."
        ) from None
    return left_out


def read_plain_file(path: Path, most: int) -> tuple[bytes, bool]:
    """The content of a file, read through no link, and whether its owner may execute it.

    Raises:
        OSError: It cannot be read, or is a link.
        ValueError: It is no plain file, or larger than ``most`` bytes; the message says which, as a clause.
    """
    fd = os.open(path, _NO_FOLLOW)
    with open(fd, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise ValueError("it is no plain file")
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most // 1_000_000} MB")
    return data, bool(info.st_mode & stat.S_IXUSR)


def _walk(folder: Path, without: set[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below a folder, sorted by name; a folder comes before what is in it."""
    with os.scandir(folder) as found:
        items = sorted(found, key=lambda item: os.fsencode(item.name))
    for item in items:
        if item.name == ".git" or item.path in without:
            continue
        info = item.stat(follow_symlinks=False)
        if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode) or stat.S_ISLNK(info.st_mode)):
            raise ConfigError(
                f"{clip(printable(item.path))} is neither a file, a folder nor a link, so it cannot be part of a task; "
                "remove it or give another folder with --repo."
            )
        yield Path(item.path), info
        if stat.S_ISDIR(info.st_mode):
            yield from _walk(Path(item.path), without)


def _add(tar: tarfile.TarFile, path: Path, name: str, info: os.stat_result) -> None:
    member = tarfile.TarInfo(name)
    member.mode = 0o755 if info.st_mode & stat.S_IXUSR or stat.S_ISDIR(info.st_mode) else 0o644
    if stat.S_ISDIR(info.st_mode):
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    elif stat.S_ISLNK(info.st_mode):
        member.type, member.mode, member.linkname = tarfile.SYMTYPE, 0o777, os.readlink(path)
        tar.addfile(member)
    else:
        with open(os.open(path, _NO_FOLLOW), "rb") as file:
            now = os.fstat(file.fileno())
            if not stat.S_ISREG(now.st_mode):
                raise OSError(0, "it changed while it was read", os.fspath(path))
            member.size = info.st_size
            tar.addfile(member, file)


def _stays_inside(name: str, target: str) -> bool:
    there = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return not os.path.isabs(target) and there != ".." and not there.startswith("../")
