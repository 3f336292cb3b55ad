"""A worker is killed while it starts sandboxes and commands, at any moment: nothing of it may live on."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import processes_of, wait_until

RUN = f"{random.randrange(10**9):09d}"
ROUNDS = 12

pytestmark = pytest.mark.usefixtures("require_bubblewrap")

WORKER = """
import asyncio, sys
from pathlib import Path
from operator_core.sandbox import Policy, open_sandbox
async def session(n):
    s = open_sandbox("bubblewrap", Policy(Path(sys.argv[1])), session_dir=Path(sys.argv[2], str(n)))
    await s.start()
    while True:
        await asyncio.gather(*(s.exec(f"(setsid sleep {sys.argv[3]} &); sleep {sys.argv[3]}", timeout=0.05)
                               for _ in range(3)))
async def main():
    print("started", flush=True)
    await asyncio.gather(*(session(n) for n in range(2)))
asyncio.run(main())
"""


def test_a_worker_killed_at_any_moment_leaves_no_process(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    for number in range(ROUNDS):
        mark = f"88{number}.{RUN}"
        folder = tmp_path / f"round{number}"
        argv = [sys.executable, "-c", WORKER, str(workspace), str(folder), mark]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"started\n"
            if number % 3:
                wait_until(lambda mark=mark: len(processes_of(mark)) > 1, 30)
            time.sleep(number * 0.013)
            worker.kill()
        wait_until(lambda mark=mark: not processes_of(mark), 5)
