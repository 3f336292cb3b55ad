"""Counts the lines of a log by their level."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

__all__ = ["count", "main"]

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def count(lines: Iterable[str]) -> Counter[str]:
    """How often each level occurs."""
    words = (line.split(maxsplit=2) for line in lines)
    return Counter(parts[1] for parts in words if len(parts) > 1 and parts[1] in LEVELS)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or 2 if the file cannot be read."""
    parser = argparse.ArgumentParser(prog="levels.py", description=__doc__)
    parser.add_argument("file", type=Path, help="the log")
    options = parser.parse_args(arguments)
    try:
        lines = options.file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        print(f"{options.file} cannot be read: {error}", file=sys.stderr)
        return 2
    for level, number in count(lines).most_common():
        print(level, number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
