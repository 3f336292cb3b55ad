"""An attacker who exchanges a directory for a link, as fast as a process can."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["rounds", "swapping"]

_ATTACKER = """
import ctypes, os, sys
real, link = (os.fsencode(p) for p in sys.argv[1:])
exchange = ctypes.CDLL(None).syscall
number = {"x86_64": 316, "aarch64": 276}[os.uname().machine]  # renameat2
print("ready", flush=True)
while True:
    exchange(number, -100, real, -100, link, 2)  # RENAME_EXCHANGE: there is no moment without a name
"""


def rounds(least: int, enough: Callable[[], bool], seconds: float = 30.0) -> Iterator[int]:
    """Numbers from 0: so many at least, and on until it is enough or the time is over."""
    end = time.monotonic() + seconds
    for number in itertools.count():
        if number >= least and (enough() or time.monotonic() > end):
            return
        yield number


@contextmanager
def swapping(directory: Path, outside: Path, files: Mapping[str, str] = {}) -> Iterator[None]:
    """Let a directory and a link to ``outside`` change places until the end of the block.

    Args:
        directory: It is made, with these files.
        outside: Where the link leads.
        files: By name, what they hold.
    """
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    link = directory.with_name(directory.name + ".link")
    link.symlink_to(outside)
    attacker = subprocess.Popen(
        [sys.executable, "-I", "-c", _ATTACKER, str(directory), str(link)], stdout=subprocess.PIPE
    )
    try:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"ready\n"
        yield
    finally:
        attacker.kill()
        attacker.wait()
        assert attacker.stdout is not None
        attacker.stdout.close()
