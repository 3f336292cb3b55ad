"""A worker as a process of its own: it opens the store and works until somebody tells it to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from operator_core.agent_lab.engine import open_engine
from operator_core.agent_lab.gateway import Say
from operator_core.config import Settings, load_settings
from operator_core.db.engine import Database
from operator_core.monitor.recheck import Recheck
from operator_core.work.session import Conclusion
from operator_core.work.sources import attach_sources, look_everywhere, work_beside
from operator_core.work.worker import Worker

__all__ = ["serve"]


async def serve(
    db: str | None = None,
    *,
    settings: Settings | None = None,
    audit_dir: Path | None = None,
    say: Say = print,
    until_idle: bool = False,
    on_conclusion: Callable[[Conclusion], None] = lambda conclusion: None,
    concurrency: int | None = None,
) -> None:
    """Open the store and work until SIGINT or SIGTERM.

    Args:
        concurrency: Instead of ``[worker] concurrency``.

    Raises:
        OperatorError: One sentence that says what is wrong and what to do.
    """
    chosen = settings or load_settings(db=db).settings
    if concurrency is not None:
        chosen = chosen.model_copy(update={"worker": chosen.worker.model_copy(update={"concurrency": concurrency})})
    engine = open_engine(chosen.model)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with Database.open(db or chosen.store.url) as database:
            chosen, sources = attach_sources(chosen, database, say)
            worker = Worker(
                chosen,
                database,
                engine,
                say=say,
                audit_dir=audit_dir,
                on_conclusion=on_conclusion,
                look_with_checker=Recheck().look,
                more=lambda: look_everywhere(sources),
            )
            say("Agent loop starting. Polling for tickets...")
            await work_beside(sources, stop, lambda: worker.run(stop, until_idle=until_idle))
    finally:
        await engine.close()
