"""How much of what could go on for ever is tried: a part on a laptop, all of it in continuous integration."""

from __future__ import annotations

import os

__all__ = ["DEEP"]

DEEP = os.environ.get("OPERATOR_DEEP_TESTS") == "1"
"""Whether sweeps, storms and races go their whole length; `.ci/run` sets it."""
