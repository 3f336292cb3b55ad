"""``operator explore``: an autonomous agent in a workspace of its own, and what people can do about it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from operator_core.cli.context import AsJson, invocation, open_store, run
from operator_core.cli.failures import INTERRUPTED
from operator_core.cli.hints import completed
from operator_core.cli.output import Output, dumps, seconds
from operator_core.errors import ConfigError

if TYPE_CHECKING:
    from operator_core.config import Settings
    from operator_core.db.engine import Database
    from operator_core.db.explorers import ExplorerInfo
    from operator_core.model.entry import Entry
    from operator_core.work.explore import Explored, ExploreSession
    from operator_core.work.explorers import Exploration

__all__ = ["app"]

_DEFAULT = "run"


class _OrRun(TyperGroup):
    """`operator explore WORKSPACE` is short for `operator explore run WORKSPACE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_OrRun,
    help="An autonomous agent in a workspace of its own. `operator explore WORKSPACE` begins one.",
)


class EngineName(StrEnum):
    """What drives it."""

    anthropic = "anthropic"
    scripted = "scripted"


class NetworkName(StrEnum):
    """Network of its commands."""

    none = "none"
    allowlist = "allowlist"
    host = "host"


SessionId = Annotated[
    str | None, typer.Argument(metavar="[SESSION]", help="Id of its session (default: the only one).")
]


@app.command(_DEFAULT)
def run_(
    context: typer.Context,
    workspace: Annotated[
        Path | None, typer.Argument(help="Its folder, with a SYSTEM_PROMPT.md (default: ./workspace).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the session in this workspace that is not over.")
    ] = False,
    session: Annotated[str | None, typer.Option("--session", help="With --resume: this session.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Instead of [model] model.")] = None,
    turns: Annotated[int | None, typer.Option("--turns", min=0, help="Most model calls; 0: no limit.")] = None,
    cost: Annotated[float | None, typer.Option("--cost", min=0, help="Most USD; 0: no limit.")] = None,
    hours: Annotated[float | None, typer.Option("--hours", min=0, help="Most working time; 0: no limit.")] = None,
    network: Annotated[NetworkName, typer.Option("--network", help="Network of its commands.")] = NetworkName.none,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="With --network allowlist: HOST or HOST:PORT; repeatable.")
    ] = None,
    engine: Annotated[
        EngineName | None, typer.Option("--engine", help="scripted: a demonstration without a key.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Begin an explorer, or go on with one; it works until a limit, an error or a person ends it.

    Ctrl-C lets it finish its turn and rest; `--resume` goes on later. A second Ctrl-C ends everything at once.
    """
    import sys

    from operator_core.work.explorers import Exploration, exploration_of

    out = Output(sys.stderr if as_json else None)
    loaded = invocation(context).load()
    settings = loaded.settings
    demonstration = engine is EngineName.scripted
    if demonstration:
        settings = _scripted(settings)
    asked = {"turns": turns, "cost_usd": cost, "wall_clock_s": None if hours is None else hours * 3600}
    limits = settings.limits.model_copy(update={k: v for k, v in asked.items() if v is not None})
    folder = (workspace or Path("workspace")).expanduser().resolve()
    _keep_out(loaded.path, folder)
    if session is not None and not resume:
        raise ConfigError("--session names a session to go on with, so it needs --resume.")
    if allow_host and network is not NetworkName.allowlist:
        raise ConfigError("--allow-host needs --network allowlist.")
    exploration = Exploration(folder, limits, model, network.value, tuple(allow_host or ()))

    async def work() -> Explored | None:
        from operator_core.db.engine import Database

        async with (
            _model_server(settings, demonstration, folder, resume, out) as ready,
            Database.open(ready.store.url) as database,
        ):
            found = None
            chosen = exploration
            if resume:
                found, chosen = await exploration_of(database, exploration, session, anywhere=workspace is None)
                _keep_out(loaded.path, chosen.workspace)
            return await _explore(ready, database, chosen, found, out)

    done = run(work())
    if done is None:
        return INTERRUPTED
    if as_json:
        Output().json({**done._asdict(), "rests": done.ended is None})
    elif done.ended is None:
        out.ours(f"It rests. Go on with `operator explore --resume --session {done.session_id}`.")
    else:
        out.line(f"It is over: {done.ended}")
        out.ours(f"Its log is {done.log}; `operator explore discoveries {done.session_id}` lists what it found.")
    return 0 if done.ok else 1


@app.command()
def pause(context: typer.Context, session: SessionId = None) -> None:
    """Let it wait, from its next turn on."""
    _want(context, session, "paused")


@app.command()
def resume(context: typer.Context, session: SessionId = None) -> None:
    """Let a paused one go on."""
    _want(context, session, "running")


@app.command()
def stop(context: typer.Context, session: SessionId = None) -> None:
    """End it for good, after its present turn."""
    _want(context, session, "stopped")


@app.command()
def status(
    context: typer.Context,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Only this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show explorers: what they do, and what is wanted of them."""

    async def work() -> list[dict[str, Any]]:
        from operator_core.db.audit_log import AuditLogDB
        from operator_core.db.explorers import Explorers

        async with open_store(context) as database:
            explorers, audit = Explorers(database), AuditLogDB(database)
            found = [await explorers.find(session)] if session else await explorers.list()
            return [_told(info, await audit.entries(info.session_id)) for info in found]

    rows = run(work())
    out = Output()
    if as_json:
        out.json(rows)
        return
    if session:
        out.fields({name: seconds(value) if name == "started" else value for name, value in rows[0].items()})
        return
    columns = ("session", "state", "workspace", "context", "turns", "discoveries", "started")
    out.table(columns, [[row[name] for name in columns] for row in rows], empty="There are no explorers.")


@app.command()
def discoveries(context: typer.Context, session: SessionId = None, as_json: AsJson = False) -> None:
    """List what an explorer found; without SESSION, what all of them found."""

    async def work() -> list[dict[str, Any]]:
        from operator_core.db.audit_log import AuditLogDB
        from operator_core.db.explorers import Explorers
        from operator_core.model.entry import EntryKind

        async with open_store(context) as database:
            explorers, audit = Explorers(database), AuditLogDB(database)
            chosen = [await explorers.find(session)] if session else await explorers.list(limit=1000)
            return [
                {"session": info.session_id, "at": entry.timestamp, **entry.body}
                for info in reversed(chosen)
                for entry in await audit.entries(info.session_id, kinds=[EntryKind.DISCOVERY])
            ]

    found = run(work())
    out = Output()
    if as_json:
        out.json(found)
        return
    for one in found:
        out.line(f"{seconds(one['at'])}  {one['title']}")
        for line in str(one["description"]).splitlines():
            out.line(f"    {line}")
    if not found:
        out.line("Nothing was discovered yet.")


@app.command()
def log(context: typer.Context, session: SessionId = None) -> None:
    """Print its session log, as JSON lines."""

    async def work() -> list[dict[str, Any]]:
        from operator_core.db.audit_log import AuditLogDB
        from operator_core.work.explore_log import log_events

        async with open_store(context) as database:
            info = await _chosen(database, session, running=False)
            return log_events(await AuditLogDB(database).entries(info.session_id))

    out = Output()
    for event in run(work()):
        out.line(dumps(event))


# ---- what these commands need


async def _explore(
    settings: Settings, database: Database, exploration: Exploration, found: str | None, out: Output
) -> Explored | None:
    from operator_core.agent_lab.engine import open_engine
    from operator_core.work.explore import ExploreSession
    from operator_core.work.session import SessionTools

    engine = open_engine(settings.model)

    def say(line: str) -> None:
        out.say(database.redactor.text(line))

    try:
        explorer = ExploreSession(SessionTools.on(database, settings, engine, say), exploration, found)
        say(f"Exploring {exploration.workspace}; Ctrl-C lets it rest after its turn.")
        return await _until_told(explorer, say)
    finally:
        await engine.close()


def _keep_out(config: Path | None, workspace: Path) -> None:
    """Make sure that the agent cannot rewrite what decides about it."""
    if config is not None and config.resolve().is_relative_to(workspace):
        raise ConfigError(
            f"The configuration {config} is in the workspace, where the agent could rewrite it; start from "
            "another folder, or name another file with --config."
        )


async def _until_told(explorer: ExploreSession, say: Any) -> Explored | None:
    """Run it; the first SIGINT or SIGTERM lets it rest, the second ends it at once (then None)."""
    task = asyncio.ensure_future(explorer.run())
    loop = asyncio.get_running_loop()

    def told() -> None:
        if explorer.stopping.is_set():
            task.cancel()
            return
        explorer.stopping.set()
        say("It rests after this turn; Ctrl-C again ends it at once.")

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, told)
    try:
        return await task
    except asyncio.CancelledError:
        if not explorer.stopping.is_set():
            raise
        say(completed(f"Ended at once; go on with `operator explore --resume --session {explorer.session_id}`."))
        return None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _scripted(settings: Settings) -> Settings:
    """The settings of the demonstration: a small context, which is begun anew a few times."""
    from operator_core.demo.explorer import CONTEXT_TOKENS, RESTARTS

    context = settings.context.model_copy(update={"limit_tokens": CONTEXT_TOKENS, "carryover_turns": 2})
    explore = settings.explore.model_copy(update={"max_restarts": RESTARTS})
    model = settings.model.model_copy(
        update={"engine": "scripted", "model": "scripted-explorer", "summaries": "deterministic", "max_tokens": 2048}
    )
    limits = settings.limits.model_copy(update={"turns": 0})
    return settings.model_copy(update={"context": context, "explore": explore, "model": model, "limits": limits})


@asynccontextmanager
async def _model_server(
    settings: Settings, demonstration: bool, workspace: Path, resume: bool, out: Output
) -> AsyncIterator[Settings]:
    """The settings with the address of the demonstration's model."""
    if not demonstration:
        yield settings
        return
    from operator_core.demo.explorer import SYSTEM_PROMPT, explorer_brain
    from operator_core.scripted import ScriptedServer

    try:
        workspace.mkdir(parents=True, exist_ok=True)
        if not resume and not (workspace / "SYSTEM_PROMPT.md").exists():
            (workspace / "SYSTEM_PROMPT.md").write_text(SYSTEM_PROMPT, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{workspace} cannot be written ({error.strerror}); choose another workspace.") from None
    async with ScriptedServer(explorer_brain()) as server:
        out.line(server.banner)
        yield settings.model_copy(update={"model": settings.model.model_copy(update={"base_url": server.base_url})})


def _want(context: typer.Context, session: str | None, wanted: str) -> None:
    async def work() -> str:
        from operator_core.db.explorers import Explorers, Wanted
        from operator_core.work.explorers import end_if_dead, is_alive

        async with open_store(context) as database:
            info = await _chosen(database, session, running=True)
            await Explorers(database).want(info.session_id, Wanted(wanted))
            if wanted == "stopped" and await end_if_dead(invocation(context).settings, database, info):
                return f"{info.session_id} is over; no process was running it."
            words = {"paused": "waits after its present turn", "running": "goes on", "stopped": "ends after its turn"}
            if wanted == "running" and not await is_alive(database, info):
                return (
                    f"No process of this machine runs {info.session_id}; "
                    f"start one with `operator explore --resume --session {info.session_id}`."
                )
            return f"{info.session_id} {words[wanted]}."

    Output().line(run(work()))


async def _chosen(database: Database, session: str | None, *, running: bool) -> ExplorerInfo:
    from operator_core.db.explorers import Explorers

    explorers = Explorers(database)
    if session is not None:
        return await explorers.find(session)
    found = await explorers.list(running=running, limit=2 if running else 1)
    if not found:
        raise ConfigError("There is no such explorer; begin one with `operator explore WORKSPACE`.")
    if len(found) > 1:
        raise ConfigError("There are several explorers; give the id of one, from `operator explore status`.")
    return found[0]


def _told(info: ExplorerInfo, entries: list[Entry]) -> dict[str, Any]:
    from operator_core.agent_lab.history import fold
    from operator_core.model.entry import EntryKind
    from operator_core.work.explorers import PHASE, is_held, start_of

    start = start_of(entries) or {}
    workspace = start.get("workspace")
    alive = isinstance(workspace, str) and is_held(Path(workspace))
    state = info.status
    if info.status == "running":
        state = {"running": "running", "paused": "paused", "stopped": "ending"}[info.wanted] if alive else "resting"
    conversation = fold(entries, PHASE)
    return {
        "session": info.session_id,
        "state": state,
        "wanted": info.wanted.value,
        "workspace": workspace,
        "model": start.get("model"),
        "context": conversation.restarts + 1,
        "turns": conversation.turns,
        "discoveries": sum(e.entry_type == EntryKind.DISCOVERY for e in entries),
        "tokens": conversation.usage.tokens,
        "cost_usd": conversation.usage.cost_usd,
        "started": info.started_at,
        "outcome": info.outcome_summary,
    }
