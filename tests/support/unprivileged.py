"""A real other user: programs that run with another user id, although the tests run as root.

The interpreter or the checkout may lie below a folder that is closed to others (root's home). Then the program sees,
in a mount namespace of its own, an open folder in its place that holds just these two.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["UID", "Unprivileged", "UnprivilegedMissing"]

UID = 61234
"""Nobody's: no account has it, and no account is made."""

ROOT = Path(__file__).parents[2]


class UnprivilegedMissing(Exception):
    """No program can be run as another user here; the text says why, as a clause."""


class Unprivileged:
    """Somebody who is not root, with an empty folder of their own.

    As a context manager it removes the folder. Where the tests themselves do not run as root it is the current user.

    Args:
        uid: The user id to take (default :data:`UID`); nothing else of theirs may run.
        groups: Further groups, e.g. that of the docker daemon's socket (default none).

    Attributes:
        uid: The user id of the programs.
        folder: Theirs, 0700, below the temporary folder of the machine; also their ``HOME``.

    Raises:
        UnprivilegedMissing: Another user cannot be taken, or cannot read the interpreter and the checkout.
    """

    def __init__(self, uid: int = UID, groups: Sequence[int] = ()) -> None:
        self.uid = uid if os.geteuid() == 0 else os.geteuid()
        # Not pytest's folder: that is closed to others.
        self.folder = Path(tempfile.mkdtemp(prefix="operator-user-"))
        self._before: list[str] = []
        try:
            if os.geteuid() == 0:
                os.chown(self.folder, self.uid, self.uid)
                self._before = _becoming(self.uid, groups)
            self._probe()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Unprivileged:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder; no error if it is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self, name: str) -> Path:
        """A new folder of theirs."""
        path = self.folder / name
        path.mkdir(parents=True)
        self.give(path)
        return path

    def give(self, *paths: Path) -> None:
        """Make files and whole folders theirs."""
        if os.geteuid() != 0:
            return
        for path in paths:
            os.lchown(path, self.uid, self.uid)
            if path.is_dir() and not path.is_symlink():
                self.give(*path.iterdir())

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """All variables of a program: a search path, a home, a UTF-8 locale, how deep tests go, and ``env``."""
        return {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "USER": "somebody",
            "LOGNAME": "somebody",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **{name: value for name, value in os.environ.items() if name == "OPERATOR_DEEP_TESTS"},
            **(env or {}),
        }

    def start(self, *argv: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start a program; its process id is that of the ``Popen``.

        Args:
            *argv: The program and its words, e.g. ``sys.executable, "-m", "tests.escape.agent"``.
            env: More variables; see :meth:`environment`.
            **options: For ``Popen``; by default the working directory is the checkout, there is no standard input, and
                text comes back.
        """
        options = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "text": True, **options}
        process: subprocess.Popen[str] = subprocess.Popen([*self._before, *argv], env=self.environment(env), **options)
        return process

    def run(
        self, *argv: str, env: Mapping[str, str] | None = None, timeout: float = 60.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; a non-zero exit code is no exception.

        Args:
            *argv: As in :meth:`start`.
            env: As in :meth:`start`.
            timeout: Seconds until it is killed and ``subprocess.TimeoutExpired`` raised.
            **options: As in :meth:`start`; by default standard output and standard error come back as text.
        """
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        with self.start(*argv, env=env, **options) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def python(self, code: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run Python text with ``sys.argv[1:]`` = ``args``; it can import the product and ``tests``."""
        return self.run(sys.executable, "-c", code, *args, **options)

    def _probe(self) -> None:
        done = self.python("import os, operator_core, tests.support; print(os.geteuid())")
        if done.returncode != 0 or done.stdout.strip() != str(self.uid):
            why = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise UnprivilegedMissing(f"no program can be run as user {self.uid} here ({why})")


def _becoming(uid: int, groups: Sequence[int]) -> list[str]:
    """The words before a program that make it the other user's, by a chain of execs."""
    programs = {name: shutil.which(name) for name in ("unshare", "setpriv", "mount")}
    lost = [name for name, path in programs.items() if path is None]
    if lost:
        raise UnprivilegedMissing(f"the program {lost[0]} is not installed")
    more = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", more, "--"]
    needed = _needed()
    closed = sorted({top for path in needed if (top := _closed_ancestor(path)) is not None})
    if not closed:
        return become
    room = "/run" if os.path.isdir("/run") else "/tmp"
    steps = ["set -e", f"mount -t tmpfs -o mode=755 tmpfs {room}"]
    hidden = [path for path in needed if _closed_ancestor(path) is not None]
    for number, path in enumerate(hidden):
        steps += [f"mkdir {room}/{number}", f"mount --rbind {shlex.quote(str(path))} {room}/{number}"]
    steps += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(top))}" for top in closed]
    for number, path in enumerate(hidden):
        place = shlex.quote(str(path))
        steps += [f"mkdir -p {place}", f"mount --rbind {room}/{number} {place}"]
    # Anew, because the old one may be below what has been covered.
    steps += [f"umount -l {room}", 'cd -- "$PWD"', 'exec "$@"']
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(steps), "sh", *become]


def _needed() -> list[Path]:
    """Folders that a Python program of this checkout reads, without those that lie in another one."""
    found: set[str] = set()
    paths = [str(ROOT), sys.prefix, sys.base_prefix, *(entry for entry in sys.path if os.path.isdir(entry))]
    link = sys.executable
    while os.path.islink(link):
        link = os.path.join(os.path.dirname(link), os.readlink(link))
        paths.append(os.path.dirname(link))
    for path in paths:
        found |= {os.path.abspath(path), os.path.realpath(path)}
    found.discard("/")
    ordered: list[Path] = []
    for path in sorted(found):
        if not any(Path(path).is_relative_to(other) for other in ordered):
            ordered.append(Path(path))
    return ordered


def _closed_ancestor(path: Path) -> Path | None:
    """The topmost folder above ``path`` that others cannot pass through."""
    for parent in reversed(path.parents):
        if not os.stat(parent).st_mode & stat.S_IXOTH:
            return parent
    return None
