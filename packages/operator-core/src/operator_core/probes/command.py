"""Looking by a command of the person who configured the monitor; it runs as the monitor, outside any sandbox."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path

from operator_core.model.invariant import CommandProbe
from operator_core.probes.observation import LookFailed, Seen, excerpt
from operator_core.sandbox.policy import Limits
from operator_core.sandbox.process import Process
from operator_core.sandbox.protocol import Stream
from operator_core.sandbox.runner import run

__all__ = ["COULD_NOT_LOOK", "OUTPUT_LIMIT", "look_command", "say_command"]

OUTPUT_LIMIT = 64 * 1024
"""So many bytes of each stream are kept; the rest is read and dropped."""
COULD_NOT_LOOK = 3
"""Exit code by which a command says that it could not look."""
_ENDLESS = 16 << 20


async def look_command(probe: CommandProbe, *, cwd: Path | None, env: Mapping[str, str] | None) -> Seen:
    """Run the command in ``bash``; its value is the exit code, or what it printed.

    Its process tree is killed when it ends and when the caller's deadline cancels this. Its environment is ``PATH``,
    ``HOME`` and ``LANG`` of the monitor, and ``env``.

    Raises:
        LookFailed: It did not start, was killed, exited with 3, or printed nothing usable.
    """

    async def spawn(stdout: int, stderr: int) -> Process:
        return await asyncio.create_subprocess_exec(
            "bash",
            "--noprofile",
            "--norc",
            "-c",
            probe.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd or "/",
            env={"PATH": os.defpath, **_own_environment(), **(env or {})},
            start_new_session=True,
        )

    try:
        # No limit of time here: the caller's deadline covers the start as well.
        done = await run(spawn, timeout=None, limits=Limits(head=OUTPUT_LIMIT, tail=0), output_kill=_ENDLESS)
    except (OSError, ValueError) as error:
        # A folder that is not there, no bash, no more processes, a NUL in the command.
        raise LookFailed(f"the command did not start ({error})", ours=True) from None
    raw = excerpt(done.stdout.head + (b"\n[stderr]\n" + done.stderr.head if done.stderr.head else b""))
    code = done.returncode
    if done.reason == "output_limit":
        raise LookFailed(f"the command printed more than {_ENDLESS >> 20} MiB", raw=raw)
    if code is None:
        raise LookFailed("nobody knows how the command ended", raw=raw)
    if code < 0:
        raise LookFailed(f"the command was killed by {_signal_name(-code)}", raw=raw)
    if code == COULD_NOT_LOOK:
        raise LookFailed(_first_line(done.stderr) or "the command says that it could not look (exit code 3)", raw=raw)
    if probe.value == "exit_code":
        return Seen(code, raw)
    if code != 0:
        raise LookFailed(_first_line(done.stderr) or f"the command failed with exit code {code}", raw=raw)
    if done.stdout.omitted:
        raise LookFailed(f"the command printed more than {OUTPUT_LIMIT // 1024} KiB", raw=raw)
    return Seen(done.stdout.head.decode("utf-8", "replace").strip(), raw)


def say_command(probe: CommandProbe, cwd: Path | None) -> str:
    """The command itself, with the folder it runs in."""
    return probe.command if cwd is None else f"cd {shlex.quote(str(cwd))} && {probe.command}"


def _own_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _first_line(stream: Stream) -> str:
    lines = stream.head.decode("utf-8", "replace").strip().splitlines()
    return excerpt(lines[0].strip(), 200) if lines else ""
