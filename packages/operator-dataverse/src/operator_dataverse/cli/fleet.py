"""``operator-dataverse fleet`` and ``cleanup``: all dev boxes, all tasks, old replies (rows B-043 and B-054)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output, seconds
from operator_dataverse.cli.connection import DryRun, dataverse_settings, open_dataverse
from operator_dataverse.settings import DataverseSettings

if TYPE_CHECKING:
    from operator_dataverse.client import Dataverse
    from operator_dataverse.fleet.manager import FleetManager, Round
    from operator_dataverse.fleet.reclaim import Cleaned

__all__ = ["app", "cleanup"]

app = typer.Typer(
    help="All dev boxes and all tasks: who is alive, what runs, what is taken back.", no_args_is_help=True
)


@app.command("run")
def run_(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    assign: Annotated[
        bool, typer.Option("--assign/--no-assign", help="Also find a box for tasks that need one.")
    ] = True,
    provision: Annotated[
        bool, typer.Option("--provision", help="Also ask for another dev box when too many tasks wait.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take back the work of dead workers, place tasks, expire replies that nobody fetched; until Ctrl-C."""
    out = Output()
    settings = dataverse_settings(context)

    async def work() -> Round | None:
        async with AsyncExitStack() as stack:
            dataverse = await stack.enter_async_context(open_dataverse(context))
            devboxes = None
            if provision:
                from operator_dataverse.fleet.devboxes import DevBoxes

                settings.needs("devcenter_pool")
                devboxes = await stack.enter_async_context(DevBoxes.open(settings))
            orchestrator = None
            if assign:
                from operator_dataverse.fleet.orchestrator import Orchestrator

                above = settings.provision_above
                orchestrator = Orchestrator(dataverse, settings.table, devboxes=devboxes, provision_above=above)
            say = (lambda line: None) if as_json else out.say
            manager = _manager(settings, dataverse, orchestrator=orchestrator, say=say)
            if dry_run:
                return await manager.look()
            if once:
                return await manager.round()
            await manager.run(_until_signal())
            return None

    done = run(work())
    if done is not None and (as_json or dry_run):
        _tell(done, as_json)


@app.command()
def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the boxes, and the tasks that are not well; nothing is changed."""

    async def work() -> Round:
        async with open_dataverse(context) as dataverse:
            return await _manager(dataverse_settings(context), dataverse).look()

    _tell(run(work()), as_json)


def cleanup(
    context: typer.Context,
    minutes: Annotated[
        float, typer.Option("--max-age-minutes", min=0, help="Replies that were made longer ago than this.")
    ] = 10.0,
    email: Annotated[
        str | None, typer.Option("--user-email", metavar="ADDRESS", help="Only replies to this person.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Expire replies that nobody fetched."""

    async def work() -> Cleaned:
        from operator_dataverse.fleet.reclaim import cleanup

        async with open_dataverse(context) as dataverse:
            return await cleanup(dataverse, older_s=minutes * 60, email=email, dry_run=dry_run)

    done = run(work())
    out = Output()
    if as_json:
        out.json({"dry_run": dry_run, "stale": list(done.stale), "expired": list(done.expired)})
    elif dry_run:
        out.line(f"{_replies(len(done.stale))} would be expired.")
    else:
        late = len(done.stale) - len(done.expired)
        more = f"; unchanged, because they were fetched just now: {late}" if late else ""
        out.line(f"Expired: {_replies(len(done.expired))}{more}.")


def _replies(count: int) -> str:
    return "1 reply" if count == 1 else f"{count} replies"


def _manager(settings: DataverseSettings, dataverse: Dataverse, **more: object) -> FleetManager:
    from operator_dataverse.fleet.manager import FleetManager

    return FleetManager(
        dataverse,
        settings.table,
        lease_s=settings.lease_s,
        poll_s=settings.poll_s,
        shared=settings.shared_boxes,
        **more,  # type: ignore[arg-type]
    )


def _until_signal() -> asyncio.Event:
    from operator_core.cli.until import until_signal

    return until_signal()


def _tell(done: Round, as_json: bool) -> None:
    out = Output()
    if as_json:
        out.json(done.to_dict())
        return
    from operator_core import clock

    rows = []
    for box in done.fleet.boxes:
        shown = box.to_dict()
        seen = seconds(clock.iso(box.seen)) if box.seen else None
        counts = (shown["running"], shown["waiting_for_input"], shown["queued"], shown["pending"])
        labels, people = ", ".join(sorted(box.labels)), ", ".join(box.users)
        works_for = "all" if box.shared else "its people"
        rows.append((box.name, box.life, seen, *counts, box.capacity, labels, works_for, people))
    columns = (
        *("box", "life", "last seen", "running", "asks", "queued", "pending", "room for", "labels", "works for"),
        "people",
    )
    out.table(columns, rows, empty="There are no boxes.")
    if done.fleet.unplaced:
        out.line(f"On no box: {len(done.fleet.unplaced)}.")
    if done.judged:
        out.line()
        tasks = [(one.task.id[:8], one.task.name, one.task.devbox, one.verdict, one.why) for one in done.judged]
        out.table(("task", "name", "box", "is", "why"), tasks)
