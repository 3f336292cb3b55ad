"""``shell``: run one command, and say exactly how it went.

This is the seed's tool for use by itself, on this machine and without a sandbox. In a session the model's ``shell`` has
the same signature and the same result, but runs in the session's sandbox (:mod:`operator_core.agent_lab.gateway`).
"""

from __future__ import annotations

import asyncio
from typing import TypedDict

from operator_core.sandbox.runner import exit_status, run
from operator_core.sandbox.sink import StreamSink

__all__ = ["ShellResult", "shell"]

_ALL = 2**62


class ShellResult(TypedDict):
    """How a command went.

    Attributes:
        stdout: What it printed, decoded with replacement; empty if nothing.
        stderr: Its error output; after a timeout it ends with the sentence that says so.
        exit_code: As the shell says it (128 + n for signal n); -1 on a timeout.
        timed_out: Whether it was stopped because its time was over.
    """

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool


async def shell(command: str, reasoning: str, timeout: float = 120.0) -> ShellResult:
    """Run a shell command and return its whole output.

    The command goes to the shell as it is: nothing is quoted, filtered or refused (rows A-015, A-020). It ends with
    everything it started; a background job that holds the output open cannot hang the call (defect D-01).

    Args:
        command: Any shell command.
        reasoning: Why it is run; recorded by whoever keeps the audit, not checked.
        timeout: Seconds until it is stopped, with the partial output kept.

    Returns:
        A dict with exactly ``stdout`` (str), ``stderr`` (str), ``exit_code`` (int, -1 on a timeout) and ``timed_out``
        (bool).
    """

    async def spawn(stdout: int, stderr: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_shell(
            command, stdin=asyncio.subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )

    result = await run(spawn, timeout=timeout, sinks=(StreamSink(_ALL, 0), StreamSink(_ALL, 0)), output_kill=None)
    stdout, stderr = result.stdout.text(), result.stderr.text()
    if result.reason == "timeout":
        note = f"Command timed out after {timeout} seconds"
        return {
            "stdout": stdout,
            "stderr": f"{stderr.rstrip()}\n{note}" if stderr.strip() else note,
            "exit_code": -1,
            "timed_out": True,
        }
    code, _ = exit_status(result.returncode)
    return {"stdout": stdout, "stderr": stderr, "exit_code": -1 if code is None else code, "timed_out": False}
