"""A control group for each session, where this process may make one: limits for all of its commands together.

Both versions: with the first each controller has a tree of its own; with the second a group can only be made where
somebody prepared it (``Delegate=yes`` and ``DelegateSubgroup=`` of systemd), because a group with processes in it has
no limited groups below. Elsewhere there are limits per process only, and the report says so.

Moving a process into a group often waits for 10 to 20 ms in the kernel. Of the first version a single *thread* can be a
member, and what it starts is born there: so one thread of ours moves once, and starts all commands of the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from operator_core.clock import new_id
from operator_core.sandbox.owner import is_left_over, owner
from operator_core.sandbox.policy import Limits
from operator_core.sandbox.process import signal_quietly

__all__ = ["CONTROLLERS", "Group", "Parent", "find_parents"]

CONTROLLERS = ("memory", "pids")
_TRIES = 100
_PREFIX = "operator-"
_EXTRA_PROCESSES = 64
"""For bubblewrap's own two processes of each command."""
_ESCAPE = re.compile(r"\\([0-7]{3})")
_NOT_GIVEN = "no control group was given to us; run the worker with Delegate=yes and DelegateSubgroup=worker"
_DELEGATED = ("user.delegate", "trusted.delegate")


class Parent(NamedTuple):
    """Where a group can be made.

    Attributes:
        directory: Its folder.
        controllers: Which of the two it limits.
        unified: Whether it is of the second version.
    """

    directory: Path
    controllers: tuple[str, ...]
    unified: bool


def find_parents(groups: str, mounts: str) -> list[Parent]:
    """The groups of this process, where limits below them are possible in principle.

    Args:
        groups: ``/proc/self/cgroup``.
        mounts: ``/proc/self/mountinfo``.
    """
    own: dict[str, str] = {}
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = path
    found: list[Parent] = []
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        kind, _, options = rest.split(" ", 2)
        root, point = (_ESCAPE.sub(lambda match: chr(int(match[1], 8)), word) for word in words[3:5])
        controllers = tuple(name for name in CONTROLLERS if name in options.split(","))
        path = own.get("" if kind == "cgroup2" else next(iter(controllers), "-"), "..")
        if kind not in ("cgroup", "cgroup2") or not _below(path, root):
            continue
        directory = Path(point, os.path.relpath(path, root))
        if kind == "cgroup":
            found.append(Parent(directory, controllers, False))
        else:
            found += [Parent(directory, CONTROLLERS, True), Parent(directory.parent, CONTROLLERS, True)]
    return found


def _below(path: str, root: str) -> bool:
    return ".." not in path.split("/") and (root == "/" or path == root or path.startswith(root + "/"))


