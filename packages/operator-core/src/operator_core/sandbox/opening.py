"""Choosing a backend by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from operator_core.errors import ConfigError
from operator_core.sandbox.policy import Policy
from operator_core.sandbox.protocol import RedactFilter, Sandbox

__all__ = ["BACKENDS", "open_sandbox"]

BACKENDS = ("auto", "bubblewrap", "none")


def open_sandbox(
    backend: str,
    policy: Policy,
    *,
    session_dir: Path,
    redact: Callable[[], RedactFilter] | None = None,
) -> Sandbox:
    """Make a sandbox; nothing happens before its ``start``.

    Args:
        backend: ``auto`` (bubblewrap or a refusal), ``bubblewrap``, or ``none`` (no isolation at all).
        policy: What commands see and may change.
        session_dir: A directory of this session, outside of the workspace; it is made. ``tmp``, ``home``, ``out``,
            ``etc`` and ``state`` below it belong to the sandbox, and ``close`` removes them.
        redact: Makes one filter per output stream; default no filter.

    Raises:
        ConfigError: There is no such backend.
    """
    if backend in ("auto", "bubblewrap"):
        from operator_core.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox(policy, session_dir, redact)
    if backend == "none":
        from operator_core.sandbox.local import LocalSandbox

        return LocalSandbox(policy, session_dir, redact)
    raise ConfigError(f"The sandbox backend {backend!r} does not exist; choose one of {', '.join(BACKENDS)}.")
