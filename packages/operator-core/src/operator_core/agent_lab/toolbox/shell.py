"""The shell of an agent: ``shell`` as Operator's seeds have it, ``shell_exec`` as Ouroboros has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anthropic import beta_async_tool

from operator_core.agent_lab.calls import Started
from operator_core.agent_lab.gateway import ToolGateway, ToolOutput, ToolRefused, text_of
from operator_core.agent_lab.summaries import summarize_output
from operator_core.agent_lab.toolbox.tool import ONLY_A_SCHEMA, Tool, check_names, sendable
from operator_core.safety.layer import ExecResult as SafeResult
from operator_core.safety.layer import SafetyLayer
from operator_core.sandbox.protocol import ExecResult, Stream

__all__ = ["SHELL", "shell_exec_tool"]

_INLINE = 64 * 1024


@beta_async_tool
async def shell(command: str, reasoning: str, timeout: float = 120.0) -> str:
    """Run a command in bash and wait for it.

    The answer is JSON: stdout, stderr, exit_code (-1 on a timeout) and timed_out. Long output is shortened in the
    middle; the marker says where the rest can be read. The working directory carries over to the next command, shell
    variables do not. Processes left in the background are stopped when the command ends.

    Args:
        command: Any bash command or script.
        reasoning: Why you run it; goes into the audit.
        timeout: Seconds after which it is stopped.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def shell_exec(command: str) -> str:
    """Execute a shell command in the workspace directory.

    Returns a JSON object with stdout, stderr, exit_code (null after a timeout or a signal, 126 if the command was
    blocked) and timed_out. Long output is shortened in the middle; the marker says where the rest can be read.
    Processes left in the background are stopped when the command ends: use job_start for them.

    Args:
        command: The shell command to execute.
    """
    raise AssertionError(ONLY_A_SCHEMA)


async def _shell(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
    command, timeout = _arguments(arguments, gateway.timeout_s)

    async def work(started: Started, spool: Path) -> ToolOutput:
        result = await gateway.sandbox.exec(command, timeout=timeout, spool=spool, on_output=started)
        return _output(result, timeout)

    return await gateway.once(tool_use_id, "shell", work)


SHELL = Tool(shell, _shell)
"""Any command; the sandbox is the boundary."""


def shell_exec_tool(safety: SafetyLayer) -> Tool:
    """Ouroboros' shell: judged before it runs, always in the workspace, with a fixed limit of time.

    Args:
        safety: Judges commands and notes refusals. The command runs in the sandbox of the gateway.
    """

    async def run(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
        check_names("shell_exec", arguments, ("command",))
        command = sendable(text_of(arguments, "command"), "command")

        async def work(started: Started, spool: Path) -> ToolOutput:
            if (refused := safety.blocked(command)) is not None:
                return _guarded(refused, refused, {})
            timeout = safety.config.shell_timeout_secs
            result = await gateway.sandbox.exec(command, cwd=".", timeout=timeout, spool=spool, on_output=started)
            files = _spilled(result)
            return _guarded(SafeResult.of(result, Stream.text), SafeResult.of(result, _whole), files)

        return await gateway.once(tool_use_id, "shell_exec", work)

    return Tool(shell_exec, run)


def _guarded(shown: SafeResult, raw: SafeResult, files: dict[str, Path]) -> ToolOutput:
    summary = summarize_output(shown.stdout, shown.stderr, shown.exit_code, timed_out=shown.timed_out)
    notable = f"{shown.stdout}\n{shown.stderr}\nexit code {shown.exit_code}".strip()
    return ToolOutput(shown._asdict(), raw._asdict(), summary, shown.exit_code, files, notable)


def _output(result: ExecResult, timeout: float) -> ToolOutput:
    notes = []
    if result.timed_out:
        notes.append(f"Command timed out after {timeout:g} seconds")
    elif result.reason == "output_limit":
        notes.append("The command was stopped because it wrote too much.")
    if result.background:
        notes.append(f"{result.background} background process(es) were stopped with the command.")
    if result.notice:
        notes.append(result.notice)
    code = -1 if result.timed_out or result.exit_code is None else result.exit_code

    def dictionary(stdout: str, stderr: str) -> dict[str, Any]:
        said = "\n".join([stderr.rstrip("\n"), *notes]).strip("\n") if notes else stderr
        return {"stdout": stdout, "stderr": said, "exit_code": code, "timed_out": result.timed_out}

    files = _spilled(result)
    shown = dictionary(result.stdout.text(), result.stderr.text())
    raw = shown if not files else dictionary(_whole(result.stdout), _whole(result.stderr))
    summary = summarize_output(shown["stdout"], shown["stderr"], code, timed_out=result.timed_out)
    return ToolOutput(
        shown, raw, summary, code, files, f"{shown['stdout']}\n{shown['stderr']}\nexit code {code}".strip()
    )


def _spilled(result: ExecResult) -> dict[str, Path]:
    streams = (("stdout", result.stdout), ("stderr", result.stderr))
    return {name: stream.spill for name, stream in streams if stream.spill is not None}


def _whole(stream: Stream) -> str:
    if stream.total <= _INLINE and stream.spill is not None:
        return stream.spill.read_bytes().decode("utf-8", "replace")
    return stream.text()


def _arguments(arguments: dict[str, Any], default_timeout: float) -> tuple[str, float]:
    command = text_of(arguments, "command")
    text_of(arguments, "reasoning")
    timeout = arguments.get("timeout", default_timeout)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ToolRefused("`timeout` must be a number of seconds above 0.")
    sendable(command, "command")
    check_names("shell", arguments, ("command", "reasoning", "timeout"))
    return command, float(timeout)
