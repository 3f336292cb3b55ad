"""The safety layer: the one way of Ouroboros' shell commands, which are judged, limited in time, and sandboxed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from operator_core import clock
from operator_core.errors import ConfigError
from operator_core.redaction import Redactor
from operator_core.safety.advice import CommandAdvisor
from operator_core.safety.commands import BlockedCommand, CommandCheck, CommandFilter
from operator_core.safety.guard import WorkspaceGuard
from operator_core.sandbox import ExecResult as SandboxResult
from operator_core.sandbox import Limits, Policy, Sandbox, Stream, open_sandbox
from operator_core.text import clip

__all__ = ["BLOCKED_EXIT", "ExecResult", "SafetyConfig", "SafetyLayer", "SecurityLog"]

BLOCKED_EXIT = 126
"""What a shell says of a command that it may not run."""
_LOGGED = 10_000


class ExecResult(NamedTuple):
    """How a command went.

    Attributes:
        stdout: Its whole output, up to the limit on disk of the sandbox.
        stderr: Likewise; of a blocked command the JSON that says why.
        exit_code: None after a timeout or a signal, 126 of a blocked command.
        timed_out: Whether its time was over.
    """

    stdout: str
    stderr: str
    exit_code: int | None
    timed_out: bool

    @classmethod
    def blocked(cls, found: BlockedCommand) -> ExecResult:
        """The result of a command that was refused and has not run."""
        why = {"blocked": True, "reason": found.reason, "command": found.command}
        return cls("", json.dumps(why, ensure_ascii=False), BLOCKED_EXIT, False)

    @classmethod
    def of(cls, result: SandboxResult, text: Callable[[Stream], str] | None = None) -> ExecResult:
        """The result of a command that ran.

        Args:
            result: As the sandbox says it.
            text: Makes the text of a stream (default: all that was kept of it).
        """
        text = text or _whole
        notes = []
        if result.reason == "output_limit":
            notes.append("The command was stopped because it wrote too much.")
        if result.background and not result.timed_out:
            notes.append(f"{result.background} background process(es) were stopped with the command.")
        if result.notice:
            notes.append(result.notice)
        stderr = text(result.stderr)
        if notes:
            stderr = "\n".join([stderr.rstrip("\n"), *notes]).strip("\n")
        stopped = result.timed_out or result.signal is not None
        return cls(text(result.stdout), stderr, None if stopped else result.exit_code, result.timed_out)

    def to_json(self) -> str:
        """The four fields as a JSON object (row C-017)."""
        return json.dumps(self._asdict(), ensure_ascii=False)


class SafetyConfig(NamedTuple):
    """What the layer needs to know.

    Attributes:
        workspace: Where commands start and writes stay; it is made if it is missing.
        shell_timeout_secs: Limit of one command.
        blocked_patterns: Expressions and reasons, which replace the advisor; None: the advisor.
        security_log: File of the refusals. None: ``.ouro-logs/security.log`` beside the workspace.
        backend: Of the sandbox.
    """

    workspace: Path
    shell_timeout_secs: float = 30.0
    blocked_patterns: Iterable[tuple[str, str]] | None = None
    security_log: Path | None = None
    backend: str = "auto"


class SecurityLog:
    """One JSON line for each refused command, outside of the workspace, where the agent cannot erase it (D-82).

    Args:
        path: The file; its directory is made.
        workspace: Where it must not be.
        clean: Takes secrets out (default: those of this process's environment, and what looks like one).

    Raises:
        ConfigError: It is in the workspace.
    """

    def __init__(self, path: Path, workspace: Path, clean: Callable[[str], str] | None = None) -> None:
        if Path(os.path.realpath(path)).is_relative_to(workspace):
            raise ConfigError(
                f"The security log `{path}` is in the workspace, where the agent could erase it; choose another place."
            )
        self.path = path
        self._clean = clean or Redactor.from_environment().text

    def write(self, found: BlockedCommand) -> None:
        """Note a refusal; a log that cannot be written stops nothing."""
        line = {
            "timestamp": int(clock.now().timestamp()),
            "blocked": True,
            "reason": found.reason,
            "command": clip(self._clean(found.command), _LOGGED),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, json.dumps(line).encode() + b"\n")
            finally:
                os.close(fd)
        except OSError:
            pass


class SafetyLayer:
    """Judges commands and runs them in a sandbox; an asynchronous context manager.

    Args:
        config: See :class:`SafetyConfig`.
        sandbox: One that is started and belongs to somebody else; default: one of its own, opened by the first command.
        clean: Takes secrets out of what is logged; see :class:`SecurityLog`.

    Attributes:
        guard: Keeps writes in the workspace.
        log: The security log.

    Raises:
        ConfigError: The workspace, a pattern or the place of the log is not usable.
    """

    def __init__(
        self, config: SafetyConfig, sandbox: Sandbox | None = None, clean: Callable[[str], str] | None = None
    ) -> None:
        self.config = config
        self.guard = WorkspaceGuard(config.workspace)
        root = self.guard.root
        self.log = SecurityLog(config.security_log or root.parent / ".ouro-logs" / "security.log", root, clean)
        self._check: CommandCheck = (
            CommandAdvisor(root) if config.blocked_patterns is None else CommandFilter(config.blocked_patterns)
        )
        self._sandbox = sandbox
        self._lent = sandbox is not None
        self._opening = asyncio.Lock()
        self._own = ExitStack()

    async def __aenter__(self) -> SafetyLayer:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def workspace_root(self) -> Path:
        """The canonical workspace."""
        return self.guard.root

    def blocked(self, command: str) -> ExecResult | None:
        """The result of a command that is refused, after it was noted in the security log; None: it may run."""
        found = self._check.check(command)
        if found is None:
            return None
        self.log.write(found)
        return ExecResult.blocked(found)

    async def execute(self, command: str) -> ExecResult:
        """Run a command in the workspace, or refuse it.

        Raises:
            SandboxError: There is no sandbox here, or it cannot run the command.
        """
        if (refused := self.blocked(command)) is not None:
            return refused
        sandbox = await self.sandbox()
        # Each command starts in the workspace, whatever the one before it did.
        start = str(self.guard.root)
        return ExecResult.of(await sandbox.exec(command, cwd=start, timeout=self.config.shell_timeout_secs))

    async def sandbox(self) -> Sandbox:
        """The sandbox; opened and tested if there was none.

        Raises:
            SandboxUnavailable: None can be started here.
        """
        async with self._opening:
            if self._sandbox is None:
                policy = Policy(self.guard.root, limits=Limits(timeout_s=self.config.shell_timeout_secs))
                with ExitStack() as stack:
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="operator-safety-"))
                    opened = open_sandbox(self.config.backend, policy, session_dir=Path(folder, "box"))
                    await opened.start()
                    self._sandbox = opened
                    self._own = stack.pop_all()
        return self._sandbox

    async def close(self) -> None:
        """End its sandbox with everything in it."""
        if self._sandbox is not None and not self._lent:
            await self._sandbox.close()
        self._own.close()


def _whole(stream: Stream) -> str:
    """All of a stream that was kept (row C-024: nothing is shortened here), which is then off the disk."""
    if stream.spill is None:
        return stream.text()
    with contextlib.suppress(OSError):
        if stream.spill.stat().st_size == stream.total:
            data = stream.spill.read_bytes()
            stream.spill.unlink()
            return data.decode("utf-8", "replace")
    return stream.text()
