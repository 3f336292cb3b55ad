"""``operator-dataverse update``: what self-update sees, and would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output
from operator_dataverse.cli.connection import DryRun, dataverse_settings

if TYPE_CHECKING:
    from operator_dataverse.update import Updater
    from operator_dataverse.update.updater import Look

__all__ = ["app"]

app = typer.Typer(help="Take the new version of this program that a branch has.", no_args_is_help=True)


@app.command()
def check(context: typer.Context, as_json: AsJson = False) -> None:
    """Ask the remote. Exit code 0: there is something to take; 3: there is not."""
    look = run(_updater(context).look())
    _tell(look, as_json)
    if look.why_not is not None:
        raise typer.Exit(3)


@app.command()
def apply(
    context: typer.Context,
    again: Annotated[bool, typer.Option("--again", help="Also what was tried and did not work.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take it, try it, and go back if it does not work. A worker that runs goes on with the old one until it ends."""

    async def work() -> Look:
        updater = _updater(context)
        if not dry_run:
            await updater.finish()
            if again:
                await updater.try_again()
        look = await updater.look()
        if look.why_not is None and not dry_run:
            await updater.apply(look)
        return look

    look = run(work())
    _tell(look, as_json, done=not dry_run)
    if look.why_not is not None:
        raise typer.Exit(3)


@app.command()
def status(context: typer.Context, as_json: AsJson = False) -> None:
    """What runs here, and what earlier updates left; asks nobody."""

    async def work() -> dict[str, Any]:
        checkout = await _updater(context).checkout()
        here, record = await checkout.commit(), await checkout.record()
        return {
            "folder": str(checkout.folder),
            "branch": checkout.branch,
            "version": await checkout.version(here),
            "commit": here,
            "clean": await checkout.is_clean(),
            "previous": record.previous or None,
            "updated_at": record.updated_at or None,
            "failed": record.failed,
            "interrupted": record.taking or None,
        }

    found = run(work())
    out = Output()
    if as_json:
        out.json(found)
        return
    out.line(
        f"{found['folder']} has version {found['version']} ({found['commit'][:12]}) and follows {found['branch']}."
    )
    if not found["clean"]:
        out.line("It has changes of its own, so nothing is taken before they are committed or dropped.")
    if found["previous"]:
        out.line(f"Updated at {found['updated_at']}, from {found['previous'][:12]}.")
    if found["interrupted"]:
        out.line(f"The update to {found['interrupted'][:12]} is under way, or was interrupted: `update apply` ends it.")
    for commit, why in found["failed"].items():
        out.line(f"{commit[:12]} was tried and did not work: {why}")


def _updater(context: typer.Context) -> Updater:
    from operator_dataverse.update import Updater

    return Updater(dataverse_settings(context), Output().say)


def _tell(look: Look, as_json: bool, *, done: bool = False) -> None:
    out = Output()
    if as_json:
        versions = {"here": look.here, "there": look.there}
        out.json(
            {name: {"version": version, "commit": commit} for name, (version, commit) in versions.items()}
            | {"why_not": look.why_not, "applied": done and look.why_not is None}
        )
    elif look.why_not is not None:
        out.line(look.why_not)
    else:
        out.line(f"Version {look.there[0]} ({look.there[1][:12]}) {'is in place' if done else 'can be taken'}.")
