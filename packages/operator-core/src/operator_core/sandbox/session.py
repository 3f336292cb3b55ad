"""What every backend shares: directories, calls, background jobs, files, and a clean end."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from operator_core.clock import new_id
from operator_core.errors import SandboxError
from operator_core.sandbox import files
from operator_core.sandbox.call import NOT_STARTED, Call, State, prologue, read_state, remove_files
from operator_core.sandbox.jobs import BackgroundJob
from operator_core.sandbox.layout import Layout
from operator_core.sandbox.leftovers import MARK, claim, sweep_beside
from operator_core.sandbox.options import Decision, Options
from operator_core.sandbox.policy import Limits, Policy
from operator_core.sandbox.process import Tree
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

if TYPE_CHECKING:
    from operator_core.sandbox.egress import Egress

__all__ = ["Call", "Launch", "Session", "SetupError", "prologue"]


_PROXY_PORT = 3128
_SHELL_SAYS = b"Terminated\n"


class Launch(NamedTuple):
    """How a backend starts a call and ends it."""

    spawn: Spawn
    tree: Tree


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

    def __init__(
        self,
        policy: Policy,
        session_dir: Path,
        redact: Callable[[], RedactFilter] | None = None,
        options: Options = Options(),
    ) -> None:
        self.policy = policy
        self.options = options
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
        self._listeners: list[socket.socket] = []
        self._egress: Egress | None = None
        self._sweeping: asyncio.Future[None] | None = None
        self._proxy: dict[str, str] = {}
        self._closed = self._removed = False

    @abc.abstractmethod
    async def _open(self) -> Report:
        """Prepare the backend and test it; the directories exist."""

    @abc.abstractmethod
    def _launch(self, call: Call) -> Launch:
        """How to start a command."""

    async def start(self) -> Report:
        if self._report is not None:
            return self._report
        self._refuse_if_closed()
        self._make_directories()
        self._load_cwd()
        if not any(self._layout.root.is_relative_to(path) for path in (self.policy.workspace, *self.policy.writable)):
            self._sweeping = asyncio.ensure_future(asyncio.to_thread(sweep_beside, self._layout.root))
        try:
            self._report = await self._open()
        except BaseException as error:
            gone = self._closed  # then its directories and its thread went away under the self-test
            self._removed = False  # and what it has made since then goes too
            await self.close()
            if gone and isinstance(error, (OSError, RuntimeError)):
                raise SandboxError("This sandbox was closed while it started; open a new one.") from error
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
        notices = [f"The directory {start} is gone; the command ran in {self._start}."] if state.fell_back else []
        notices += self._notices()
        code, number = exit_status(raw.returncode)
        return ExecResult(
            exit_code=code,
            signal=number,
            reason=raw.reason,
            duration_s=raw.duration_s,
            stdout=raw.stdout,
            # The shell outlives the program that was ended, and says so; that is no word of the command.
            stderr=raw.stderr if raw.reason == "exited" else raw.stderr.without_end(_SHELL_SAYS),
            cwd=self._cwd,
            background=max(raw.background, state.background),
            notice=" ".join(notices),
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
    ) -> tuple[RawResult, State]:
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

    def _notices(self) -> list[str]:
        """Sentences for the agent about what happened to the session during a command."""
        return []

    def _setup_error(self, raw: RawResult) -> str:
        """What the backend itself said before the shell started; empty if it said nothing."""
        return ""

    def _prepare(self, command: str, cwd: str, env: Mapping[str, str] | None) -> tuple[int, Call, Launch]:
        self._refuse_if_closed()
        if "\0" in command:
            raise SandboxError("The command holds a NUL character, which no shell can run; remove it.")
        if "\0" in cwd:
            raise SandboxError("The directory holds a NUL character; give a real path.")
        number = next(self._numbers)
        # In some backends commands can write to the whole folder: they must not guess the name, nor have taken it.
        state = self._layout.state / new_id()
        fd = os.open(state, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, NOT_STARTED + b"\n")
        finally:
            os.close(fd)
        # What a person says in the policy goes before what we say.
        call = Call(command, cwd, {**self._proxy, **self.policy.env, **(env or {})}, state)
        try:
            launch = self._launch(call)
        except BaseException:
            remove_files(call)
            raise
        self._trees[number] = launch.tree
        self._idle.clear()
        return number, call, launch

    def _release(self, number: int, call: Call) -> State:
        del self._trees[number]
        if not self._trees:
            self._idle.set()
        state = read_state(call.state)
        remove_files(call)
        return state

    async def spawn(self, command: str, *, name: str | None = None, env: Mapping[str, str] | None = None) -> Job:
        self.report()
        running = sum(job.status().running for job in self._jobs.values())
        if running >= self.policy.limits.jobs:
            raise SandboxError(f"{running} background jobs are running, which is the limit; stop one of them first.")
        number, call, launch = self._prepare(command, self._cwd, env)
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

    @property
    def jobs(self) -> Mapping[str, Job]:
        return MappingProxyType(self._jobs)

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> FileView:
        self.report()
        return files.read(self._places(), path, self._cwd, offset, limit)

    async def write_file(self, path: str, data: bytes) -> None:
        self.report()
        files.write(self._places(), path, self._cwd, data)

    async def listen(self, port: int = 0) -> socket.socket:
        self._refuse_if_closed()
        sock = await self._listen(port)
        try:
            self._refuse_if_closed()
        except SandboxError:  # closed meanwhile
            sock.close()
            raise
        self._listeners.append(sock)
        return sock

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise SandboxError("This sandbox is closed; open a new one.")

    async def _open_egress(self) -> None:
        """Serve the way out that an allow-list needs; :meth:`_open` calls it between making and testing the network."""
        if self.policy.network != "allowlist":
            return
        from operator_core.sandbox.egress import Egress, Rules

        rules = Rules.parse(self.policy.allow_hosts)
        self._egress = Egress(rules, self.options.secrets, self._decided)
        await self._egress.serve(await self.listen(_PROXY_PORT))
        self._proxy = self._egress.environment(_PROXY_PORT)

    async def _decided(self, decision: Decision) -> None:
        # Before the session has begun, only its self-test asks.
        if self._report is not None and self.options.on_egress is not None:
            await self.options.on_egress(decision)

    async def _listen(self, port: int) -> socket.socket:
        """The socket of :meth:`listen`; this is the one for commands that have our own network."""
        sock = socket.socket()
        try:
            sock.setblocking(False)
            sock.bind(("127.0.0.1", port))
            sock.listen(128)
        except OSError as error:
            sock.close()
            raise SandboxError(f"Port {port} cannot be listened on: {error.strerror}.") from error
        return sock

    @abc.abstractmethod
    def _places(self) -> list[files.Place]:
        """What the file tools may touch."""

    async def close(self) -> None:
        self._closed = True
        for tree in list(self._trees.values()):
            tree.kill()
        for job in self._jobs.values():
            job.stop()
        await self._idle.wait()
        if self._egress is not None:
            await self._egress.close()
        for sock in self._listeners:
            sock.close()
        self._listeners.clear()
        if self._sweeping is not None:
            await asyncio.wait({self._sweeping})
        if not self._removed:  # also after a call that was cancelled before it came here
            self._removed = True
            await asyncio.to_thread(self._remove)

    def _make_directories(self) -> None:
        try:
            for path in self._layout:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            claim(self._layout.root)
        except OSError as error:
            raise SandboxError(
                f"The session directory `{self._layout.root}` cannot be made ({error.strerror}); give another one."
            ) from error

    def _remove(self) -> None:
        """Remove what we made; the directory itself only if nothing of the caller is in it."""
        for path in self._layout[1:]:
            remove_tree(path)
        for file in (self._cwd_file, self._layout.root / MARK):
            with contextlib.suppress(OSError):
                file.unlink()
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
