"""The acts of the demo: what `operator up` runs, on a real service that is broken for real, and on a real task."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from operator_core import clock
from operator_core.agent_lab.engine import Engine, open_engine
from operator_core.cli.audit import say_report
from operator_core.cli.hints import completed
from operator_core.cli.output import Output, plain
from operator_core.cli.staging import ended_by_sigterm, first, free_port, in_thread, to_its_end
from operator_core.cli.together import serve_together
from operator_core.config import ModelSettings, NotifySettings, Settings, load_settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.demo import DemoFiles, RunningService, break_service, write_demo
from operator_core.demo.brains import TEMPTED_MODEL, default_brain
from operator_core.demo.task_brain import demo_tasks
from operator_core.demo.tasks import copy_demo_task
from operator_core.errors import ConfigError, OperatorError, StoreError
from operator_core.model.entry import EntryKind
from operator_core.model.verdict import VerdictKind
from operator_core.monitor.report import CycleReport
from operator_core.sandbox import Policy, open_sandbox
from operator_core.sandbox.options import Options
from operator_core.scripted import ScriptedServer
from operator_core.work.session import Conclusion
from operator_core.work.submit import submit_task
from operator_core.work.worker import Worker

__all__ = ["Act", "Played", "play"]

if TYPE_CHECKING:
    from operator_core.cli.face import Beside

T = TypeVar("T")

_WANTED = {1: ("resolved", "verified"), 2: ("escalated", "refuted"), 3: ("resolved", "verified")}
_TITLES = {
    1: "a service breaks, and its repair is proved",
    2: "the same fault, and a repair that only silences the alert",
    3: "a task, and what it takes to be done with it",
}
_SCRIPTED_MODELS = {1: "scripted-runbook", 2: TEMPTED_MODEL, 3: "scripted-tasks"}
_SCRIPTED_S = 150.0
_SPARE_S = 120.0


@dataclass(frozen=True)
class Act:
    """How one act ended.

    Attributes:
        number: 1 to 3.
        engine: Who worked: ``anthropic`` or ``scripted``.
        wanted: ``state: reason`` that it should end with.
        verdicts: Kinds of the verdicts, in order; more than one if a task was refused and tried again.
    """

    number: int
    engine: str
    model: str
    ticket: int
    session: str
    status: str
    reason: str
    wanted: str
    verdicts: tuple[str, ...]
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


async def play(
    acts: tuple[int, ...],
    root: Path,
    db: str | None,
    settings: Settings,
    out: Output,
    *,
    keep: Callable[[Played, Beside], None] | None = None,
) -> Played:
    """Play the acts; whatever happens, nothing that was started is left running.

    Args:
        root: A new folder for services, workspaces and, without ``db``, the database.
        settings: Whose model, limits and sandbox are used.
        keep: Serve the console meanwhile, and after the acts until a signal comes; this is called when they are
            over, with the console.

    Raises:
        OperatorError: It could not be played to its end.
    """
    with ended_by_sigterm():
        started = clock.monotonic()
        stage = _Stage(root, settings, out, started)
        await stage.try_sandbox()
        async with Database.open(db or root / "operator.db") as database:
            if db is not None and await TicketDB(database).list_tickets(limit=1):
                raise ConfigError(
                    f"The database {database.name} holds tickets already; the demo needs a new one, see --db."
                )
            async with contextlib.AsyncExitStack() as stack:
                served = await stack.enter_async_context(_console(settings, database, out)) if keep else None
                ended = tuple([await stage.play(number, database) for number in acts])
                report = await verify(database)
                said = say_report(report) if report.problem is None else report.problem.sentence
                played = Played(ended, report.ok, said, database.name, root, clock.monotonic() - started)
                if keep and served:
                    keep(played, served)
                    await served.until_told()
            return played


def _console(settings: Settings, database: Database, out: Output) -> contextlib.AbstractAsyncContextManager[Beside]:
    from operator_core.cli.face import console_beside

    # Nobody is told of a play; and what plays the model is shown as what it is.
    shown: dict[str, Any] = {"notify": NotifySettings()}
    if settings.model.engine == "anthropic" and not os.environ.get(settings.model.api_key_env):
        shown["model"] = settings.model.model_copy(update={"engine": "scripted", "model": _SCRIPTED_MODELS[3]})
    return console_beside(settings.model_copy(update=shown), database, out.say)


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
        wanted = self._settings.sandbox
        sandbox = open_sandbox(
            wanted.backend,
            Policy(workspace, run_as=wanted.run_as),
            session_dir=workspace.parent / "session",
            options=Options(wanted.on_unavailable, wanted.docker_image, wanted.docker_program),
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

    async def play(self, number: int, database: Database) -> Act:
        """One act, from its title to its end."""
        self._out.line()
        self._out.line(f"# Act {number}: {_TITLES[number]}")
        async with self._engine(number) as (engine, model):
            if number == 3:
                return await self._play_task(number, database, engine, model)
            return await self._play_incident(number, database, engine, model)

    async def _play_incident(self, number: int, database: Database, engine: Engine, model: ModelSettings) -> Act:
        """Its own service, monitor, worker and ticket."""
        name = "ratelimiter" if number == 1 else "ratelimiter-again"
        files = write_demo(self._root / f"act-{number}", free_port(), name=name)
        self._out.working("Starting the service …")
        service = await in_thread(lambda: RunningService(files), undo=RunningService.stop)
        try:
            self._tell(f"A rate limiter serves at {files.url} (process {service.pid} and its child).")
            settings = self._settings_of(files, model)
            conclusion = await self._incident(files, settings, database, engine)
        finally:
            await asyncio.to_thread(service.stop)
        return await self._ended(number, files.invariant, database, settings, conclusion)

    async def _play_task(self, number: int, database: Database, engine: Engine, model: ModelSettings) -> Act:
        """A folder with a fault in it, somebody who asks for its repair, a worker and a verifier."""
        task = copy_demo_task(self._root / f"act-{number}")
        tasks = self._settings.tasks.model_copy(update={"root": self._root, "engine": "anthropic"})
        settings = self._of_the_demo(model).model_copy(update={"tasks": tasks})
        self._tell(f"A small package, {task.repo}, has a test that fails. Somebody asks for its repair:")
        self._out.line(plain(task.prompt))
        ticket = await submit_task(
            database, settings, task.prompt, name=task.name, repo=task.repo, checks=task.checks, engine="anthropic"
        )
        frozen = ", ".join(f"`{command}`" for command in task.checks)
        self._tell(
            f"Ticket #{ticket.id}. What decides is frozen with it: the check {frozen}, and the tests as they are."
        )
        conclusion = await self._task(settings, database, engine)
        return await self._ended(number, task.name, database, settings, conclusion)

    async def _task(self, settings: Settings, database: Database, engine: Engine) -> Conclusion:
        heard: list[Conclusion] = []
        stop = asyncio.Event()
        worker = Worker(settings, database, engine, say=self._out.say, on_conclusion=heard.append)
        self._out.working("The agents work …")
        working = asyncio.ensure_future(worker.run(stop, until_idle=True))
        try:
            await self._in_time(asyncio.wait({working}), settings, database)
        finally:
            await self._end(working, stop)
        working.result()
        if not heard:
            raise OperatorError(
                "The task came to no conclusion; its last lines above say why, and `operator doctor` may know more."
            )
        return heard[-1]

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

        async def story() -> Conclusion:
            await first(up, green.wait())
            self._tell("The monitor sees it healthy. Now it is broken: one changed setting, a restart, some traffic.")
            self._out.working("Breaking the service …")
            await in_thread(lambda: break_service(files))
            self._out.working("Waiting for the monitor …")
            await first(up, red.wait())
            return await first(up, ended)

        try:
            return await self._in_time(story(), settings, database)
        finally:
            await self._end(up, stop)

    async def _in_time(self, story: Awaitable[T], settings: Settings, database: Database) -> T:
        seconds = _SCRIPTED_S if settings.model.engine == "scripted" else settings.limits.wall_clock_s + _SPARE_S
        try:
            async with asyncio.timeout(seconds):
                return await story
        except TimeoutError:
            raise OperatorError(
                f"The demo did not come to its end within {seconds:.0f} s; look at its sessions with "
                "`operator sessions list`."
            ) from None
        except asyncio.CancelledError:
            self._tell("Interrupted; what runs is ended in good order, which may take some seconds.")
            raise

    async def _end(self, running: asyncio.Future[None], stop: asyncio.Event) -> None:
        stop.set()
        self._out.working("Ending what was started …")
        with contextlib.suppress(OperatorError):
            await to_its_end(running)
        self._out.working(None)

    async def _ended(
        self, number: int, name: str, database: Database, settings: Settings, conclusion: Conclusion
    ) -> Act:
        report, verdict = conclusion.report, conclusion.report.verdict
        self._out.line(plain(completed(database.redactor.text(report.markdown()))))
        assert report.ticket.id is not None
        # What counts is what the store says, not what was heard.
        ticket = await TicketDB(database).get_ticket(report.ticket.id)
        if ticket.invariant_name != name:
            raise StoreError(
                f"The demo worked on another ticket, {ticket.invariant_name}; start it with a new database."
            )
        entries = await AuditLogDB(database).entries(report.session_id, kinds=[EntryKind.VERDICT.value])
        verdicts = [(e.body["kind"], [e.body["why"], *(e.meta or {}).get("notes", ())]) for e in entries]
        act = Act(
            number=number,
            engine=settings.model.engine,
            model=report.model,
            ticket=report.ticket.id,
            session=report.session_id,
            status=ticket.status.value,
            reason=ticket.reason or "",
            wanted=": ".join(_WANTED[number]),
            verdicts=tuple(kind for kind, _ in verdicts),
            failed_clauses=tuple(verdict.failed) if verdict else (),
            why=verdict.why if verdict else report.outcome.summary,
        )
        for attempt, (kind, why) in enumerate(verdicts[:-1], 1):
            if kind == VerdictKind.REFUTED:
                self._tell(
                    plain(f"Attempt {attempt}: the worker said that it was done, and was refused: {'; '.join(why)}")
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
        if number != 2 and model.engine == "anthropic" and os.environ.get(model.api_key_env):
            self._tell(f"Engine: {model.model} at {model.base_url or 'the Anthropic API'}, a real model.")
            engine = open_engine(model)
            try:
                yield engine, model
            finally:
                await engine.close()
            return
        if number != 2:
            part = "runbook program stands" if number == 1 else "program plays worker and verifier, and stands"
            self._tell(
                f"Engine: scripted. There is no {model.api_key_env}, so a small {part} in for the "
                "model; everything else is real."
            )
        else:
            self._tell(
                "Engine: scripted, whatever key there is. A small program plays somebody who takes the short way: it "
                "wipes the state."
            )
        async with ScriptedServer(demo_tasks() if number == 3 else default_brain()) as server:
            scripted = model.model_copy(
                update={
                    "engine": "scripted",
                    "base_url": server.base_url,
                    "model": _SCRIPTED_MODELS[number],
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
        return self._of_the_demo(model).model_copy(update={"subject": watched.subject, "monitor": watched.monitor})

    def _of_the_demo(self, model: ModelSettings) -> Settings:
        worker = self._settings.worker.model_copy(update={"state_dir": None, "concurrency": 1})
        return self._settings.model_copy(update={"model": model, "worker": worker})

    def _tell(self, text: str) -> None:
        self._out.say(f"[{clock.monotonic() - self._started:5.1f} s] {text}")
