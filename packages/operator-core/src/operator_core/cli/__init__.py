"""The command line.

This package imports nothing heavy: `operator --help` must be there at once. What a command needs, it imports itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from operator_core.cli.failures import guarded

__all__ = ["main", "start"]

_GLOBAL = ("--db", "--config", "--server", "--token-file")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``operator`` (default: those of this process).

    Returns:
        The exit code: 0, 1 when something is wrong, 2 for a wrong command line or configuration, 130 after Ctrl-C.
    """
    return start("operator_core.cli.app", argv)


def start(module: str, argv: Sequence[str] | None = None) -> int:
    """Run one command of the program that a module has as ``app``.

    Args:
        module: Imported when everything that goes wrong ends as one sentence already.
        argv: The words after the program's name (default: those of this process).
    """
    words = list(sys.argv[1:] if argv is None else argv)

    def run() -> int:
        from operator_core.cli.program import run_program

        return run_program(import_module(module).app, _global_options_first(words))

    return guarded(run)


def _global_options_first(words: Sequence[str]) -> list[str]:
    """Let ``--db``, ``--config`` and the like stand anywhere, as people write them."""
    first: list[str] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            rest += [word, *left]
            break
        if word in _GLOBAL and left:
            first += [word, left.pop(0)]
        elif word.partition("=")[0] in _GLOBAL and "=" in word:
            first.append(word)
        else:
            rest.append(word)
    return first + rest
