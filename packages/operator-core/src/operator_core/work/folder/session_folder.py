"""The session folder of a task: what people read, in a place that no agent can write to but ``workspace/``.

Rows B-007, B-008, B-031, B-036. Each attempt has a folder of its own, so that nothing is inherited from an earlier one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from operator_core import clock
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.errors import StoreError, StoreFull, StoreReadOnly
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Ticket

__all__ = ["SESSIONS", "SessionFolder", "brief_files", "folder_name", "place_file", "short_id"]

SESSIONS = "Operator Sessions"
"""The folder of all session folders, under the root."""

_NAME_LENGTH = 50
_HARMLESS = re.compile(r"[^A-Za-z0-9_ -]")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_THE_WAY = (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)

_TASK = """\
# TASK - READ ONLY - SOURCE OF TRUTH

## Task Description

{task}

## Important Notes

- This file is read-only; changing it, or a copy of it, changes nothing about the task.
- Work in the workspace only, and leave every result there.
- VERIFICATION.md says how the result is judged, by somebody else, who really tries it.
- End your last reply with exactly one of these, as its last line:
  - `STATUS: done` when the work is complete and you have tried it yourself
  - `STATUS: blocked - <reason why you're blocked>` when only a person can help you on
"""
_VERIFICATION = """\
# Verification Criteria

## Success Definition

{criteria}

## Verification Instructions

- Really test it: run it, run its tests, call it. Reading alone approves nothing.
- Any error, anything partial or incomplete means: not approved.

{frozen}"""
_FROZEN = """\
These commands were frozen when the task was submitted. The platform runs them itself, on a copy of the workspace, with
the files that they need restored; each must end with exit code 0.
"""
_NOTHING_FROZEN = "No check was frozen when the task was submitted.\n"


def folder_name(name: str, id8: str) -> str:
    """``{sanitized_name}_{id8}``: printable ASCII of at most 59 characters, harmless on every file system.

    Characters other than ASCII letters, digits, ``-``, ``_`` and space become ``_``; the name is cut to 50. It never
    begins or ends with what a shell or Windows treats specially, and the id behind it makes ``CON`` an ordinary name.
    """
    words = _HARMLESS.sub("_", name).lstrip(" -")[:_NAME_LENGTH].rstrip(" ")
    tail = re.sub(r"[^A-Za-z0-9]", "", id8)[:8] or "0"
    return f"{words or 'task'}_{tail}"


def short_id(ticket: Ticket) -> str:
    """The first eight hexadecimal digits of the id in a task's violation key (``task:<uuid>``)."""
    found = re.match(r"[0-9a-f]{8}", ticket.violation_key.rpartition(":")[2].replace("-", "").lower())
    return found[0] if found else hashlib.sha256(ticket.violation_key.encode("utf-8", "replace")).hexdigest()[:8]


