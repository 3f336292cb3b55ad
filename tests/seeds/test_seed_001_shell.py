"""The verify script of seed 001, task 2, word for word (row A-018)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.processes import operator_environment

SCRIPT = """\
import asyncio
from operator_core.agent_lab import shell

async def test():
    # Test basic command
    r1 = await shell("echo hello", "testing basic echo")
    assert r1["stdout"].strip() == "hello"
    assert r1["exit_code"] == 0
    assert r1["timed_out"] is False

    # Test error command
    r2 = await shell("exit 1", "testing exit code")
    assert r2["exit_code"] == 1

    # Test timeout (use short timeout)
    r3 = await shell("sleep 5", "testing timeout", timeout=1.0)
    assert r3["timed_out"] is True
    assert r3["exit_code"] == -1

    print("All tests passed!")

asyncio.run(test())
"""


def test_the_script_of_the_seed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=operator_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "All tests passed!\n"), done.stderr
