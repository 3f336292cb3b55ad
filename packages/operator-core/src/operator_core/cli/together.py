"""The monitor and a worker in one process over one store: what `operator up` and the demo run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from operator_core.agent_lab.engine import Engine
from operator_core.cli.until import until_one_ends
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.monitor.build import build_loops
from operator_core.monitor.loop import MonitorLoop
from operator_core.monitor.recheck import Recheck
from operator_core.monitor.report import CycleReport
from operator_core.work.session import Conclusion
from operator_core.work.sources import attach_sources, work_beside
from operator_core.work.worker import Worker

__all__ = ["monitor_lines", "serve_together", "watch"]


async def serve_together(
    settings: Settings,
    database: Database,
    engine: Engine,
    stop: asyncio.Event,
    *,
    say: Callable[[str], None],
    on_conclusion: Callable[[Conclusion], None] = lambda conclusion: None,
    on_cycle: Callable[[CycleReport], None] | None = None,
    interval_s: float | None = None,
) -> None:
    """Watch, work, and take tickets from elsewhere, until ``stop`` is set; when one fails, the others end too.

    Raises:
        OperatorError: Why it could not go on.
    """
    lines = monitor_lines(say)

    def heard(report: CycleReport) -> None:
        lines(report)
        if on_cycle is not None:
            on_cycle(report)

    settings, sources = attach_sources(settings, database, say)
    loops = build_loops(settings, TicketDB(database), on_cycle=heard, interval_s=interval_s)
    worker = Worker(settings, database, engine, say=say, on_conclusion=on_conclusion, look_with_checker=Recheck().look)
    say(f"Watching {len(settings.subject)} subject(s) and working on tickets; Ctrl-C ends both.")
    await work_beside(sources, stop, lambda: until_one_ends(stop, [watch(loops, stop), worker.run(stop)]))


async def watch(loops: Sequence[MonitorLoop], stop: asyncio.Event) -> None:
    """Run all loops until ``stop`` is set."""
    await until_one_ends(stop, [loop.run(stop) for loop in loops])


def monitor_lines(say: Callable[[str], None], *, every: bool = False) -> Callable[[CycleReport], None]:
    """Prints what a cycle found: when it differs from the last one, and every new ticket.

    Args:
        every: Every cycle.
    """
    last: dict[str, str] = {}
    known: set[tuple[int | None, int]] = set()

    def put(report: CycleReport) -> None:
        if every or last.get(report.subject) != report.line:
            last[report.subject] = report.line
            say(f"[Monitor] {report.subject}: {report.line}")
        for ticket in report.tickets:
            episode = (ticket.id, ticket.reopen_count)
            if episode not in known:
                known.add(episode)
                say(f"[Monitor] Ticket #{ticket.id} ({ticket.severity}): {ticket.message}")

    return put
