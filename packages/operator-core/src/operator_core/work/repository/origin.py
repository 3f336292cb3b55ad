"""Where the work of a task begins, as it is when it is submitted: a commit of a repository, or a copy of a folder."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.errors import ConfigError, SourceError
from operator_core.model.task import Source
from operator_core.text import clip, printable
from operator_core.work.repository.git import git
from operator_core.work.repository.packing import pack_folder

__all__ = ["Warn", "find_source", "is_remote", "is_text"]

Warn = Callable[[str], None]
"""Called with a sentence about what is not as it may seem."""

_LS_REMOTE_S = 60.0
_SCHEMES = ("http", "https", "ssh", "file")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCP = re.compile(r"[\w.-]+@[A-Za-z0-9\[][^/\s]*:\S")
_HELPER = re.compile(r"[A-Za-z0-9+.-]+::")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z|[0-9a-f]{64}\Z")


async def find_source(
    repo: str | os.PathLike[str] | None, ref: str | None, audit: AuditLogDB, settings: Settings, aside: Path, warn: Warn
) -> Source:
    """Find out what ``--repo`` and ``--ref`` mean now, and keep what would not be there later.

    Args:
        aside: A folder for temporary files.

    Raises:
        ConfigError: They name nothing that can be used.
    """
    if ref is not None and (not ref.strip() or ref.startswith("-") or not ref.isprintable()):
        raise ConfigError(f"{clip(printable(ref), 80)!r} names no branch, tag or commit; name another one.")
    if repo is None:
        if ref is not None:
            raise ConfigError("A branch, tag or commit is one of a repository; name the repository too.")
        return Source()
    location = os.fspath(repo)
    shown = clip(printable(audit.database.redactor.text(location)), 160)
    if not location.strip() or location.startswith("-") or _HELPER.match(location) or not is_text(location):
        raise ConfigError(f"{shown!r} is neither a folder nor the address of a repository; name another one.")
    if audit.database.redactor.text(location) != location:
        raise ConfigError(
            f"The address {shown} contains a password, which would be stored; leave it out and let git ask elsewhere."
        )
    if is_remote(location):
        return await _remote(location, shown, ref)
    path = Path(location).expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(f"There is no folder {shown}; name another one to begin with.")
    path = path.resolve()
    if await _is_repository(path, shown):
        return await _local(path, shown, ref, warn)
    if ref is not None:
        raise ConfigError(
            f"{shown} is not the top of a git repository, so it has no {ref!r}; leave the branch, tag or commit out."
        )
    archive = aside / "folder.tar"
    left_out = await asyncio.to_thread(pack_folder, path, archive, without=_of_ours(settings, audit.database))
    if left_out:
        warn(
            f"{len(left_out)} link(s) in {shown} lead out of it and are not part of the task, the first is "
            f"{clip(left_out[0], 120)!r}."
        )
    return Source(kind="folder", location=str(path), blob=await audit.store_blob(archive))


def is_remote(location: str) -> bool:
    """Whether it is an address and no path.

    Raises:
        ConfigError: It is one that is never used.
    """
    if found := _URL.match(location):
        if found[1].lower() not in _SCHEMES or location[found.end() :].startswith("-"):
            raise ConfigError(
                f"{clip(printable(location), 120)!r} is no address of a repository that can be used; give one with "
                "https://, http://, ssh:// or file://."
            )
        return True
    return bool(_SCP.match(location)) and not os.path.lexists(location)


async def _is_repository(path: Path, shown: str) -> bool:
    """Whether this very folder is a repository: the top of a work tree, or a bare one."""
    try:
        bare, folder = (await git(path, "rev-parse", "--is-bare-repository", "--absolute-git-dir")).split("\n", 1)
        if bare == "true":
            return Path(folder) == path
        return Path(await git(path, "rev-parse", "--show-toplevel")) == path
    except SourceError as error:
        if "not a git repository" in str(error):
            return False
        raise ConfigError(
            f"The repository {shown} cannot be used ({_clause(error)}); mend it or name another one."
        ) from None


async def _local(path: Path, shown: str, ref: str | None, warn: Warn) -> Source:
    try:
        commit: str | None = await git(
            path, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref or 'HEAD'}^{{commit}}"
        )
    except SourceError:
        if ref is not None:
            raise ConfigError(f"The repository {shown} has no {ref!r}; name another branch, tag or commit.") from None
        commit = None  # nothing was committed yet
    if await git(path, "rev-parse", "--is-bare-repository") == "false":
        changed = (await git(path, "status", "--porcelain", "--untracked-files=normal")).splitlines()
        if changed:
            warn(f"{len(changed)} uncommitted change(s) in {shown} are not part of the task; commit what should be.")
    return Source(kind="git", location=str(path), ref=ref, commit=commit)


async def _remote(location: str, shown: str, ref: str | None) -> Source:
    if ref is not None and _COMMIT.match(ref):
        return Source(kind="git", location=location, ref=ref, commit=ref)
    names = ["HEAD"] if ref is None else [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref]
    try:
        listed = await git(Path("/"), "ls-remote", "--", location, *names, timeout=_LS_REMOTE_S)
    except SourceError as error:
        raise ConfigError(f"The repository {shown} cannot be reached ({_clause(error)}); check its address.") from None
    found: dict[str, str] = {}
    for line in listed.splitlines():
        commit, _, name = line.partition("\t")
        found[name] = commit
    newest = next((found[name] for name in names if name in found), None)
    if newest is None and ref is not None:
        raise ConfigError(f"The repository {shown} has no branch or tag {ref!r}; name another one.")
    return Source(kind="git", location=location, ref=ref, commit=newest)


def _clause(error: SourceError) -> str:
    return clip(" ".join(printable(str(error)).split()).rstrip("."), 200)


def _of_ours(settings: Settings, database: Database) -> list[Path]:
    """What belongs to the platform and may lie in a folder: an agent must see neither the store nor other sessions."""
    from operator_core.work.folder import SESSIONS
    from operator_core.work.state import StateFolder

    ours = [StateFolder.locate(settings, database)]
    if settings.tasks.root is not None:
        ours.append(settings.tasks.root.expanduser().resolve() / SESSIONS)
    if database.sqlite:
        store = Path(database.name).resolve()
        ours += [store.with_name(store.name + end) for end in ("", "-wal", "-shm", "-journal", ".d")]
        ours.append(store.parent / SESSIONS)
    return ours


def is_text(text: str) -> bool:
    """Whether a database can store it as it is: no NUL, and no byte that was no UTF-8."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
