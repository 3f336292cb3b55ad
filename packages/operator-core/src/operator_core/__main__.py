"""``python -m operator_core``: the same as the command ``operator``."""

from __future__ import annotations

import sys

from operator_core.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
