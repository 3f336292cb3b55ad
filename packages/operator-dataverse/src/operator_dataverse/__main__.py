"""``python -m operator_dataverse`` is the command line."""

from __future__ import annotations

import sys

from operator_dataverse.cli import main

if __name__ == "__main__":
    sys.exit(main())
