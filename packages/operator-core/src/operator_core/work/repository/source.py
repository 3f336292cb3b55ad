"""What a workspace starts from: a clone, a folder or nothing, always as a repository of its own.

Git runs here outside of any sandbox, but only on repositories that no agent has touched yet; what an agent had its
hands on is committed by :mod:`operator_core.work.repository.delivery`, in a sandbox. A private repository is reached
over ``ssh`` with the agent of the user that the worker runs as (``SSH_AUTH_SOCK`` is passed on); stored passwords are
not. Submodules and the contents behind LFS pointers are not fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from operator_core import clock
from operator_core.db.audit_log import AuditLogDB
from operator_core.errors import OperatorError, SourceError, StoreFull, VerificationError
from operator_core.model.task import Source, TaskSpec
from operator_core.text import clip, printable
from operator_core.work.folder import place_file
from operator_core.work.repository.git import git

__all__ = ["Prepared", "export_base", "export_check_files", "prepare_workspace"]

_CLONE_S = 600.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[^/:\s]+:(?!/)\S|[^/:\s]+@[^/:\s]+:")


class Prepared(NamedTuple):
    """A workspace that is ready.

    Attributes:
        commit: Where the work begins, on the branch of the result.
        note: What it was made of, for people.
    """

    commit: str | None
    note: str


async def prepare_workspace(
    spec: TaskSpec, workspace: Path, *, branch: str, audit: AuditLogDB, base: Path | None = None
) -> Prepared:
    """Make the workspace, with the check files in it; what is there already is left as it is.

    It appears in one step, complete: a crash on the way leaves nothing that a second call would take for it. There is
    no remote in it, so that nothing can be pushed from it.

    Args:
        spec: Its source and check files.
        workspace: The folder to make; the one above it exists, and no agent can write there.
        branch: Checked out in it (without ``refs/heads/``).
        audit: Its store has the blobs.
        base: Where to keep the tree as it was before the check files came, see :func:`export_base`.

    Raises:
        SourceError: The source cannot be had on this machine.
        VerificationError: A check file is not in the store as it was submitted.
        StoreFull: The disk is full.
    """
    marker = workspace.with_name(f".{workspace.name}.json")
    if _is_filled(workspace):
        return _marked(marker) or Prepared(spec.source.commit, "the workspace was there already")
    for left in workspace.parent.glob(f".{workspace.name}-*.partial"):
        await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)
    async with _partial(workspace) as partial:
        note = await _fill(spec.source, partial, branch, audit)
        if base is not None and not base.exists():
            async with _partial(base) as copy:
                await asyncio.to_thread(_copy_tree, partial, copy)
                _publish(copy, base)
        if spec.check_files:
            await export_check_files(spec, partial, audit)
            await git(partial, "add", "-f", "--", *(item.path for item in spec.check_files))
            await _commit(partial, "Check files of the task")
            note += f", with {len(spec.check_files)} check file{'s'[: len(spec.check_files) != 1]}"
        prepared = Prepared(await git(partial, "rev-parse", "HEAD"), note)
        place_file(marker.parent, marker.name, json.dumps(prepared._asdict()).encode(), 0o644)
        _publish(partial, workspace)
    return prepared


async def export_base(spec: TaskSpec, target: Path, *, audit: AuditLogDB) -> None:
    """The tree that the work began with, without repository and check files, from the source itself.

    Never from a workspace that an agent had: what is frozen for the checks comes from here. Nothing happens if
    ``target`` is there already (:func:`prepare_workspace` may have kept it, which saves a second clone).

    Raises:
        SourceError: The source cannot be had on this machine any more.
        StoreFull: The disk is full.
    """
    if target.exists():
        return
    async with _partial(target) as partial:
        await _fill(spec.source, partial, "base", audit)
        await asyncio.to_thread(shutil.rmtree, partial / ".git")
        _publish(partial, target)


async def export_check_files(spec: TaskSpec, target: Path, audit: AuditLogDB) -> None:
    """Write the frozen check files below ``target``, through no link.

    Raises:
        VerificationError: One is not in the store as it was submitted.
        SourceError: One cannot be placed, because a link or a file is where its folder should be.
    """
    target.mkdir(parents=True, exist_ok=True)
    for item in spec.check_files:
        data = b"".join([chunk async for chunk in audit.read_blob(item.sha256)])
        if hashlib.sha256(data).hexdigest() != item.sha256:
            raise VerificationError(
                f"The check file {item.path!r} is not in the store as it was submitted; submit the task again."
            )
        with _disk(target):
            try:
                place_file(target, item.path, data, 0o755 if item.executable else 0o644)
            except (NotADirectoryError, IsADirectoryError, FileExistsError):
                raise _in_the_way(item.path) from None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _in_the_way(item.path) from None
                raise


def _in_the_way(path: str) -> SourceError:
    return SourceError(
        f"The check file {path!r} cannot be placed, because a link or a file of the source is where one of its folders "
        "should be; submit it under another path."
    )


async def _fill(source: Source, folder: Path, branch: str, audit: AuditLogDB) -> str:
    """Make an empty folder a repository with the source as its newest commit; says what that is."""
    if source.kind == "git":
        note = await _clone(source, folder, branch, audit)
    else:
        await _init(folder, branch)
        note = "an empty folder"
        if source.kind == "folder":
            await _unpack(source, folder, audit)
            note = f"the folder {printable(source.location)}"
            await git(folder, "add", "-A")
        await _commit(folder, f"Start: {note}")
    # Where it exists, a sandbox can protect it.
    (folder / ".git" / "hooks").mkdir(exist_ok=True)
    await git(folder, "config", "user.name", "Operator")
    await git(folder, "config", "user.email", "operator@localhost")
    return note


async def _clone(source: Source, folder: Path, branch: str, audit: AuditLogDB) -> str:
    shown = audit.database.redactor.text(printable(source.location))
    location = source.location
    if not _REMOTE.match(location):
        if not Path(location).expanduser().is_absolute():
            raise SourceError(
                f"The repository {shown!r} is a relative path, which names nothing here; submit its full path."
            )
        location = str(Path(location).expanduser())
        if not Path(location).exists():
            raise SourceError(
                f"There is no repository {shown} on this machine; start a worker where it is, or give a URL."
            )
    try:
        # The transport, also for a local path: it computes every hash again, and copies no file as it is.
        options = ("--quiet", "--no-local", "--no-hardlinks", "--no-checkout", "--template=", "--origin=origin")
        await git(Path("/"), "clone", *options, "--", location, str(folder), timeout=_CLONE_S)
        commit = source.commit
        if commit is None:
            with contextlib.suppress(SourceError):
                commit = await git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        elif not await _has(folder, commit):
            # Not reachable from any branch; a local repository and most servers give it when asked for by name.
            with contextlib.suppress(SourceError):
                await git(folder, "fetch", "--quiet", "--no-tags", "origin", commit, timeout=_CLONE_S)
            if not await _has(folder, commit):
                raise SourceError(f"it no longer has the commit {commit[:12]}")
        if commit is None:
            await git(folder, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
            await _commit(folder, "Start: an empty repository")
        else:
            await git(folder, "checkout", "--quiet", "--no-track", "-B", branch, commit, timeout=_CLONE_S)
        await git(folder, "remote", "remove", "origin")
    except SourceError as error:
        why = audit.database.redactor.text(str(error)).rstrip(".")
        raise SourceError(f"The repository {shown} cannot be cloned on this machine: {why}.") from None
    at = f" at {commit[:12]}" if commit else ", which is empty"
    more = "; its submodules are left out" if (folder / ".gitmodules").is_file() else ""
    return f"a clone of {shown}{at}{more}"


async def _has(folder: Path, commit: str) -> bool:
    try:
        await git(folder, "cat-file", "-e", f"{commit}^{{commit}}")
    except SourceError:
        return False
    return True


async def _init(folder: Path, branch: str) -> None:
    await git(folder, "init", "--quiet", "--template=", f"--initial-branch={branch}", ".")


async def _commit(folder: Path, message: str) -> None:
    await git(folder, "commit", "--quiet", "--allow-empty", "--no-verify", "--cleanup=verbatim", "-m", message)


async def _unpack(source: Source, folder: Path, audit: AuditLogDB) -> None:
    archive = folder.with_name(f"{folder.name}.tar")
    digest = hashlib.sha256()
    try:
        with _disk(folder):
            with archive.open("xb") as file:
                async for chunk in audit.read_blob(source.blob or ""):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != source.blob:
                raise SourceError(
                    f"The copy of the folder {printable(source.location)} is not in the store as it was submitted; "
                    "submit the task again."
                )
            await asyncio.to_thread(_extract, archive, folder)
    except tarfile.TarError as error:
        why = clip(printable(str(error)), 300)
        raise SourceError(f"The folder {printable(source.location)} cannot be used as a workspace: {why}.") from None
    finally:
        archive.unlink(missing_ok=True)


def _extract(archive: Path, folder: Path) -> None:
    def usable(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        # A repository in it would bring configuration along, which git obeys.
        if ".git" in PurePosixPath(member.name).parts:
            return None
        return tarfile.data_filter(member, path)

    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter=usable)


def _copy_tree(tree: Path, copy: Path) -> None:
    with _disk(copy):
        for name in os.listdir(tree):
            if name == ".git":
                continue
            path = tree / name
            if path.is_dir() and not path.is_symlink():
                shutil.copytree(path, copy / name, symlinks=True)
            else:
                shutil.copy2(path, copy / name, follow_symlinks=False)


@contextlib.asynccontextmanager
async def _partial(target: Path) -> AsyncIterator[Path]:
    """An empty folder beside the target, gone afterwards unless it was published."""
    partial = target.with_name(f".{target.name}-{clock.new_id()[:8]}.partial")
    with _disk(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.mkdir(mode=0o700)
    try:
        yield partial
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)


def _publish(partial: Path, target: Path) -> None:
    try:
        os.rename(partial, target)
    except OSError as error:
        # Somebody else was faster with the same thing.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _is_filled(workspace: Path) -> bool:
    try:
        return bool(os.listdir(workspace))
    except OSError:
        return False


def _marked(marker: Path) -> Prepared | None:
    try:
        return Prepared(**json.loads(marker.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _full(path: Path) -> StoreFull:
    return StoreFull(f"The disk under {path} is full; free some space and start again, nothing stored is lost.")


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, OperatorError) or error.errno not in _FULL:
            raise
        raise _full(path) from None
