"""``operator-dataverse devbox``: dev boxes over the DevCenter (rows B-042 and B-054)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output
from operator_core.errors import ConfigError
from operator_dataverse.cli.connection import DryRun, dataverse_settings

if TYPE_CHECKING:
    from operator_dataverse.fleet.customizations import Group
    from operator_dataverse.fleet.devboxes import DevBox, DevBoxes

__all__ = ["app"]

app = typer.Typer(help="Make, look at, set up and remove dev boxes.", no_args_is_help=True)

T = TypeVar("T")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the dev box.", show_default=False)]
User = Annotated[str, typer.Option("--user", metavar="ID", help="Whose: an id of the directory, or me.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is over.")]
Minutes = Annotated[float, typer.Option("--timeout-minutes", min=0, help="Wait at most so long.")]
Poll = Annotated[float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Between two looks.")]


@app.command("list")
def list_(context: typer.Context, user: User = "me", as_json: AsJson = False) -> None:
    """List the dev boxes of a person."""
    boxes = run(_with(context, user, lambda center: center.list()))
    out = Output()
    if as_json:
        out.json({"devboxes": [box.to_dict() for box in boxes], "count": len(boxes)})
        return
    rows = [(box.name, box.provisioning_state, box.power_state, box.pool, box.error) for box in boxes]
    out.table(("name", "state", "power", "pool", "error"), rows, empty="There are no dev boxes.")


@app.command()
def status(context: typer.Context, name: Name, user: User = "me", as_json: AsJson = False) -> None:
    """Show how a dev box is, and where it is reached."""

    async def work(center: DevBoxes) -> dict[str, Any]:
        from operator_dataverse.errors import Refused

        box = await center.get(name)
        if box is None:
            raise Refused(f"There is no dev box {name}; list them with `operator-dataverse devbox list`.", status=404)
        url = (await center.connection(name)).web_url if box.ready else ""
        return _status(box, url)

    _tell(run(_with(context, user, work)), as_json)


@app.command()
def provision(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: the next free name.")] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Beginning of such a name.")] = "shraga-box",
    user: User = "me",
    wait: Wait = False,
    timeout_minutes: Minutes = 35.0,
    poll: Poll = 30.0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Ask for a dev box; one of that name that is there already is no error."""

    async def work(center: DevBoxes) -> dict[str, Any]:
        from operator_dataverse.fleet.devboxes import next_name

        if dry_run:
            taken = {box.name for box in await center.list()}
            chosen = name or next_name(taken, prefix)
            return {"dry_run": True, "name": chosen, "existed": chosen in taken}
        made = await center.provision(name, prefix=prefix)
        told = {"name": made.name, "existed": made.existed, "operation": made.operation.url or None}
        if not wait:
            return {**told, "provisioning_state": made.operation.status}
        box = await center.wait(made, timeout_s=timeout_minutes * 60)
        return {**told, **_status(box, (await center.connection(box.name)).web_url)}

    _tell(run(_with(context, user, work, poll)), as_json)


@app.command("wait")
def wait_(
    context: typer.Context,
    operation: Annotated[str, typer.Argument(metavar="ADDRESS", help="Address of the operation.", show_default=False)],
    timeout_minutes: Minutes = 35.0,
    poll: Poll = 30.0,
    as_json: AsJson = False,
) -> int:
    """Wait for an operation that was begun before, here or elsewhere; exit code 1 if it failed."""
    ended = run(
        _with(context, "me", lambda center: center.wait_operation(operation, timeout_s=timeout_minutes * 60), poll)
    )
    _tell({"operation": operation, "status": ended.status, "error": ended.error or None}, as_json)
    return 0 if ended.status == "Succeeded" else 1


@app.command()
def customize(
    context: typer.Context,
    name: Name,
    tools: Annotated[bool, typer.Option("--tools", help="Git, the agent's command line and Python.")] = False,
    deploy: Annotated[
        str | None, typer.Option("--deploy", metavar="URL", help="Install the product from there, and start it.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Tasks of your own: a JSON file.")] = None,
    user: User = "me",
    wait: Wait = False,
    timeout_minutes: Minutes = 35.0,
    poll: Poll = 30.0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Have tasks run on a dev box, once; exit code 1 if they failed."""
    group = _group(tools, deploy, file)
    if dry_run:
        _tell({"dry_run": True, "name": name, "group": group.name, **group.body()}, as_json)
        return 0

    async def work(center: DevBoxes) -> dict[str, Any]:
        found = await center.customize(name, group)
        if wait:
            found = await center.wait_customization(name, group.name, timeout_s=timeout_minutes * 60)
        tasks = [{"name": task, "status": state} for task, state in found.tasks]
        return {"name": name, "group": found.name, "status": found.status, "tasks": tasks, "error": found.error or None}

    done = run(_with(context, user, work, poll))
    _tell(done, as_json)
    return 0 if done["status"] in ("NotStarted", "Running", "Succeeded") else 1


@app.command()
def connect(context: typer.Context, name: Name, user: User = "me", as_json: AsJson = False) -> None:
    """Show where a dev box is reached."""

    async def work(center: DevBoxes) -> dict[str, Any]:
        found = await center.connection(name)
        return {"name": name, "web_url": found.web_url or None, "rdp_url": found.rdp_url or None}

    _tell(run(_with(context, user, work)), as_json)


@app.command()
def delete(
    context: typer.Context,
    name: Name,
    user: User = "me",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; everything on the box is lost.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove a dev box with everything on it."""
    if dry_run:
        _tell({"dry_run": True, "name": name}, as_json)
        return
    if not yes:
        raise ConfigError(f"Everything on {name} would be lost; say so with `--yes`.")

    async def work(center: DevBoxes) -> dict[str, Any]:
        begun = await center.delete(name)
        return {"name": name, "status": begun.status, "operation": begun.url or None}

    _tell(run(_with(context, user, work)), as_json)


async def _with(context: typer.Context, user: str, work: Callable[[DevBoxes], Awaitable[T]], poll_s: float = 30.0) -> T:
    from operator_dataverse.fleet.devboxes import DevBoxes

    async with DevBoxes.open(dataverse_settings(context), user=user, poll_s=poll_s) as center:
        return await work(center)


def _group(tools: bool, deploy: str | None, file: Path | None) -> Group:
    from operator_dataverse.fleet.customizations import deploy_group, group_from, tools_group

    if tools + (deploy is not None) + (file is not None) != 1:
        raise ConfigError("Choose what is to be run: `--tools`, `--deploy URL` or `--file FILE`.")
    if tools:
        return tools_group()
    return deploy_group(deploy) if deploy is not None else group_from(file or Path())


def _status(box: DevBox, url: str) -> dict[str, Any]:
    return {
        "name": box.name,
        "provisioning_state": box.provisioning_state,
        "status": box.power_state or box.action_state or None,
        "connection_url": url or None,
        "error": box.error or None,
    }


def _tell(what: dict[str, Any], as_json: bool) -> None:
    out = Output()
    if as_json:
        out.json(what)
        return
    tasks = what.pop("tasks", None)
    out.fields({name.replace("_", " "): value for name, value in what.items()})
    for task in tasks or ():
        out.line(f"  {task.get('displayName') or task.get('name')}  {task.get('status', '')}".rstrip())
