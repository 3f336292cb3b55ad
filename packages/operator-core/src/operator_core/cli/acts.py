"""The two acts of the demo: both are what `operator up` runs, on a real service that is broken for real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from operator_core import clock
from operator_core.agent_lab.engine import Engine, open_engine
from operator_core.cli.audit import say_report
from operator_core.cli.output import Output, plain
from operator_core.cli.together import serve_together
from operator_core.config import ModelSettings, Settings, load_settings
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.demo import DemoFiles, RunningService, break_service, write_demo
from operator_core.demo.brains import TEMPTED_MODEL, default_brain
from operator_core.errors import ConfigError, OperatorError, StoreError
from operator_core.monitor.report import CycleReport
from operator_core.sandbox import Policy, open_sandbox
from operator_core.scripted import ScriptedServer
from operator_core.work.incident import Conclusion

__all__ = ["Act", "Played", "play"]

T = TypeVar("T")

_WANTED = {1: ("resolved", "verified"), 2: ("escalated", "refuted")}
_TITLES = {
    1: "a service breaks, and its repair is proved",
    2: "the same fault, and a repair that only silences the alert",
}
_SCRIPTED_S = 150.0
_SPARE_S = 120.0


@dataclass(frozen=True)
class Act:
    """How one act ended.

    Attributes:
        number: 1 or 2.
        engine: Who worked: ``anthropic`` or ``scripted``.
        wanted: ``state: reason`` that it should end with.
    """

    number: int
    engine: str
    model: str
    ticket: int
    session: str
    status: str
    reason: str
    wanted: str
    failed_clauses: tuple[str, ...]
    why: str

    @property
    def ok(self) -> bool:
        """Whether it ended as it should."""
        return f"{self.status}: {self.reason}" == self.wanted


@dataclass(frozen=True)
class Played:
    """How the demo ended."""

    acts: tuple[Act, ...]
    audit_ok: bool
    audit: str
    database: str
    folder: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything ended as it should."""
        return self.audit_ok and all(act.ok for act in self.acts)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ok": self.ok,
            "acts": [{**asdict(act), "ok": act.ok} for act in self.acts],
            "audit": {"ok": self.audit_ok, "result": self.audit},
            "database": self.database,
            "folder": str(self.folder),
            "seconds": round(self.seconds, 1),
        }


async def play(acts: tuple[int, ...], root: Path, db: str | None, settings: Settings, out: Output) -> Played:
    """Play the acts; whatever happens, nothing that was started is left running.

    Args:
        root: A new folder for services, workspaces and, without ``db``, the database.
        settings: Whose model, limits and sandbox are used.

    Raises:
        OperatorError: It could not be played to its end.
    """
    with _ended_by_sigterm():
        started = clock.monotonic()
        stage = _Stage(root, settings, out, started)
        await stage.try_sandbox()
        async with Database.open(db or root / "operator.db") as database:
            if db is not None and await TicketDB(database).list_tickets(limit=1):
                raise ConfigError(
                    f"The database {database.name} holds tickets already; the demo needs a new one, see --db."
                )
            ended = tuple([await stage.act(number, database) for number in acts])
            report = await verify(database)
            said = say_report(report) if report.problem is None else report.problem.sentence
            return Played(ended, report.ok, said, database.name, root, clock.monotonic() - started)


