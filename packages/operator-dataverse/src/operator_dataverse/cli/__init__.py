"""The command line ``operator-dataverse``. Nothing heavy is imported here; what a command needs, it imports itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from operator_core.cli.failures import guarded

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``operator-dataverse`` (default: those of this process).

    Returns:
        The exit code, as of ``operator``.
    """
    words = list(sys.argv[1:] if argv is None else argv)

    def run() -> int:
        from operator_core.cli.app import run_typer
        from operator_dataverse.cli.app import app

        return run_typer(app, words, "operator-dataverse")

    return guarded(run)
