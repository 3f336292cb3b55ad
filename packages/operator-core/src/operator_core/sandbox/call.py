"""One command of a session: what it is, the shell around it, and what that shell leaves word of."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["NOT_STARTED", "Call", "State", "prologue", "read_state", "remove_files"]

NOT_STARTED = b"n"

# A trap for EXIT makes bash catch all signals that end it, and what it starts catches them too until it has become its
# program: then a signal is lost, and the program runs on. Not so if they had a trap of their own before; when that has
# been taken off again, they end the shell as if there were no trap for EXIT.
_PLAIN = "HUP USR1 USR2 ALRM"
# By this one, with which a time-out begins, it ends in an orderly way: after the program that it waits for, and with
# the command's own traps. (bash holds it back while it makes a process, so none is lost here either.)
_ORDERLY = "trap 'builtin exit 143' TERM"


class Call(NamedTuple):
    """One command to start.

    Attributes:
        command: Bash.
        cwd: Where it starts.
        env: Variables of this call only.
        state: The file to which the shell says that it has started, and where it has ended.
    """

    command: str
    cwd: str
    env: Mapping[str, str] | None
    state: Path

    @property
    def command_file(self) -> Path:
        """Where a backend may put a long command."""
        return self.state.with_suffix(".command")


class State(NamedTuple):
    """What the shell left word of.

    Attributes:
        started: Whether it ran at all.
        cwd: Where it ended; None if it did not say.
        background: Processes that still ran then.
        fell_back: Whether its directory was gone when it started.
    """

    started: bool
    cwd: str | None
    background: int
    fell_back: bool


def prologue(state: str, workspace: str, limits: Mapping[str, int], load: str, *, count: bool) -> str:
    """One line of bash that runs before the command, so that line numbers in its messages are right.

    It says that the shell has started, leaves word of the last directory (and of the processes that still run, where
    ``/proc`` shows only this call's), changes directory, lowers the limits and evaluates the command.

    Args:
        state: Path of the state file, as the shell sees it.
        workspace: Where to start if the directory in ``$1`` is gone.
        limits: ``ulimit`` letters and values.
        load: Shell words that put the command into the variable ``__c``.
        count: Whether to count processes.
    """
    where = shlex.quote(state)
    # `pwd` and `echo` may be functions of the command by then; errors of `set -x` and `set -u` are not its output.
    tally = "set -- /proc/[0-9]*; builtin echo $#" if count else "builtin echo 0"
    # A background process that is killed before it has become its program is still a copy of the shell, and runs this.
    own = "[[ $BASHPID = $$ ]]"
    farewell = f"{{ set +uxf; {own} && {{ {tally}; builtin pwd -P; }}; }} >>{where} 2>/dev/null"
    steps = [
        # Overwriting what is there (`<>`) also works on a disk that is full.
        f"builtin echo s 1<>{where}",
        f'cd -- "$1" 2>/dev/null || {{ builtin echo f 1<>{where}; cd -- {shlex.quote(workspace)}; }}',
        *(f"ulimit -{letter} {value} 2>/dev/null" for letter, value in limits.items()),
        load,
        f"{_ORDERLY}; trap : {_PLAIN}",
        f"trap {shlex.quote(farewell)} EXIT",
        f"trap - {_PLAIN}",
        'set --; eval "unset __c; $__c"',
    ]
    return "; ".join(steps)


def remove_files(call: Call) -> None:
    for path in (call.state, call.command_file):
        with contextlib.suppress(OSError):
            path.unlink()


def read_state(path: Path) -> State:
    """What the shell wrote over our ``n``: ``s`` (started) or ``f`` (its directory was gone), a count, a directory."""
    try:
        # The command can write here whatever it likes, but in bubblewrap it cannot make it another kind of file.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return State(True, None, 0, False)
    try:
        text = os.read(fd, 8192) if stat.S_ISREG(os.fstat(fd).st_mode) else b"s"
    finally:
        os.close(fd)
    mark, _, rest = text.partition(b"\n")
    count, _, directory = rest.partition(b"\n")
    cwd = os.fsdecode(directory.removesuffix(b"\n"))
    left = int(count) - 2 if count.isdigit() and len(count) < 8 else 0
    usable = cwd.startswith("/") and "\0" not in cwd
    return State(mark != NOT_STARTED, cwd if usable else None, max(0, left), mark == b"f")
