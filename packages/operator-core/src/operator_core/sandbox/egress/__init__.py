"""The only way out of a sandbox with ``network = "allowlist"``: a proxy with rules.

It listens inside of the sandbox's network and runs in the worker. Commands find it in ``HTTP_PROXY`` and
``HTTPS_PROXY``; a program that ignores these reaches nothing. See ``docs/network.md``.
"""

from __future__ import annotations

from operator_core.sandbox.egress.proxy import Bounds, Egress
from operator_core.sandbox.egress.rules import Rules

__all__ = ["Bounds", "Egress", "Rules"]
