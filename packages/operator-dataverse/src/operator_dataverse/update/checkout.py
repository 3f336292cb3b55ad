"""The checkout that this program runs from, and the one ref that it follows."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import operator_dataverse
from operator_core.clock import new_id
from operator_core.errors import ConfigError, OperatorError, SourceError
from operator_core.work.repository.git import git

__all__ = ["VERSION", "Checkout", "Record"]

VERSION = "VERSION"
"""The file that says which version a commit is (row B-064)."""

_TAGS = "refs/operator-update/tags"
_RECORD = "operator-update.json"
_STAGED = "operator-update-staged-"
_FOLDERS = ("--git-dir", "--git-common-dir")
_LOCKS = ("index.lock", "HEAD.lock", "ORIG_HEAD.lock", "packed-refs.lock", "refs/heads/**/*.lock", "refs/stash.lock")


@dataclass(frozen=True)
class Record:
    """What earlier updates left to know; it is in the git folder, where it makes no checkout dirty.

    Attributes:
        failed: Commit -> why it did not work. Such a commit is not tried again by itself.
        once: Commit -> why it could not be installed, the first time; it is tried once more.
        previous: The commit before the last update; empty: there was none.
        updated_at: When that was, ISO 8601.
        taking: The commit that is being taken right now; empty: none. Left over, its update was interrupted.
        leaving: The commit that was checked out before it.
    """

    failed: dict[str, str] = field(default_factory=dict)
    once: dict[str, str] = field(default_factory=dict)
    previous: str = ""
    updated_at: str = ""
    taking: str = ""
    leaving: str = ""


class Checkout:
    """A git checkout.

    Args:
        folder: Its top.
        branch: The remote branch that it follows, as ``remote/name``.
    """

    def __init__(self, folder: Path, branch: str) -> None:
        self.folder = folder
        self.branch = branch

    @classmethod
    async def find(cls, branch: str, folder: Path | None = None) -> Checkout:
        """The checkout that a folder is in; default: that of this package.

        Raises:
            ConfigError: There is none, or the branch is not one of a remote.
        """
        start = folder or Path(operator_dataverse.__file__).parent
        try:
            top = Path(await git(start, "rev-parse", "--show-toplevel"))
            remotes = (await git(top, "remote")).splitlines()
        except SourceError as error:
            raise ConfigError(
                f"{start} is in no git checkout ({error}), so nothing can be updated; install a new version instead."
            ) from None
        checkout = cls(top, branch)
        if not checkout.name or checkout.remote not in remotes:
            raise ConfigError(
                f"`[dataverse] update_branch` is {branch!r}; it must be a remote branch such as `origin/main`, and the "
                f"remotes of {top} are {', '.join(remotes) or 'none'}."
            )
        return checkout

    @property
    def remote(self) -> str:
        """The remote's name."""
        return self.branch.partition("/")[0]

    @property
    def name(self) -> str:
        """The branch as the remote calls it."""
        return self.branch.partition("/")[2]

    async def fetch(self) -> str:
        """Ask the remote; the commit that the followed branch has there.

        Its tags land beside those of the person, which are never touched.

        Raises:
            SourceError: It does not answer, or has no such branch.
        """
        here = f"refs/remotes/{self.remote}/{self.name}"
        options = ("--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--prune")
        await git(
            self.folder, "fetch", *options, self.remote, f"+refs/heads/{self.name}:{here}", f"+refs/tags/*:{_TAGS}/*"
        )
        return await self.commit(here)

    async def commit(self, name: str = "HEAD") -> str:
        """The full id of a commit."""
        return await git(self.folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")

    async def version(self, commit: str) -> str | None:
        """What ``VERSION`` says in a commit; None: there is no such file, or nothing in it."""
        try:
            return (await git(self.folder, "show", f"{commit}:{VERSION}")).strip() or None
        except SourceError:
            return None

    async def tags_of(self, commit: str) -> list[str]:
        """The ids of the annotated tags, as the remote has them, that name a commit."""
        listed = await git(
            self.folder, "for-each-ref", f"--points-at={commit}", "--format=%(objecttype) %(objectname)", _TAGS
        )
        return [line.split()[1] for line in listed.splitlines() if line.startswith("tag ")]

    async def is_clean(self) -> bool:
        """Whether nothing that git follows was changed here."""
        return not await git(self.folder, "status", "--porcelain", "--untracked-files=no")

    async def is_ahead(self, commit: str) -> bool:
        """Whether a commit follows on what is checked out: never back to an old version, and no person's work lost."""
        try:
            await git(self.folder, "merge-base", "--is-ancestor", "HEAD", commit)
        except SourceError:
            return False
        return True

    async def advance(self, commit: str) -> None:
        """Check out a later commit; the branch that is checked out, if any, moves with it."""
        await git(self.folder, "merge", "--quiet", "--ff-only", "--no-autostash", commit, timeout=300)

    async def go_back(self, commit: str) -> bool:
        """Check out an earlier commit again, after an update that did not work.

        Returns:
            Whether somebody had changed something meanwhile, which is in git's stash now.
        """
        changed = not await self.is_clean()
        if changed:
            await git(
                self.folder, "stash", "push", "--quiet", "--message", "changed while Operator updated", timeout=300
            )
        await git(self.folder, "reset", "--quiet", "--hard", commit, timeout=300)
        return changed

    async def unlock(self) -> None:
        """Take away the locks of a git that was killed; not while a git that may have made them runs here."""
        folders = {Path(await git(self.folder, "rev-parse", "--path-format=absolute", word)) for word in _FOLDERS}
        locks = [lock for folder in folders for name in _LOCKS for lock in folder.glob(name)]
        if locks and not _git_runs_in(self.folder):
            for lock in locks:
                lock.unlink(missing_ok=True)

    @asynccontextmanager
    async def staged(self, commit: str) -> AsyncIterator[Path]:
        """The files of a commit in a folder of their own, for as long as this lasts; one process at a time does it."""
        for left in (await self._git_folder()).glob(f"{_STAGED}*"):  # by a process that was killed here
            await git(self.folder, "worktree", "remove", "--force", str(left))
        folder = await self._git_folder() / f"{_STAGED}{new_id()}"
        await git(self.folder, "worktree", "add", "--quiet", "--detach", str(folder), commit, timeout=300)
        try:
            yield folder
        finally:
            await git(self.folder, "worktree", "remove", "--force", str(folder))

    async def record(self) -> Record:
        """What earlier updates left to know."""
        try:
            return Record(**json.loads((await self._git_folder() / _RECORD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return Record()

    async def remember(self, record: Record) -> None:
        """Keep it, in one step."""
        path = await self._git_folder() / _RECORD
        aside = path.with_name(f"{path.name}.{new_id()}")
        aside.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        os.replace(aside, path)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keep other processes from updating the same checkout.

        Raises:
            OperatorError: One of them is at it.
        """
        with _locked(await self._git_folder() / "operator-update.lock"):
            yield

    async def _git_folder(self) -> Path:
        return Path(await git(self.folder, "rev-parse", "--absolute-git-dir"))


def _git_runs_in(folder: Path) -> bool:
    """Whether there is a process of git that works in a folder; one that cannot be looked at may."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip().startswith("git"):
                here = Path(os.readlink(process / "cwd"))
                if here.is_relative_to(folder.resolve()):
                    return True
        except FileNotFoundError:
            continue  # it has ended
        except OSError:
            return True
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OperatorError("Another process is updating this checkout; wait for it.") from None
        yield