class _Stage:
    def __init__(self, root: Path, settings: Settings, out: Output, started: float) -> None:
        self._root = root
        self._settings = settings
        self._out = out
        self._started = started

    async def try_sandbox(self) -> None:
        """Before anything is broken: is there a place to work in?"""
        self._out.working("Testing the sandbox …")
        workspace = self._root / "sandbox-test" / "workspace"
        workspace.mkdir(parents=True)
        sandbox = open_sandbox(
            self._settings.sandbox.backend, Policy(workspace), session_dir=workspace.parent / "session"
        )
        try:
            report = await sandbox.start()
        finally:
            await sandbox.close()
            with contextlib.suppress(OSError):
                workspace.rmdir()
                workspace.parent.rmdir()
        verified = sum(control.state == "verified" for control in report.controls.values())
        self._tell(
            f"Sandbox: {report.backend}, {report.level}; {verified} of {len(report.controls)} controls verified."
        )

    async def act(self, number: int, database: Database) -> Act:
        """One act: its own service, monitor, worker and ticket."""
        out = self._out
        out.line()
        out.line(f"# Act {number}: {_TITLES[number]}")
        name = "ratelimiter" if number == 1 else "ratelimiter-again"
        files = write_demo(self._root / f"act-{number}", _free_port(), name=name)
        async with self._engine(number) as (engine, model):
            out.working("Starting the service …")
            service = await _in_thread(lambda: RunningService(files), undo=RunningService.stop)
            try:
                self._tell(f"A rate limiter serves at {files.url} (process {service.pid} and its child).")
                settings = self._settings_of(files, model)
                conclusion = await self._incident(files, settings, database, engine)
            finally:
                await asyncio.to_thread(service.stop)
        return await self._ended(number, files, database, settings, conclusion)

    async def _incident(self, files: DemoFiles, settings: Settings, database: Database, engine: Engine) -> Conclusion:
        green, red, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        ended: asyncio.Future[Conclusion] = asyncio.get_running_loop().create_future()

        def heard(report: CycleReport) -> None:
            if not (report.violations or report.pending or report.unknown or report.error):
                green.set()
            if report.tickets:
                red.set()
                self._out.working("The agent works …")

        def concluded(conclusion: Conclusion) -> None:
            if not ended.done():
                ended.set_result(conclusion)

        up = asyncio.ensure_future(
            serve_together(settings, database, engine, stop, say=self._out.say, on_conclusion=concluded, on_cycle=heard)
        )
        seconds = _SCRIPTED_S if settings.model.engine == "scripted" else settings.limits.wall_clock_s + _SPARE_S
        try:
            async with asyncio.timeout(seconds):
                await _first(up, green.wait())
                self._tell(
                    "The monitor sees it healthy. Now it is broken: one changed setting, a restart, some traffic."
                )
                self._out.working("Breaking the service …")
                await _in_thread(lambda: break_service(files))
                self._out.working("Waiting for the monitor …")
                await _first(up, red.wait())
                return await _first(up, ended)
        except TimeoutError:
            raise OperatorError(
                f"The demo did not come to its end within {seconds:.0f} s; look at its sessions with "
                f"`operator --db {database.name} sessions list`."
            ) from None
        except asyncio.CancelledError:
            self._tell("Interrupted; what runs is ended in good order, which may take some seconds.")
            raise
        finally:
            stop.set()
            self._out.working("Ending what was started …")
            with contextlib.suppress(OperatorError):
                await _to_its_end(up)
            self._out.working(None)

    async def _ended(
        self, number: int, files: DemoFiles, database: Database, settings: Settings, conclusion: Conclusion
    ) -> Act:
        report, verdict = conclusion.report, conclusion.report.verdict
        self._out.line(plain(database.redactor.text(report.markdown())))
        assert report.ticket.id is not None
        # What counts is what the store says, not what was heard.
        ticket = await TicketDB(database).get_ticket(report.ticket.id)
        if ticket.invariant_name != files.invariant:
            raise StoreError(
                f"The demo worked on another ticket, {ticket.invariant_name}; start it with a new database."
            )
        act = Act(
            number=number,
            engine=settings.model.engine,
            model=report.model,
            ticket=report.ticket.id,
            session=report.session_id,
            status=ticket.status.value,
            reason=ticket.reason or "",
            wanted=": ".join(_WANTED[number]),
            failed_clauses=tuple(verdict.failed) if verdict else (),
            why=verdict.why if verdict else report.outcome.summary,
        )
        self._tell(f"Ticket #{act.ticket} is {act.status}: {act.reason}. {act.why}")
        if number == 2 and act.ok:
            self._tell(
                "The alert was silent, and the agent said that it was done; only the other clauses told the truth."
            )
        return act

    @asynccontextmanager
    async def _engine(self, number: int) -> AsyncIterator[tuple[Engine, ModelSettings]]:
        model = self._settings.model
        if number == 1 and model.engine == "anthropic" and os.environ.get(model.api_key_env):
            self._tell(f"Engine: {model.model} at {model.base_url or 'the Anthropic API'}, a real model.")
            engine = open_engine(model)
            try:
                yield engine, model
            finally:
                await engine.close()
            return
        if number == 1:
            self._tell(
                f"Engine: scripted. There is no {model.api_key_env}, so a small runbook program stands in for the "
                "model; everything else is real."
            )
        else:
            self._tell(
                "Engine: scripted, whatever key there is. A small program plays somebody who takes the short way: it "
                "wipes the state."
            )
        async with ScriptedServer(default_brain()) as server:
            scripted = model.model_copy(
                update={
                    "engine": "scripted",
                    "base_url": server.base_url,
                    "model": TEMPTED_MODEL if number == 2 else "scripted-runbook",
                    "summaries": "deterministic",
                }
            )
            engine = open_engine(scripted)
            try:
                yield engine, scripted
            finally:
                await engine.close()

    def _settings_of(self, files: DemoFiles, model: ModelSettings) -> Settings:
        watched = load_settings(files.config, environ={}).settings
        worker = self._settings.worker.model_copy(update={"state_dir": None, "concurrency": 1})
        return self._settings.model_copy(
            update={"subject": watched.subject, "monitor": watched.monitor, "model": model, "worker": worker}
        )

    def _tell(self, text: str) -> None:
        self._out.say(f"[{clock.monotonic() - self._started:5.1f} s] {text}")


async def _first(up: asyncio.Future[None], wanted: Awaitable[T]) -> T:
    """What is wanted; or, when monitor and worker end before, why they did."""
    waiting = asyncio.ensure_future(wanted)
    try:
        either: set[asyncio.Future[Any]] = {up, waiting}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        up.result()
        raise OperatorError("The monitor and the worker ended before the demo did; start it again.")
    finally:
        if not waiting.done() and not isinstance(wanted, asyncio.Future):
            waiting.cancel()


async def _in_thread(call: Callable[[], T], undo: Callable[[T], None] = lambda result: None) -> T:
    """Call something that blocks; when this task is cancelled meanwhile, its end is awaited, and it is undone."""
    future = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        if not future.cancelled() and future.exception() is None:
            undo(future.result())
        raise


async def _to_its_end(up: asyncio.Future[None]) -> None:
    """Wait, also while this task is being cancelled: what runs must end in good order."""
    canceled: asyncio.CancelledError | None = None
    while not up.done():
        try:
            await asyncio.wait({up})
        except asyncio.CancelledError as error:
            canceled = error
            up.cancel()
    if canceled is not None:
        raise canceled
    up.result()


@contextlib.contextmanager
def _ended_by_sigterm() -> Any:
    """SIGTERM ends the demo as Ctrl-C does: in order, and with everything gone."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    terminated = False

    def end() -> None:
        nonlocal terminated
        terminated = True
        me.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if terminated:
            raise SystemExit(143) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