class SessionFolder:
    """``<root>/Operator Sessions/{name}_{id8}/attempt-N``; nothing is touched before :meth:`create`.

    Args:
        root: An existing or future folder, absolute; links on the way to it are a person's own business.
        name: See :func:`folder_name`.
        attempt: Number of the session among the ticket's sessions, from 1.

    Attributes:
        path: The attempt's folder.
        workspace: Where the agent works; the only place in it that an agent can write to.
    """

    def __init__(self, root: Path, name: str, attempt: int) -> None:
        self.root = root
        self.name = name
        self.attempt = attempt
        self.path = root / SESSIONS / name / f"attempt-{attempt}"
        self.workspace = self.path / "workspace"

    @classmethod
    def locate(
        cls, settings: Settings, database: Database, ticket: Ticket, spec: TaskSpec, attempt: int
    ) -> SessionFolder:
        """Where the folder of an attempt is, or would be.

        The root is ``[tasks] root``; without it the folder of an SQLite store, else ``~/.operator``.
        """
        if settings.tasks.root is not None:
            root = settings.tasks.root
        else:
            root = Path(database.name).absolute().parent if database.sqlite else Path("~/.operator")
        return cls(root.expanduser().resolve(), folder_name(spec.name, short_id(ticket)), attempt)

    @property
    def exists(self) -> bool:
        """Whether the attempt's folder is there."""
        return self.path.is_dir()

    @property
    def branch(self) -> str:
        """The branch of the result: ``operator/{folder name}``, with ``-attempt-N`` for later attempts."""
        again = f"-attempt-{self.attempt}" if self.attempt > 1 else ""
        return f"operator/{self.name.replace(' ', '-')}{again}"

    def create(self) -> None:
        """Make the folder, for its owner alone; harmless if it is there.

        Raises:
            StoreReadOnly: It cannot be made, or a link or a file is where one of its folders should be.
            StoreFull: The disk is full.
        """
        with self._sentences(), self._opened():
            pass

    def write_brief(
        self, task_description: str, success_criteria: str, prompt: str, checks: Sequence[TaskCheck] = ()
    ) -> dict[str, str]:
        """Write what the agents are told, as files that nobody may write (row B-031).

        The same arguments give the same bytes; a file that was changed meanwhile is put right.

        Returns:
            File name -> SHA-256 (hex) of its content, for :meth:`changed`.
        """
        files = brief_files(task_description, success_criteria, prompt, checks)
        digests = {}
        for name, text in files.items():
            data = _encoded(text)
            digests[name] = hashlib.sha256(data).hexdigest()
            if self.changed({name: digests[name]}):
                self._write(name, data, 0o444)
        return digests

    def changed(self, digests: Mapping[str, str]) -> list[str]:
        """Names of the files that are not what they were: other content, missing, or not a plain file any more."""
        try:
            parent = os.open(self.path, _DIRECTORY)
        except OSError:
            return list(digests)
        try:
            return [name for name, digest in digests.items() if _digest(parent, name) != digest]
        finally:
            os.close(parent)

    def write(self, name: str, text: str) -> None:
        """Replace a file in one step. What lies there instead (a link, a folder) is replaced or put aside.

        Raises:
            StoreReadOnly: It cannot be written.
            StoreFull: The disk is full; what was there before is still there.
        """
        self._write(name, _encoded(text), 0o644)

    def remove(self, name: str) -> None:
        """Take a file away, if it is there."""
        with self._sentences(), contextlib.suppress(FileNotFoundError):
            parent = os.open(self.path, _DIRECTORY)
            try:
                os.unlink(name, dir_fd=parent)
            except IsADirectoryError:
                _put_aside(parent, name)
            finally:
                os.close(parent)

    def _write(self, name: str, data: bytes, mode: int) -> None:
        with self._sentences(), self._opened() as parent:
            _replace(parent, name, data, mode)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The attempt's folder, made if it is missing, reached without following a link below the root."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _below(self.root, self.path.relative_to(self.root).parts, 0o700) as here:
            yield here

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _sentence(error, self.path) from None


def place_file(folder: Path, path: str, data: bytes, mode: int) -> None:
    """Write a file below a folder, making the folders on the way and following no link.

    Raises:
        OSError: It cannot be written; ``ELOOP`` or ``ENOTDIR`` if a link or a file is on the way.
    """
    *folders, name = PurePosixPath(path).parts
    with _below(folder, folders, 0o755) as here:
        _replace(here, name, data, mode)


@contextlib.contextmanager
def _below(top: Path, parts: Sequence[str], mode: int) -> Iterator[int]:
    """An open folder below another one; the folders on the way are made, and none of them may be a link."""
    here = os.open(top, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, mode, dir_fd=here)
            child = os.open(part, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = child
        yield here
    finally:
        os.close(here)


def _replace(parent: int, name: str, data: bytes, mode: int) -> None:
    temporary = f".{clock.new_id()[:8]}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=parent)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        try:
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise
            _put_aside(parent, name)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


def _put_aside(parent: int, name: str) -> None:
    os.rename(name, f"{name}.aside-{clock.new_id()[:8]}", src_dir_fd=parent, dst_dir_fd=parent)


def _digest(parent: int, name: str) -> str | None:
    """SHA-256 of a plain file; None for anything else."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sentence(error: OSError, path: Path) -> StoreError:
    if error.errno in _FULL:
        return StoreFull(f"The disk under {path} is full; free some space and start again, nothing stored is lost.")
    why = error.strerror or str(error)
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        why = "a link or a file is where one of its folders should be"
    return StoreReadOnly(f"The session folder {path} cannot be written ({why}); set [tasks] root to another place.")


def _encoded(text: str) -> bytes:
    # Half of a surrogate pair has no UTF-8; its escape is also valid JSON.
    return text.encode("utf-8", "backslashreplace")


def brief_files(
    task_description: str, success_criteria: str, prompt: str, checks: Sequence[TaskCheck] = ()
) -> dict[str, str]:
    """What the agents are told (sections 2.2.5 and 2.2.8), by name of the file; all of it has an UTF-8 form."""
    commands = [
        "".join(f"    {line}\n" for line in check.command.splitlines()) + f"\n    (at most {check.timeout_s:g} s)\n"
        for check in checks
    ]
    frozen = f"{_FROZEN}\n" + "\n".join(commands) if commands else _NOTHING_FROZEN
    files = {
        "TASK.md": _TASK.format(task=task_description),
        "VERIFICATION.md": _VERIFICATION.format(criteria=success_criteria, frozen=frozen),
        "TASK_PROMPT.md": f"{prompt}\n",
        "SUCCESS_CRITERIA.md": f"{success_criteria}\n",
    }
    return {name: _encoded(text).decode() for name, text in files.items()}
