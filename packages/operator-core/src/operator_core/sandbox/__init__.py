"""Where commands run: one :class:`Sandbox` per agent session.

``open_sandbox("auto", Policy(workspace), session_dir=...)`` makes one; ``await sandbox.start()`` builds and attacks it
and says what holds. ``auto`` never falls back to something weaker: it refuses, with the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operator_core.sandbox.opening import open_sandbox
    from operator_core.sandbox.policy import Limits, Network, Policy
    from operator_core.sandbox.protocol import (
        ExecResult,
        FileView,
        Job,
        JobStatus,
        OnOutput,
        Reason,
        RedactFilter,
        Sandbox,
        Stream,
    )
    from operator_core.sandbox.report import Control, Report
    from operator_core.sandbox.runner import RawResult, run

__all__ = [
    "Control",
    "ExecResult",
    "FileView",
    "Job",
    "JobStatus",
    "Limits",
    "Network",
    "OnOutput",
    "Policy",
    "RawResult",
    "Reason",
    "RedactFilter",
    "Report",
    "Sandbox",
    "Stream",
    "open_sandbox",
    "run",
]

_HOMES = {
    "opening": ("open_sandbox",),
    "policy": ("Limits", "Network", "Policy"),
    "protocol": (
        "ExecResult", "FileView", "Job", "JobStatus", "OnOutput", "Reason", "RedactFilter", "Sandbox", "Stream",
    ),
    "report": ("Control", "Report"),
    "runner": ("RawResult", "run"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
