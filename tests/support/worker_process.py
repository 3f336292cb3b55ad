"""A worker as a process of its own, which a test may kill, stop or ask to leave."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from operator_core.config import Settings

if TYPE_CHECKING:
    from tests.support.rig import Rig

__all__ = ["kill_at", "start_worker"]


def start_worker(
    db: str, settings: Settings, output: Path, *, until_idle: bool = True, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``operator_core.work.process.serve`` in a process.

    Args:
        db: Path or URL of the store.
        output: File that gets what it prints, appended.
        until_idle: Whether it leaves when there is nothing left to do.
        env: Variables to add, e.g. a fail-point.
    """
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-W", "error", __file__, db, settings.model_dump_json(), str(int(until_idle))],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        )


async def kill_at(rig: Rig, store: str, place: str, folder: Path) -> None:
    """Let a worker work until it comes to that place, where it dies; its lease is over then.

    Args:
        place: A fail-point.
        folder: Gets what it prints and where it died.
    """
    from sqlalchemy import update

    from operator_core.db.schema import workers

    env = {"OPERATOR_CRASH_AT": place, "OPERATOR_CRASH_LOG": str(folder / "crashes")}
    process = start_worker(store, rig.settings, folder / "output", env=env)
    try:
        code = await asyncio.to_thread(process.wait, 60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    assert code == -signal.SIGKILL, (folder / "output").read_text()
    assert (folder / "crashes").read_text().split() == [place]
    # Its lease is over: what a test would only wait for.
    async with rig.database.begin() as c:
        await c.execute(update(workers).values(lease_until=0))


async def _main(db: str, settings: str, until_idle: str) -> None:
    from operator_core.work.process import serve

    await serve(db, settings=Settings.model_validate_json(settings), until_idle=until_idle == "1")


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
