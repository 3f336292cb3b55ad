"""The loops of everything that ``operator.toml`` configures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from operator_core.clock import Clock
from operator_core.config import Settings
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError
from operator_core.model.invariant import Subject
from operator_core.monitor.configured import ConfiguredChecker, ConfiguredSubject
from operator_core.monitor.guard import ThreadSubject
from operator_core.monitor.loop import MonitorLoop
from operator_core.monitor.plugins import load_plugin
from operator_core.monitor.protocols import InvariantCheckerProtocol, SubjectProtocol
from operator_core.monitor.report import CycleReport

__all__ = ["build_loops"]


def build_loops(
    settings: Settings,
    tickets: TicketDB,
    clock: Clock | None = None,
    *,
    on_cycle: Callable[[CycleReport], None] | None = None,
    wake: asyncio.Event | None = None,
    interval_s: float | None = None,
) -> list[MonitorLoop]:
    """One loop for the probes of each subject, and one for its plug-in; subjects with neither are left out.

    Args:
        interval_s: Instead of ``monitor.interval_s``.

    Raises:
        ConfigError: A plug-in cannot be used, or nobody would look at an invariant.
    """
    watch = settings.monitor

    def loop(spec: Subject, subject: SubjectProtocol, checker: InvariantCheckerProtocol) -> MonitorLoop:
        interval = interval_s or watch.interval_s
        return MonitorLoop(
            subject,
            checker,
            tickets,
            interval_s=interval,
            settings=watch,
            spec=spec,
            clock=clock,
            on_cycle=on_cycle,
            wake=wake,
        )

    loops = []
    for spec in settings.subject:
        if any(i.probe is not None for i in spec.invariant):
            loops.append(loop(spec, ConfiguredSubject(spec, clock), ConfiguredChecker(spec)))
        if spec.plugin is not None:
            plugin = load_plugin(spec)
            loops.append(loop(spec, ThreadSubject(plugin.subject, spec.name), plugin.checker))
        elif spec.checker is not None:
            raise ConfigError(
                f'The subject {spec.name!r} has a checker but no plugin; set `plugin = "module:factory"`.'
            )
        else:
            for invariant in spec.invariant:
                if invariant.probe is None:
                    raise ConfigError(
                        f"Nobody would look at the invariant {invariant.name!r} of the subject {spec.name!r}; "
                        "give it a `probe`, or the subject a `plugin`."
                    )
    return loops
