"""Named places where a test can kill this process, to prove that nothing is lost there.

Nothing happens unless ``OPERATOR_CRASH_AT`` is set: to a number n (the n-th place that is reached, whatever its name),
or to ``name`` or ``name:n`` (the n-th time that this place is reached). The process then dies by SIGKILL, and the name
is appended to ``OPERATOR_CRASH_LOG``.
"""

from __future__ import annotations

import os
import signal

__all__ = ["reach"]

_TARGET = os.environ.get("OPERATOR_CRASH_AT", "")
_counts: dict[str, int] = {}


def reach(name: str) -> None:
    """Say that this place is reached."""
    if _TARGET:
        _maybe_die(name)


def _maybe_die(name: str) -> None:
    key = "" if _TARGET.isdigit() else name
    _counts[key] = _counts.get(key, 0) + 1
    wanted, _, number = _TARGET.partition(":")
    due = _counts[""] == int(_TARGET) if not key else name == wanted and _counts[key] == int(number or 1)
    if due:
        if log := os.environ.get("OPERATOR_CRASH_LOG"):
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{name}\n")
        os.kill(os.getpid(), signal.SIGKILL)
