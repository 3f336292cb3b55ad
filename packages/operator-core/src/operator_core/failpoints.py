"""Named places where a test can kill this process, to prove that nothing is lost there.

Nothing happens unless ``OPERATOR_CRASH_AT`` is set: to a number n (the n-th place that is reached, whatever its name),
or to ``name`` or ``name:n`` (the n-th time that this place is reached). The process then dies by SIGKILL, and the name
is appended to ``OPERATOR_CRASH_LOG``.
"""

from __future__ import annotations

import os
import signal

__all__ = ["arm", "reach"]

_target = ""
_counts: dict[str, int] = {}


def arm(target: str) -> None:
    """Die at this place; for a process that did not start with ``OPERATOR_CRASH_AT``."""
    global _target
    _target = target
    _counts.clear()


def reach(name: str) -> None:
    """Say that this place is reached."""
    if _target:
        _maybe_die(name)


def _maybe_die(name: str) -> None:
    key = "" if _target.isdigit() else name
    _counts[key] = _counts.get(key, 0) + 1
    # Names may have colons themselves.
    wanted, _, number = _target.rpartition(":") if _target.rpartition(":")[2].isdigit() else (_target, "", "1")
    due = _counts[""] == int(_target) if not key else name == wanted and _counts[key] == int(number)
    if due:
        if log := os.environ.get("OPERATOR_CRASH_LOG"):
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{name}\n")
        os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("OPERATOR_CRASH_AT", ""))
