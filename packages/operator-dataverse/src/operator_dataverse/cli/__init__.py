"""The command line ``operator-dataverse``. Nothing heavy is imported here; what a command needs, it imports itself."""

from __future__ import annotations

from collections.abc import Sequence

from operator_core.cli import start

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``operator-dataverse`` (default: those of this process).

    Returns:
        The exit code, as of ``operator``.
    """
    return start("operator_dataverse.cli.app", argv)
