"""What every backend shares: directories, calls, background jobs, files, and a clean end."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import os
import shlex
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from operator_core.errors import SandboxError
from operator_core.sandbox import files
from operator_core.sandbox.jobs import BackgroundJob
from operator_core.sandbox.policy import Limits, Policy
from operator_core.sandbox.process import Tree
from operator_core.sandbox.profile import Layout
from operator_core.sandbox.protocol import (
    ExecResult,
    FileView,
    Job,
    OnOutput,
    RedactFilter,
)
from operator_core.sandbox.removal import remove_tree
from operator_core.sandbox.report import Report
from operator_core.sandbox.runner import RawResult, Spawn, exit_status, run
from operator_core.sandbox.sink import LogSink

__all__ = ["Call", "Launch", "Session", "SetupError", "prologue"]


_NOT_STARTED = b"n"


class Call(NamedTuple):
    """One command to start.

    Attributes:
        command: Bash.
        cwd: Where it starts.
        env: Variables of this call only.
        state: The file to which the shell says that it has started, and where it has ended.
    """

    command: str
    cwd: str
    env: Mapping[str, str] | None
    state: Path

    @property
    def command_file(self) -> Path:
        """Where a backend may put a long command."""
        return self.state.with_suffix(".command")


class Launch(NamedTuple):
    """How a backend starts a call and ends it."""

    spawn: Spawn
    tree: Tree


class _State(NamedTuple):
    started: bool
    cwd: str | None
    background: int
    fell_back: bool


def prologue(state: str, workspace: str, limits: Mapping[str, int], load: str, *, count: bool) -> str:
    """One line of bash that runs before the command, so that line numbers in its messages are right.

    It says that the shell has started, leaves word of the last directory (and of the processes that still run, where
    ``/proc`` shows only this call's), changes directory, lowers the limits and evaluates the command.

    Args:
        state: Path of the state file, as the shell sees it.
        workspace: Where to start if the directory in ``$1`` is gone.
        limits: ``ulimit`` letters and values.
        load: Shell words that put the command into the variable ``__c``.
        count: Whether to count processes.
    """
    where = shlex.quote(state)
    # `pwd` and `echo` may be functions of the command by then; errors of `set -x` and `set -u` are not its output.
    tally = "set -- /proc/[0-9]*; builtin echo $#" if count else "builtin echo 0"
    farewell = f"{{ set +uxf; {tally}; builtin pwd -P; }} >>{where} 2>/dev/null"
    steps = [
        # Overwriting what is there (`<>`) also works on a disk that is full.
        f"builtin echo s 1<>{where}",
        f'cd -- "$1" 2>/dev/null || {{ builtin echo f 1<>{where}; cd -- {shlex.quote(workspace)}; }}',
        *(f"ulimit -{letter} {value} 2>/dev/null" for letter, value in limits.items()),
        load,
        f"trap {shlex.quote(farewell)} EXIT",
        'set --; eval "unset __c; $__c"',
    ]
    return "; ".join(steps)


class SetupError(SandboxError):
    """The backend itself failed, before the command."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"The sandbox could not start the command, so it has not run: {why}.")


class Session(abc.ABC):
    """A session of one backend; see :class:`~operator_core.sandbox.protocol.Sandbox` for what its methods promise."""

    name = ""
    maps = False
    """Whether commands see the workspace where the policy wants it (``shown_at``)."""

    def __init__(self, policy: Policy, session_dir: Path, redact: Callable[[], RedactFilter] | None = None) -> None:
        self.policy = policy
        self._layout = Layout.below(Path(os.path.abspath(session_dir)))
        self._redact = redact
        self._numbers = itertools.count(1)
        self._start = str(policy.seen(policy.workspace) if self.maps else policy.workspace)
        self._cwd = self._start
        self._report: Report | None = None
        self._trees: dict[int, Tree] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._jobs: dict[str, BackgroundJob] = {}
        self._closed = False

    @abc.abstractmethod
    async def _open(self) -> Report:
        """Prepare the backend and test it; the directories exist."""

    @abc.abstractmethod
    def _launch(self, call: Call) -> Launch:
        """How to start a command."""

    async def start(self) -> Report:
        if self._report is not None:
            return self._report
        if self._closed:
            raise SandboxError("This sandbox is closed; open a new one.")
        self._make_directories()
        self._load_cwd()
        try:
            self._report = await self._open()
        except BaseException:
            await self.close()
            raise
        return self._report

    def report(self) -> Report:
        if self._report is None:
            raise SandboxError("The sandbox has not been started, so nothing is known about it; start it first.")
        return self._report

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
        self.report()
        return await self._exec(command, cwd=cwd, env=env, timeout=timeout, spool=spool, on_output=on_output)

    async def _exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        spool: Path | None = None,
        on_output: OnOutput | None = None,
        limits: Limits | None = None,
    ) -> ExecResult:
        limits = limits or self.policy.limits
        seconds = limits.timeout_s if timeout is None else timeout
        if not seconds > 0:
            raise SandboxError(f"The timeout is {seconds} s; give a number of seconds above 0.")
        start = self._cwd if cwd is None else os.path.join(self._cwd, cwd)
        raw, state = await self._run(
            command,
            start,
            env,
            limits=limits,
            timeout=min(seconds, limits.max_timeout_s),
            spool=spool or self._layout.out,
            on_output=on_output,
        )
        if cwd is None and state.cwd and state.cwd != start:
            self._move(state.cwd)
        notice = f"The directory {start} is gone; the command ran in {self._start}." if state.fell_back else ""
        code, number = exit_status(raw.returncode)
        return ExecResult(
            exit_code=code,
            signal=number,
            reason=raw.reason,
            duration_s=raw.duration_s,
            stdout=raw.stdout,
            stderr=raw.stderr,
            cwd=self._cwd,
            background=max(raw.background, state.background),
            notice=notice,
        )

    async def _run(
        self,
        command: str,
        cwd: str,
        env: Mapping[str, str] | None,
        *,
        limits: Limits,
        timeout: float,
        spool: Path,
        on_output: OnOutput | None,
    ) -> tuple[RawResult, _State]:
        number, call, launch = self._prepare(command, cwd, env)
        if spool == self._layout.out:
            spool = spool / f"{number:06d}"
        try:
            raw = await run(
                launch.spawn,
                timeout=timeout,
                limits=limits,
                spool=spool,
                tree=launch.tree,
                redact=self._redact,
                on_output=on_output,
            )
        finally:
            state = self._release(number, call)
        if not state.started and (why := self._setup_error(raw)):
            raise SetupError(why)
        return raw, state

    def _setup_error(self, raw: RawResult) -> str:
        """What the backend itself said before the shell started; empty if it said nothing."""
        return ""

    def _prepare(self, command: str, cwd: str, env: Mapping[str, str] | None) -> tuple[int, Call, Launch]:
        if self._closed:
            raise SandboxError("This sandbox is closed; open a new one.")
        if "\0" in command:
            raise SandboxError("The command holds a NUL character, which no shell can run; remove it.")
        if "\0" in cwd:
            raise SandboxError("The directory holds a NUL character; give a real path.")
        number = next(self._numbers)
        state = self._layout.state / str(number)
        fd = os.open(state, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _NOT_STARTED + b"\n")
        finally:
            os.close(fd)
        call = Call(command, cwd, env, state)
        try:
            launch = self._launch(call)
        except BaseException:
            _remove_files(call)
            raise
        self._trees[number] = launch.tree
        self._idle.clear()
        return number, call, launch

    def _release(self, number: int, call: Call) -> _State:
        del self._trees[number]
        if not self._trees:
            self._idle.set()
        state = _read_state(call.state)
        _remove_files(call)
        return state

    async def spawn(self, command: str, *, name: str | None = None) -> Job:
        self.report()
        running = sum(job.status().running for job in self._jobs.values())
        if running >= self.policy.limits.jobs:
            raise SandboxError(f"{running} background jobs are running, which is the limit; stop one of them first.")
        number, call, launch = self._prepare(command, self._cwd, None)
        identity = f"job-{number}"
        sink = LogSink(self._layout.out / f"{identity}.log", self.policy.limits.spill)

        async def live(stop: asyncio.Future[None]) -> RawResult:
            try:
                return await run(
                    launch.spawn,
                    timeout=None,
                    limits=self.policy.limits,
                    sinks=(sink, sink),
                    tree=launch.tree,
                    redact=self._redact,
                    output_kill=None,
                    stop=stop,
                )
            finally:
                self._release(number, call)

        job = BackgroundJob(identity, name or identity, sink, live)
        self._jobs[identity] = job
        return job

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> FileView:
        self.report()
        return files.read(self._places(), path, self._cwd, offset, limit)

    async def write_file(self, path: str, data: bytes) -> None:
        self.report()
        files.write(self._places(), path, self._cwd, data)

    @abc.abstractmethod
    def _places(self) -> list[files.Place]:
        """What the file tools may touch."""

    async def close(self) -> None:
        first = not self._closed
        self._closed = True
        for tree in list(self._trees.values()):
            tree.kill()
        for job in self._jobs.values():
            job.stop()
        await self._idle.wait()
        if first:
            await asyncio.to_thread(self._remove)

    def _make_directories(self) -> None:
        try:
            for path in self._layout:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxError(
                f"The session directory `{self._layout.root}` cannot be made ({error.strerror}); give another one."
            ) from error

    def _remove(self) -> None:
        """Remove what we made; the directory itself only if nothing of the caller is in it."""
        for path in self._layout[1:]:
            remove_tree(path)
        with contextlib.suppress(OSError):
            self._cwd_file.unlink()
        with contextlib.suppress(OSError):
            self._layout.root.rmdir()

    @property
    def _cwd_file(self) -> Path:
        return self._layout.root / "cwd"

    def _move(self, cwd: str) -> None:
        self._cwd = cwd
        with contextlib.suppress(OSError):
            self._cwd_file.write_text(cwd, encoding="utf-8", errors="surrogateescape")

    def _load_cwd(self) -> None:
        with contextlib.suppress(OSError):
            self._cwd = self._cwd_file.read_text(encoding="utf-8", errors="surrogateescape") or self._cwd


def _remove_files(call: Call) -> None:
    for path in (call.state, call.command_file):
        with contextlib.suppress(OSError):
            path.unlink()


def _read_state(path: Path) -> _State:
    """What the shell wrote over our ``n``: ``s`` (started) or ``f`` (its directory was gone), a count, a directory."""
    try:
        # The command can write here whatever it likes, but in bubblewrap it cannot make it another kind of file.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return _State(True, None, 0, False)
    try:
        text = os.read(fd, 8192) if stat.S_ISREG(os.fstat(fd).st_mode) else b"s"
    finally:
        os.close(fd)
    mark, _, rest = text.partition(b"\n")
    count, _, directory = rest.partition(b"\n")
    cwd = os.fsdecode(directory.removesuffix(b"\n"))
    left = int(count) - 2 if count.isdigit() and len(count) < 8 else 0
    usable = cwd.startswith("/") and "\0" not in cwd
    return _State(mark != _NOT_STARTED, cwd if usable else None, max(0, left), mark == b"f")
