"""`operator --help` is there at once, the tree of commands is complete, and `--version` says what it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from operator_core import __version__
from tests.support import run_operator
from tests.support.processes import operator_environment

COMMANDS = [
    "init", "doctor", "demo", "up", "serve", "token create", "token list", "token revoke",
    "submit", "reply", "steer", "cancel",
    "monitor run", "worker run", "agent start", "config show",
    "tickets list", "tickets show", "tickets open", "tickets cancel", "tickets hold", "tickets unhold",
    "tickets resolve", "tickets reopen", "sessions list", "sessions show", "sessions tail",
    "audit list", "audit show", "audit verify", "audit export", "audit prune", "sandbox report", "sandbox test",
]  # fmt: skip

HELP_CPU_S = 0.3
"""Of issue and design; on top of what Python itself needs."""


def cpu_of(*words: str) -> float:
    """CPU seconds of one child, the best of some, because a busy machine only ever adds."""
    seconds = []
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, *words],
            env=operator_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        seconds.append(usage.ru_utime + usage.ru_stime)
    return min(seconds)


@pytest.mark.usefixtures("cold")
def test_help_costs_next_to_nothing() -> None:
    assert cpu_of("-m", "operator_core", "--help") - cpu_of("-c", "pass") < HELP_CPU_S


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = run_operator(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: operator {command}" in done.stdout


@pytest.mark.usefixtures("cold")
def test_version() -> None:
    done = run_operator("--version")
    assert (done.returncode, done.stdout) == (0, f"operator {__version__}\n")


def test_without_a_command_it_shows_what_there_is() -> None:
    done = run_operator()
    assert done.returncode == 2
    assert "Commands:" in done.stdout
