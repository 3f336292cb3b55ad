"""Waits for the end of a worker, and ends what the worker's sandboxes have left then.

A program (``python3 -I -S guard_helper.py FD``), with few modules because one waits beside every session. It reads the
pipe FD to its end: a mark, and behind it ``.`` if there is nothing to do. :mod:`operator_core.sandbox.linux.guard` has
the other end, and says why.
"""

from __future__ import annotations

import os
import signal
import sys
import time

__all__ = ["end_all", "main"]

ROUND_S, TOGETHER_S = 0.02, 60.0


def marked(pid: str, ending: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().endswith(ending)
    except OSError:
        return False  # ended meanwhile


def end(pid: str, ending: bytes) -> None:
    """Kill a process, if it is still that with the mark: an id alone may be somebody else's by now."""
    try:
        fd = os.pidfd_open(int(pid))
    except OSError:
        return
    try:
        if marked(pid, ending):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        pass  # it has ended, or is not ours
    finally:
        os.close(fd)


def end_all(mark: bytes) -> None:
    """Kill every process whose last argument is the mark, until two looks in a row have found none."""
    ending = b"\0" + mark + b"\0"
    deadline = time.monotonic() + TOGETHER_S  # what waits for a broken disk cannot be ended
    clean = 0
    while clean < 2 and time.monotonic() < deadline:
        found = [name for name in os.listdir("/proc") if name.isdigit() and marked(name, ending)]
        for pid in found:
            end(pid, ending)
        clean = 0 if found else clean + 1
        time.sleep(ROUND_S)


def main() -> None:
    with open(int(sys.argv[1]), "rb") as pipe:
        mark = pipe.read()
    if mark and not mark.endswith(b"."):
        end_all(mark)


if __name__ == "__main__":
    main()