class Group:
    """The group of one session; :meth:`make` once, then :meth:`add` for each process, and :meth:`remove`.

    Attributes:
        why_not: By controller, why there is no limit.
        processes: How many processes may be in it.
        thread: Where processes have to be started; None for anywhere.
    """

    def __init__(self) -> None:
        self.why_not = dict.fromkeys(CONTROLLERS, "there is no such control group here")
        self.processes = 0
        self._directories: dict[str, Path] = {}
        self._moved: list[Path] = []
        self.thread: ThreadPoolExecutor | None = None

    def make(self, limits: Limits) -> None:
        """Make it where that is possible, and remove what dead processes left there."""
        self.processes = limits.procs + _EXTRA_PROCESSES
        try:
            parents = find_parents(_read(Path("/proc/self/cgroup")), _read(Path("/proc/self/mountinfo")))
        except (OSError, ValueError):
            return
        name = f"{_PREFIX}{owner()}-{new_id()[:8]}"
        for parent in parents:
            wanted = [item for item in parent.controllers if item not in self._directories]
            try:
                if not wanted:
                    continue
                if parent.unified and not _can_limit(parent.directory):
                    self.why_not.update(dict.fromkeys(wanted, _NOT_GIVEN))
                    continue
                _sweep(parent.directory)
                directory = parent.directory / name
                directory.mkdir(exist_ok=True)
            except OSError as error:
                for item in wanted:
                    self.why_not[item] = f"no control group can be made ({error.strerror})"
                continue
            for item in wanted:
                self._limit(item, directory, limits, unified=parent.unified)
            if directory not in self._directories.values():
                with contextlib.suppress(OSError):
                    directory.rmdir()
            elif parent.unified or not self._enter(directory):
                self._moved.append(directory)

    def _enter(self, directory: Path) -> bool:
        """Whether our thread is in there from now on."""
        if self.thread is None:
            self.thread = ThreadPoolExecutor(1, "sandbox-group")
        try:
            self.thread.submit((directory / "tasks").write_text, "0").result()
        except OSError:
            return False
        return True

    def _limit(self, controller: str, directory: Path, limits: Limits, *, unified: bool) -> None:
        if controller == "pids":
            files = {"pids.max": self.processes}
        elif unified:
            files = {"memory.max": limits.memory, "memory.swap.max": 0}
        else:
            files = {"memory.limit_in_bytes": limits.memory, "memory.memsw.limit_in_bytes": limits.memory}
        first = True
        for name, value in files.items():
            try:
                (directory / name).write_text(str(value))
            except OSError as error:  # without accounting of swap the second one does not exist
                if first:
                    self.why_not[controller] = f"no limit can be set ({error.strerror})"
                    return
            first = False
        self._directories[controller] = directory
        del self.why_not[controller]

    @property
    def controllers(self) -> frozenset[str]:
        """What it limits."""
        return frozenset(self._directories)

    @property
    def folders(self) -> list[Path]:
        """Its folders; one for both controllers, or one each."""
        return list(dict.fromkeys(self._directories.values()))

    def add(self, pid: int) -> None:
        """Put a process in that has been started in :attr:`thread`; what it starts afterwards follows.

        Raises:
            OSError: That was refused.
        """
        for directory in self._moved:
            with contextlib.suppress(ProcessLookupError):
                (directory / "cgroup.procs").write_text(str(pid))

    def used(self, controller: str) -> int:
        """The most that was used so far (bytes, or processes), as the kernel counted it; 0 if it does not say."""
        names = {"memory": ("memory.peak", "memory.max_usage_in_bytes"), "pids": ("pids.peak", "pids.current")}
        for name in names[controller]:
            with contextlib.suppress(OSError, ValueError, KeyError):
                return int(_read(self._directories[controller] / name))
        return 0

    def kills(self) -> int:
        """How often the kernel has killed a process in it for want of memory; 0 if it does not say."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                for line in _read(self._directories["memory"] / name).splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    async def remove(self) -> None:
        """End what is in it, and remove it. May be called again."""
        if self.thread is not None:
            await asyncio.to_thread(self.thread.shutdown)
            self.thread = None
        for directory in self.folders:
            for _ in range(_TRIES):
                if _remove(directory):
                    break
                await asyncio.sleep(0.005)  # the last of it is still ending
        self._directories.clear()
        self._moved.clear()


def _can_limit(directory: Path) -> bool:
    """Whether groups below get limits; switches that on where the folder was given to us."""
    if not _is_delegated(directory):
        return False
    enabled = directory / "cgroup.subtree_control"
    if not set(CONTROLLERS) <= set(_read(enabled).split()):
        enabled.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    return True


def _is_delegated(directory: Path) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return False


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        if is_left_over(folder.name.removeprefix(_PREFIX)):
            _remove(folder)


def _remove(directory: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        for pid in map(int, _read(directory / "cgroup.procs").split()):
            # Our own thread may still be ending there; 0 is a process that we cannot see, but to kill it is our group.
            if pid not in (0, os.getpid()):
                signal_quietly(pid, signal.SIGKILL)
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")
