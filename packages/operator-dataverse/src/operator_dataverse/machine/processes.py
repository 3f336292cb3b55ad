"""A program that lives longer than the command that started it: telling it from others, and ending all of it.

An id alone is used again after a while; an id and the time at which its process began name one process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from typing import NamedTuple

from operator_core import clock
from operator_core.errors import OperatorError
from operator_dataverse.machine.programs import ask, small_environment

__all__ = ["Running", "end_family", "family", "pause", "processes", "processes_of_ps", "started_at"]

_POLL_S = 0.05
_KILL_S = 10.0


class Running(NamedTuple):
    """One process.

    Attributes:
        parent: Id of its parent.
        group: Id of its process group.
        started: When it began, in the words of this system; only compared.
    """

    parent: int
    group: int
    started: str


def processes() -> dict[int, Running]:
    """Every process of this machine by its id, without those that have ended and only wait to be noticed."""
    return _processes_of_proc() if os.path.exists("/proc/self/stat") else processes_of_ps()


def _processes_of_proc() -> dict[int, Running]:
    found = ((int(name), _one_of_proc(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: what for pid, what in found if what is not None}


def _one_of_proc(pid: int) -> Running | None:
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        # The name, in brackets, may hold anything.
        fields = file.read().rpartition(b")")[2].split()
        if fields[0] not in (b"Z", b"X"):
            return Running(int(fields[1]), int(fields[2]), fields[19].decode())
    return None


def processes_of_ps() -> dict[int, Running]:
    """The same from ``ps``, where there is no ``/proc``."""
    env = {**small_environment(), "LC_ALL": "C", "TZ": "UTC"}
    answer = ask(("ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="), env)
    if answer.code != 0:
        raise OperatorError(f"The processes of this machine cannot be listed ({answer.said}); install `ps`.")
    found = {}
    for line in answer.out.splitlines():
        if row := re.match(r"\s*(\d+)\s+(\d+)\s+(\d+)\s+([^Z\s]\S*)\s+(.+?)\s*$", line):
            found[int(row[1])] = Running(int(row[2]), int(row[3]), row[5])
    return found


def started_at(pid: int) -> str:
    """When a process began; empty: there is none with this id."""
    if sys.platform == "win32":
        # No program of Windows itself but this one tells it.
        script = f"(Get-Process -Id {int(pid)} -ErrorAction Stop).StartTime.ToFileTimeUtc()"
        answer = ask(("powershell", "-NoProfile", "-NonInteractive", "-Command", script), small_environment())
        return answer.out.strip() if answer.code == 0 else ""
    found = _one_of_proc(pid) if os.path.exists("/proc/self/stat") else processes_of_ps().get(pid)
    return found.started if found else ""


def family(pid: int, started: str, marker: str) -> dict[int, Running]:
    """A program and what it started.

    Args:
        pid: The program.
        started: When it began; if that is no longer so, it has ended.
        marker: A variable and its value (``NAME=VALUE``) that was put into its environment, unique for it. Where
            ``/proc`` is, what has cut its parentage is found by it.
    """
    every = processes()
    found = {one for one in every if _carries(one, marker)}
    if pid in every and every[pid].started == started:
        found.add(pid)
        found |= {one for one, what in every.items() if what.group == pid}
    while more := {one for one, what in every.items() if what.parent in found} - found:
        found |= more
    return {one: every[one] for one in found - {os.getpid()}}


def _carries(pid: int, marker: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marker.encode() in file.read().split(b"\0")
    except OSError:
        return False


def end_family(pid: int, started: str, marker: str, *, patience_s: float = 5.0) -> int:
    """End a program and everything that it started: first it is asked to, then killed.

    Args:
        pid: As of :func:`family`.
        started: As of :func:`family`.
        marker: As of :func:`family`.
        patience_s: Time that it has for ending by itself.

    Returns:
        How many processes it was.

    Raises:
        OperatorError: Some do not end.
    """
    if sys.platform == "win32":
        if started_at(pid) != started:
            return 0
        answer = ask(("taskkill", "/PID", str(int(pid)), "/T", "/F"), small_environment())
        if started_at(pid) == started:
            raise OperatorError(f"The sign-in window (process {pid}) does not end: {answer.said}; close it yourself.")
        return 1
    seen = family(pid, started, marker)
    # A browser ends its own helpers when it is asked; asked themselves, they would look like a crash.
    first = {pid: seen[pid]} if pid in seen else seen
    _signal(first, signal.SIGTERM)
    ask_until = clock.monotonic() + patience_s
    kill_until = ask_until + _KILL_S
    while left := _still(seen) | family(pid, started, marker):
        seen |= left
        now = clock.monotonic()
        if now > kill_until:
            raise OperatorError(f"{len(left)} processes of the sign-in window do not end: {sorted(left)}; end them.")
        if now > ask_until or pid not in left:
            _signal(left, signal.SIGKILL)
        pause(_POLL_S)
    return len(seen)


def _still(seen: Mapping[int, Running]) -> dict[int, Running]:
    every = processes()
    # Its parent changes when that ends; when it began does not.
    return {pid: every[pid] for pid, was in seen.items() if pid in every and every[pid].started == was.started}


def _signal(them: Mapping[int, Running], number: signal.Signals) -> None:
    for pid, was in them.items():
        if started_at(pid) == was.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def pause(seconds: float) -> None:
    """Wait."""
    import threading

    threading.Event().wait(seconds)
