"""Which process something belongs to, in a few characters, so that another one can tell when it is left over."""

from __future__ import annotations

import os
import re
import zlib

from operator_core.sandbox.process import start_time

__all__ = ["PATTERN", "is_left_over", "owner"]

PATTERN = re.compile(r"(\d+)-(\d+)-(\d+)")


def owner() -> str:
    """This process: its machine, PID namespace, id and start time. No other is called that while the machine runs."""
    return f"{_namespace()}-{os.getpid()}-{start_time(os.getpid())}"


def is_left_over(text: str) -> bool:
    """Whether a text begins with an :func:`owner` that is gone; False if it is one of elsewhere, or none at all."""
    match = PATTERN.match(text)
    if match is None or match[1] != _namespace() or not start_time(os.getpid()):
        return False
    return start_time(int(match[2])) != match[3]


def _namespace() -> str:
    try:
        # The first namespace has the same number everywhere, and a folder (or a daemon) may serve several machines.
        machine = f"{zlib.crc32(os.fsencode(os.uname().nodename)):010d}"
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")) + machine
    except OSError:
        return ""
