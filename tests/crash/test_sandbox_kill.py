"""A worker is killed while it starts sandboxes and commands, at any moment: nothing of it may live on."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import processes_of, wait_until, wait_until_gone

RUN = f"{random.randrange(10**9):09d}"
ROUNDS = 20

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


GUARDED = """
import asyncio, sys, time
from operator_core.sandbox.linux.guard import Guard
async def main():
    guard = Guard()
    await guard.open()
    print(guard.mark, flush=True)
    if sys.argv[1] == "close":
        await guard.close()
        await guard.close()
        print("closed", flush=True)
    time.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["kill", "close"])
def test_what_carries_the_mark_ends_with_a_worker_that_is_killed(way: str) -> None:
    """Whoever its parent is; but not after an orderly end, and nothing else that names the mark."""
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            return process

        worker = start(sys.executable, "-c", GUARDED, way)
        assert worker.stdout is not None
        mark = worker.stdout.readline().decode().strip()
        assert mark.startswith("operator-")
        wait = "import time; time.sleep(600)"
        marked = [start(sys.executable, "-c", wait, mark) for _ in range(3)]
        other = start(sys.executable, "-c", wait, mark, "more")
        if way == "close":
            assert worker.stdout.readline() == b"closed\n"
        worker.kill()
        worker.wait()
        if way == "kill":
            assert [process.wait(60) for process in marked] == [-signal.SIGKILL] * 3
        else:
            time.sleep(0.2)
            assert [process.poll() for process in marked] == [None] * 3
        assert other.poll() is None


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("require_bubblewrap")
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
                wait_until(lambda mark=mark: len(processes_of(mark)) > 1, 60)
            time.sleep(number * 0.013)
            worker.kill()
        # Also a bubblewrap that has not started its command, and never will: it names the workspace.
        wait_until_gone(mark, str(workspace))
