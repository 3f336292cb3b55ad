"""A worker as a process of its own, which a test may kill, stop or ask to leave."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from operator_core.config import Settings

__all__ = ["start_worker"]


def start_worker(
    db: str, settings: Settings, output: Path, *, until_idle: bool = True, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``operator_core.work.worker.serve`` in a process.

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


async def _main(db: str, settings: str, until_idle: str) -> None:
    from operator_core.work.worker import serve

    await serve(db, settings=Settings.model_validate_json(settings), until_idle=until_idle == "1")


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
