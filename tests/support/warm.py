"""Interpreters that start at once: they are forked from one that has imported the product already.

A test of the command line starts dozens of programs, and each would spend most of its time on importing the same
modules. The programs are processes of their own all the same, children of the test, with the words, variables, folder
and descriptors that the test gives them. Where `OPERATOR_DEEP_TESTS` is set every program is started from nothing.
"""

from __future__ import annotations

import array
import inspect
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["WarmInterpreter", "cold_processes", "warm_processes"]

_PROGRAM = Path(__file__).with_name("warm_child.py")
_ROOM = 32_768
_START: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_SIGNATURE = inspect.signature(_START)
_AT_START = ("PYTHON", "LD_", "MALLOC", "GLIBC", "PYDANTIC", "ANTHROPIC_LOG", "DEFER_PYDANTIC")
"""Prefixes of the variables that an interpreter or a module reads once; a program that has one starts from nothing."""
_KNOWN = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""What the warm interpreter can do afterwards."""
_LOCALE = (b"LANG", b"LC_ALL", b"LC_CTYPE")
"""They are read once, too; each locale has a warm interpreter of its own."""
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class WarmInterpreter:
    """One warm interpreter, started when it is first needed.

    Args:
        locale: The variables that name the locale of the programs.
    """

    def __init__(self, locale: Mapping[bytes, bytes]) -> None:
        self._locale = dict(locale)
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._broken = False

    def start(self, request: dict[str, Any], fds: list[int]) -> int:
        """Start a program; its process id.

        Raises:
            OSError: The warm interpreter is gone.
        """
        body = pickle.dumps(request)
        with self._lock:
            if self._broken:
                raise OSError("the warm interpreter has ended")
            line = self._line or self._open()
            line.sendmsg(
                [struct.pack("I", len(body))],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))],
            )
            line.sendall(body)
            answer = line.recv(4)
            if len(answer) < 4:
                self._broken = True
                raise OSError("the warm interpreter has ended")
            return int(struct.unpack("i", answer)[0])

    def stop(self) -> None:
        """End it; the programs it started go on."""
        if self._line is not None and self._process is not None:
            self._line.close()
            self._process.wait(timeout=30)
            self._line = None

    def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # The long word and the long variable are the room in which the programs show their own.
                [sys.executable, str(_PROGRAM), str(theirs.fileno()), "-" * _ROOM],
                env={**self._locale, b"PATH": os.fsencode(os.defpath), b"HOME": b"/", b"ROOM": b"-" * _ROOM},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._line = ours
        return ours


@contextmanager
def warm_processes() -> Iterator[None]:
    """Until the end, interpreters that this process starts in an ordinary way are warm ones."""
    warm: dict[tuple[tuple[bytes, bytes], ...], WarmInterpreter] = {}

    def start(self: Any, *values: Any) -> None:
        given = _SIGNATURE.bind(self, *values).arguments
        request = _request(given)
        if request is None:
            return _START(self, *values)
        wanted = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        fds = [fd if fd >= 0 else standard for standard, fd in enumerate(wanted)]
        locale = {name: request["env"][name] for name in _LOCALE if name in request["env"]}
        interpreter = warm.setdefault(tuple(locale.items()), WarmInterpreter(locale))
        try:
            self.pid = interpreter.start(request, fds)
        except OSError:
            return _START(self, *values)
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in _PIPES))
        return None

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _START  # type: ignore[attr-defined]
        for interpreter in warm.values():
            interpreter.stop()


@contextmanager
def cold_processes() -> Iterator[None]:
    """Until the end, interpreters are started from nothing again."""
    before = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    subprocess.Popen._execute_child = _START  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = before  # type: ignore[attr-defined]


def _request(given: dict[str, Any]) -> dict[str, Any] | None:
    """What the warm interpreter needs to know, or None when only a new one will do."""
    args = given["args"]
    if isinstance(args, (str, bytes, os.PathLike)) or given["executable"] not in (None, sys.executable):
        return None
    words = [os.fsencode(word) for word in args]
    first = [os.fsdecode(word) for word in words[:4]]
    plain = not (
        given["preexec_fn"] or given["pass_fds"] or given["shell"] or not given["close_fds"] or given["umask"] >= 0
    ) and all(given[name] is None for name in ("uid", "gid", "gids"))
    if not plain or first[0] != sys.executable or not _ordinary(first[1:]):
        return None
    env = os.environb if given["env"] is None else given["env"]
    variables = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    names = [os.fsdecode(name) for name in variables]
    if any(name.startswith(_AT_START) and name not in _KNOWN for name in names):
        return None
    cwd = os.getcwd() if given["cwd"] is None else os.fsdecode(given["cwd"])
    room = sum(len(name) + len(value) + 2 for name, value in variables.items())
    if not os.path.isdir(cwd) or room > _ROOM or sum(map(len, words)) + len(words) > _ROOM:
        return None
    return {
        "argv": words,
        "env": variables,
        "cwd": cwd,
        "umask": _umask(),
        "interruptible": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
        "session": given["start_new_session"],
        "group": given["process_group"],
    }


def _ordinary(words: list[str]) -> bool:
    if words[:2] == ["-W", "error"]:
        words = words[2:]
    if not words:
        return False
    return words[0] in ("-c", "-m") if words[0].startswith("-") else words[0].endswith(".py")


def _umask() -> int:
    found = re.search(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1], 8)
