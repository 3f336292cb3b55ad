"""``operator up``, ``monitor run``, ``worker run``, ``agent start``: processes that work until told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, invocation, open_store, run
from operator_core.cli.hints import completed
from operator_core.cli.output import Output, plain
from operator_core.cli.serve import Host, Port, with_address
from operator_core.errors import ConfigError, MonitorError

if TYPE_CHECKING:
    from operator_core.config import Settings
    from operator_core.monitor.report import CycleReport

__all__ = ["agent_app", "monitor_app", "up", "worker_app"]

monitor_app = typer.Typer(help="Watch the configured systems.", no_args_is_help=True)
worker_app = typer.Typer(help="Work on tickets.", no_args_is_help=True)
agent_app = typer.Typer(help="The agent loop.", no_args_is_help=True)

Concurrency = Annotated[int | None, typer.Option("--concurrency", "-c", min=1, max=1000, help="Sessions at once.")]
Interval = Annotated[float | None, typer.Option("--interval", "-i", min=0.05, help="Seconds between two looks.")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="End when there is nothing left to do.")]
AuditDir = Annotated[Path | None, typer.Option("--audit-dir", help="Also write one JSON file per session there.")]


def up(
    context: typer.Context,
    concurrency: Concurrency = None,
    interval: Interval = None,
    host: Host = None,
    port: Port = None,
    web: Annotated[bool, typer.Option("--web/--no-web", help="Serve the console and the API.")] = True,
) -> None:
    """Watch, work and serve the console in one process, until Ctrl-C or SIGTERM."""
    loaded = invocation(context).load()
    settings = with_address(_with_concurrency(loaded.settings, concurrency), host, port)
    _something_to_watch(settings)

    async def work() -> None:
        from operator_core.agent_lab.engine import open_engine
        from operator_core.cli.doctor import try_sandbox
        from operator_core.cli.face import Face, listen_if_possible
        from operator_core.cli.together import serve_together
        from operator_core.cli.until import until_one_ends, until_signal
        from operator_core.db.engine import Database

        out = Output()
        engine = open_engine(settings.model)
        try:
            await try_sandbox(settings)  # now, and not when the first ticket comes
            async with Database.open(settings.store.url) as database:
                stop = until_signal()
                working = serve_together(
                    settings,
                    database,
                    engine,
                    stop,
                    say=out.say,
                    on_conclusion=lambda conclusion: out.say(
                        plain(completed(database.redactor.text(conclusion.report.markdown())))
                    ),
                    interval_s=interval,
                )
                listener = listen_if_possible(settings.web, say=out.say) if web else None
                face = Face(loaded._replace(settings=settings), database, say=out.say)
                await until_one_ends(stop, [working, face.run(stop, listener)])
        finally:
            await engine.close()

    run(work())


@monitor_app.command("run")
def monitor_run(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Look once, write down what that means, and end.")] = False,
    interval: Interval = None,
    subject: Annotated[list[str] | None, typer.Option("--subject", "-s", help="Only this system; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at everything that is configured and open tickets for what does not hold."""
    settings = invocation(context).settings
    _something_to_watch(settings)
    if subject:
        unknown = sorted(set(subject) - {s.name for s in settings.subject})
        if unknown:
            raise ConfigError(f"There is no subject {unknown[0]!r}; `operator config show` lists what is configured.")
        settings = settings.model_copy(update={"subject": tuple(s for s in settings.subject if s.name in subject)})
    if as_json and not once:
        raise ConfigError("--json prints one document, so it needs --once.")

    async def work() -> list[CycleReport]:
        from operator_core.cli.together import monitor_lines, watch
        from operator_core.cli.until import until_signal
        from operator_core.db.tickets import TicketDB
        from operator_core.monitor.build import build_loops

        out = Output()
        async with open_store(context, create=True) as database:
            tickets = TicketDB(database)
            if not once:
                lines = monitor_lines(out.say, every=True)
                await watch(build_loops(settings, tickets, on_cycle=lines, interval_s=interval), until_signal())
                return []
            loops = build_loops(settings, tickets)
            try:
                return [await loop.cycle() for loop in loops]
            finally:
                for loop in loops:
                    loop.close()

    reports = run(work())
    if not once:
        return
    out = Output()
    if as_json:
        out.json([_report_dict(report) for report in reports])
        return
    for report in reports:
        out.line(f"{report.subject}: {report.line}")
        for name, why in report.unknown.items():
            out.line(f"  unknown: {name}: {why}")
        for ticket in report.tickets:
            out.line(f"  ticket #{ticket.id} {ticket.status.value}: {ticket.message}")
    failed = next((report.error for report in reports if report.error), None)
    if failed:
        raise MonitorError(failed)


@worker_app.command("run")
def worker_run(
    context: typer.Context,
    concurrency: Concurrency = None,
    until_idle: UntilIdle = False,
    audit_dir: AuditDir = None,
) -> None:
    """Claim tickets and work on them, until Ctrl-C or SIGTERM."""
    if invocation(context).server is not None:
        raise ConfigError("`operator worker run` works on a store, which --db names; leave --server out.")
    _serve(_settings(context, concurrency), until_idle, audit_dir)


@agent_app.command("start")
def agent_start(context: typer.Context, until_idle: UntilIdle = False, audit_dir: AuditDir = None) -> None:
    """The agent loop, one ticket at a time."""
    _serve(_settings(context, 1), until_idle, audit_dir)


def _serve(settings: Settings, until_idle: bool, audit_dir: Path | None) -> None:
    async def work() -> None:
        from operator_core.cli.doctor import try_sandbox
        from operator_core.work.process import serve

        out = Output()
        await try_sandbox(settings)  # now, and not when the first ticket comes
        await serve(
            settings.store.url,
            settings=settings,
            audit_dir=audit_dir,
            say=out.say,
            until_idle=until_idle,
        )

    run(work())


def _settings(context: typer.Context, concurrency: int | None) -> Settings:
    return _with_concurrency(invocation(context).settings, concurrency)


def _with_concurrency(settings: Settings, concurrency: int | None) -> Settings:
    if concurrency is None:
        return settings
    return settings.model_copy(update={"worker": settings.worker.model_copy(update={"concurrency": concurrency})})


def _something_to_watch(settings: Settings) -> None:
    if not settings.subject:
        raise ConfigError(
            "Nothing is configured to be watched; add a [[subject]] to operator.toml (`operator init` has one), or use "
            "`operator worker run` and `operator serve`, which need none."
        )


def _report_dict(report: CycleReport) -> dict[str, Any]:
    return {
        "subject": report.subject,
        "at": report.at.isoformat(),
        "batch_key": report.batch_key,
        "result": report.line,
        "violations": list(report.violations),
        "pending": list(report.pending),
        "unknown": dict(report.unknown),
        "tickets": [ticket.to_dict() for ticket in report.tickets],
        "cleared": report.cleared,
        "duration_s": round(report.duration_s, 6),
        "error": report.error,
    }
