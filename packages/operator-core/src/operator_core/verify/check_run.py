"""One run of a check: how it ended, and what its output says."""

from __future__ import annotations

from typing import Literal, NamedTuple

from operator_core.sandbox.protocol import ExecResult
from operator_core.text import printable
from operator_core.verify.copies import plain_name
from operator_core.verify.frozen import Restored

__all__ = ["CheckRun", "Light", "read_run"]

Light = Literal["red", "green", "could_not_look"]

_COULD_NOT_LOOK = 3
_TAIL = 4000


class CheckRun(NamedTuple):
    """How a check ended.

    Attributes:
        light: What its exit status says.
        exit: That status; None if it had none.
        seen: How it ended, in words.
        tail: The end of its output, printable, at most 4000 characters.
        tests: Tests that it reported as failing because the platform had made them fail.
        complete: Whether all of its output was kept.
        restored: What was put back or taken out for it.
        digest: Content digest of the copy that it ran on.
    """

    light: Light
    exit: int | None
    seen: str
    tail: str
    tests: frozenset[str] = frozenset()
    complete: bool = True
    restored: Restored = Restored((), (), ())
    digest: str = ""


def read_run(result: ExecResult, marks: dict[str, str]) -> CheckRun:
    """What a command that has ended says.

    Args:
        marks: What a failing test prints, by the platform's doing -> the test.
    """
    output = result.stdout.text()
    if result.stderr.total:
        output += ("" if not output or output.endswith("\n") else "\n") + result.stderr.text()
    output = printable(output.encode("utf-8", "replace").decode())
    tail = output.strip()
    tail = tail if len(tail) <= _TAIL else "…" + tail[1 - _TAIL :]
    tests = frozenset(plain_name(name) for mark, name in marks.items() if mark in output)
    complete = not (result.stdout.omitted or result.stderr.omitted)
    light: Light = "red"
    if result.timed_out:
        seen = f"it did not end within {result.duration_s:.0f} s"
    elif result.reason != "exited":
        seen = "it was stopped because of its endless output"
    elif result.exit_code is None:
        light, seen = "could_not_look", "it vanished without an exit status"
    else:
        seen = f"exit {result.exit_code}" + (f" (signal {result.signal})" if result.signal is not None else "")
        if result.exit_code in (0, _COULD_NOT_LOOK):
            light = "could_not_look" if result.exit_code else "green"
    return CheckRun(light, result.exit_code, seen, tail, tests, complete)
