"""Background jobs of an agent: servers, watchers, long builds. They end with the sandbox at the latest."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from anthropic import beta_async_tool

from operator_core.agent_lab.calls import Started
from operator_core.agent_lab.gateway import ToolGateway, ToolOutput, ToolRefused, text_of
from operator_core.agent_lab.toolbox.tool import ONLY_A_SCHEMA, Tool, check_names, number_of, sendable
from operator_core.errors import SandboxError
from operator_core.safety.layer import SafetyLayer
from operator_core.sandbox.protocol import Job

__all__ = ["job_tools"]

_FIRST_LOOK_S = 0.3
_LONGEST_WAIT_S = 60.0
_SHOWN = 16_384


@beta_async_tool
async def job_start(command: str) -> str:
    """Start a command in the background, e.g. a server, and go on.

    The answer is JSON: job (its name), running, exit_code and output_bytes. It runs until it ends, until job_kill, or
    until your session ends; commands of the shell can reach its ports at localhost.

    Args:
        command: Any bash command or script; it starts in the directory of the shell.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def job_status(job: str = "", wait: float = 0.0) -> str:
    """Say how background jobs are: running, exit_code, reason, output_bytes.

    Args:
        job: Its name; empty for all of them.
        wait: Seconds to wait for its end, at most 60.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def job_output(job: str, offset: int = 0, limit: int = 16384) -> str:
    """Read what a background job has printed (stdout and stderr as they came).

    The answer is JSON: output, offset, next_offset (give it as offset to read on), output_bytes and running.

    Args:
        job: Its name.
        offset: First byte; negative: counted from the end.
        limit: How many bytes, at most 16384.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def job_kill(job: str) -> str:
    """Stop a background job and everything it started.

    Args:
        job: Its name.
    """
    raise AssertionError(ONLY_A_SCHEMA)


def job_tools(safety: SafetyLayer | None = None) -> tuple[Tool, ...]:
    """The four tools.

    Args:
        safety: Judges the commands of jobs too (default: nobody does, the sandbox is the boundary).
    """

    async def start(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
        check_names("job_start", arguments, ("command",))
        command = sendable(text_of(arguments, "command"), "command")

        async def work() -> ToolOutput:
            if safety is not None and (refused := safety.blocked(command)) is not None:
                shown = refused._asdict()
                return ToolOutput(shown, shown, "blocked", refused.exit_code)
            name = _name(gateway, tool_use_id)
            job = await gateway.sandbox.spawn(command, name=name)
            await job.wait(_FIRST_LOOK_S)
            return _said(_state(job), f"{name} started")

        return await _once(gateway, tool_use_id, "job_start", work)

    return (
        Tool(job_start, start),
        Tool(job_status, _status),
        Tool(job_output, _output),
        Tool(job_kill, _kill),
    )


async def _status(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
    check_names("job_status", arguments, ("job", "wait"))
    seconds = min(_LONGEST_WAIT_S, number_of(arguments, "wait", 0.0, least=0, whole=False))

    async def work() -> ToolOutput:
        if not arguments.get("job"):
            states = [_state(job) for job in gateway.sandbox.jobs.values()]
            return _said({"jobs": states}, f"{len(states)} jobs")
        job = _find(gateway, arguments)
        if seconds:
            await job.wait(seconds)
        state = _state(job)
        return _said(state, f"{job.name} {'runs' if state['running'] else 'has ended'}")

    return await _once(gateway, tool_use_id, "job_status", work)


async def _output(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
    check_names("job_output", arguments, ("job", "offset", "limit"))
    offset = int(number_of(arguments, "offset", 0))
    limit = min(_SHOWN, int(number_of(arguments, "limit", _SHOWN, least=1)))

    async def work() -> ToolOutput:
        job = _find(gateway, arguments)
        state = job.status()
        start = offset if offset >= 0 else max(0, job.log.stat().st_size + offset)
        data = job.output(start, limit)
        # Half of a character at the end belongs to the next part, unless nothing follows.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        left = len(decoder.getstate()[0])
        if left == len(data) or (not state.running and len(data) < limit):
            text, left = text + decoder.decode(b"", final=True), 0
        value = {
            "output": text,
            "offset": start,
            "next_offset": start + len(data) - left,
            "output_bytes": state.output_bytes,
            "running": state.running,
        }
        return _said(value, f"{len(data)} bytes of {job.name}")

    return await _once(gateway, tool_use_id, "job_output", work)


async def _kill(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
    check_names("job_kill", arguments, ("job",))

    async def work() -> ToolOutput:
        job = _find(gateway, arguments)
        await job.kill()
        return _said(_state(job), f"{job.name} stopped")

    return await _once(gateway, tool_use_id, "job_kill", work)


async def _once(gateway: ToolGateway, tool_use_id: str, name: str, work: Callable[[], Awaitable[ToolOutput]]) -> str:
    async def refusing(started: Started, spool: Path) -> ToolOutput:
        try:
            return await work()
        except SandboxError as error:  # too many jobs, or this one could not start
            raise ToolRefused(gateway.clean(str(error))) from None

    return await gateway.once(tool_use_id, name, refusing)


def _name(gateway: ToolGateway, tool_use_id: str) -> str:
    """A name that no other job of the conversation has, also after another worker went on with it."""
    digest = hashlib.sha256(tool_use_id.encode("utf-8", "surrogatepass")).hexdigest()
    taken = {job.name for job in gateway.sandbox.jobs.values()}
    return next(f"job-{digest[:n]}" for n in range(4, 64) if f"job-{digest[:n]}" not in taken)


def _find(gateway: ToolGateway, arguments: dict[str, Any]) -> Job:
    name = text_of(arguments, "job")
    jobs = list(gateway.sandbox.jobs.values())
    for job in jobs:
        if job.name == name:
            return job
    known = f"There are: {', '.join(job.name for job in jobs)}." if jobs else "There is none."
    raise ToolRefused(f"There is no job {name!r}. {known} Jobs end when the session is interrupted; start it again.")


def _state(job: Job) -> dict[str, Any]:
    status = job.status()
    return {
        "job": job.name,
        "running": status.running,
        "exit_code": status.exit_code,
        "reason": status.reason,
        "output_bytes": status.output_bytes,
    }


def _said(value: dict[str, Any], summary: str) -> ToolOutput:
    return ToolOutput(value, value, summary)
