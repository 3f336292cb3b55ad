"""The seam between the agent and the place where its commands run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from operator_core.sandbox.report import Report

__all__ = ["ExecResult", "FileView", "Job", "JobStatus", "OnOutput", "Reason", "RedactFilter", "Sandbox", "Stream"]

Reason = Literal["exited", "timeout", "output_limit", "cancelled"]

OnOutput = Callable[[str, memoryview], None]
"""Called with ``"stdout"`` or ``"stderr"`` and the (redacted) bytes, which are valid only during the call."""


class RedactFilter(Protocol):
    """Takes secrets out of one stream of bytes, also where a secret is split between two chunks."""

    def feed(self, data: bytes) -> bytes:
        """Take the next chunk; return what is safe to keep by now."""
        ...

    def flush(self) -> bytes:
        """The stream has ended: return what was held back."""
        ...


class Stream(NamedTuple):
    """What is kept of one output stream.

    Attributes:
        head: The first bytes.
        tail: The last bytes that are not in ``head``.
        total: Bytes in the whole stream (after redaction).
        spill: The file with the first bytes of the stream up to the spill limit, if head and tail do not hold it all.
    """

    head: bytes
    tail: bytes
    total: int
    spill: Path | None

    @property
    def omitted(self) -> int:
        """Bytes that are neither in head nor in tail."""
        return self.total - len(self.head) - len(self.tail)

    def without_end(self, end: bytes) -> Stream:
        """The same without the bytes ``end``, if it ends with them."""
        if self.tail.endswith(end):
            return self._replace(tail=self.tail.removesuffix(end), total=self.total - len(end))
        if not self.tail and not self.omitted and self.head.endswith(end):
            return self._replace(head=self.head.removesuffix(end), total=self.total - len(end))
        return self

    def text(self) -> str:
        """The stream as bounded text: UTF-8 with replacement, and a marker where bytes are left out."""
        if not self.omitted:
            return (self.head + self.tail).decode("utf-8", "replace")
        where = f"the output is in {self.spill}" if self.spill else "the rest was not kept"
        marker = f"[... {self.omitted} bytes omitted of {self.total}; {where} ...]"
        head, tail = self.head.decode("utf-8", "replace"), self.tail.decode("utf-8", "replace")
        return f"{head}{'' if not head or head.endswith(chr(10)) else chr(10)}{marker}\n{tail}"


@dataclass(frozen=True)
class ExecResult:
    """How a command ended.

    Attributes:
        exit_code: As the shell says it (128 + n for signal n); None if the process vanished without one.
        signal: The signal that ended the command, if one did (taken from an exit code above 128 too).
        reason: ``exited`` by itself, or stopped for ``timeout`` or ``output_limit``.
        duration_s: Seconds from start to end.
        stdout: See :class:`Stream`.
        stderr: See :class:`Stream`.
        cwd: The directory where the next command of the session starts.
        background: Processes that the command left behind and that were stopped with it.
        notice: A sentence for the agent, e.g. that its directory is gone; empty if there is nothing to say.
    """

    exit_code: int | None
    signal: int | None
    reason: Reason
    duration_s: float
    stdout: Stream
    stderr: Stream
    cwd: str
    background: int = 0
    notice: str = ""

    @property
    def timed_out(self) -> bool:
        """Whether the command was stopped because its time was over."""
        return self.reason == "timeout"


class FileView(NamedTuple):
    """A part of a file.

    Attributes:
        path: Where it is, as seen in the sandbox.
        data: The bytes from ``offset`` on.
        offset: Where ``data`` starts.
        size: Bytes in the whole file.
    """

    path: str
    data: bytes
    offset: int
    size: int

    @property
    def complete(self) -> bool:
        """Whether nothing follows ``data`` in the file."""
        return self.offset + len(self.data) >= self.size


class JobStatus(NamedTuple):
    """How a background job is.

    Attributes:
        running: Whether it still runs.
        exit_code: As in :class:`ExecResult`; None while it runs.
        reason: Why it ended; None while it runs. ``cancelled`` means that it was killed.
        output_bytes: Bytes it has written (both streams).
    """

    running: bool
    exit_code: int | None
    reason: Reason | None
    output_bytes: int


class Job(Protocol):
    """A command that runs in the background until it ends, is killed, or its sandbox closes."""

    id: str
    name: str
    log: Path

    def status(self) -> JobStatus:
        """How it is now."""
        ...

    def output(self, offset: int = 0, limit: int = 16384) -> bytes:
        """Bytes of its log (stdout and stderr as they came) from ``offset`` on."""
        ...

    async def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait until it ends, at most ``timeout`` seconds (default: for ever)."""
        ...

    async def kill(self) -> JobStatus:
        """Stop it and everything it started: SIGTERM, grace, SIGKILL. Harmless if it has ended."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """The room of one agent session. All methods belong to the thread of one event loop."""

    name: str

    async def start(self) -> Report:
        """Build the session and attack it.

        Raises:
            SandboxUnavailable: It cannot work here; the error has a reason and a remedy.
            SandboxError: It works, but an attack of the self-test succeeded.
        """
        ...

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        spool: Path | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run one bash command and wait for it. Cancelling the call kills the command and all it started.

        Args:
            command: Any length. Standard input is empty. Shell variables do not outlive the call, its directory does.
            cwd: Where to run; given here it is for this call only. Default: where the last command ended.
            env: Further variables for this call.
            timeout: Seconds; default ``limits.timeout_s``, at most ``limits.max_timeout_s``.
            spool: Directory for the files ``stdout`` and ``stderr`` that hold long output; default in the session
                directory, where :meth:`close` removes them.
            on_output: Receives the output while it comes. An exception in it kills the command and is raised here.
        """
        ...

    async def spawn(self, command: str, *, name: str | None = None, env: Mapping[str, str] | None = None) -> Job:
        """Start a background job.

        Args:
            name: What it is called; default: its id.
            env: Further variables for it.

        Raises:
            SandboxError: ``limits.jobs`` of them are already running.
        """
        ...

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The background jobs of the session by their id, those that have ended too."""
        ...

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> FileView:
        """Read a part of a file, by its path in the sandbox; a relative path starts at the session's directory.

        Raises:
            SandboxError: It is outside, masked, a link, not a plain file, or not readable.
        """
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Replace a file atomically; directories on the way are created.

        Raises:
            SandboxError: It is outside, protected, behind a link, or not writable.
        """
        ...

    async def listen(self, port: int = 0) -> socket.socket:
        """A server for the commands of this session: a listening socket on 127.0.0.1 as *they* see it.

        Whoever calls serves it from here; :meth:`close` closes it.

        Args:
            port: TCP port; 0 for any that is free. It is non-blocking.

        Raises:
            SandboxError: The port is taken, or commands have no network that could be shared.
        """
        ...

    def report(self) -> Report:
        """What :meth:`start` found."""
        ...

    async def close(self) -> None:
        """Kill everything and remove what the session had on disk. May be called again, and without start."""
        ...
