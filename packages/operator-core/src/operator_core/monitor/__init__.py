"""Watching subjects and opening a ticket for what does not hold; a look that failed is never a healthy one."""

from __future__ import annotations

from operator_core.monitor.build import build_loops
from operator_core.monitor.configured import ConfiguredChecker, ConfiguredSubject
from operator_core.monitor.loop import MonitorLoop
from operator_core.monitor.protocols import InvariantCheckerProtocol, SubjectProtocol
from operator_core.monitor.report import CycleReport

__all__ = [
    "ConfiguredChecker",
    "ConfiguredSubject",
    "CycleReport",
    "InvariantCheckerProtocol",
    "MonitorLoop",
    "SubjectProtocol",
    "build_loops",
]
