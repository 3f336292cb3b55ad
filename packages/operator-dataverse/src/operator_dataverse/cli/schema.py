"""``operator-dataverse schema``: the four tables, made and compared with what the product needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output
from operator_dataverse.cli.connection import DryRun, dataverse_settings, open_dataverse

if TYPE_CHECKING:
    from operator_dataverse.client.comparison import Difference
    from operator_dataverse.client.making import Step

__all__ = ["app"]

app = typer.Typer(help="Make the four tables, or compare them with what the product needs.", no_args_is_help=True)

# The service takes its time over a new table.
_MAKING_S = 180.0


@app.command()
def create(
    context: typer.Context,
    solution: Annotated[
        str | None, typer.Option("--solution", metavar="NAME", help="Unique name of the solution it becomes part of.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Make the tables and columns that are missing.

    Nothing that is there is changed. A run that breaks off is simply run again. The account needs the role System
    Customizer.
    """
    steps, made = run(_create(context, solution, dry_run))
    out = Output()
    if as_json:
        out.json({"steps": [step._asdict() for step in steps], "made": made})
    elif dry_run:
        out.table(("would make", "by a POST to"), [(s.what, s.path) for s in steps], empty="Nothing is missing.")
    else:
        out.table(("made",), [(what,) for what in made], empty="Nothing is missing.")
    return 0


@app.command()
def check(context: typer.Context, as_json: AsJson = False) -> int:
    """Say whether the product can work with the tables; the exit code is 1 if it cannot."""
    found = run(_differences(context))
    blocking = [difference for difference in found if difference.blocking]
    out = Output()
    if as_json:
        out.json({"ok": not blocking, "differences": [difference._asdict() for difference in found]})
    elif blocking:
        _print(out, blocking)
    else:
        out.line("The tables have what the product needs.")
    return 1 if blocking else 0


@app.command()
def diff(context: typer.Context, as_json: AsJson = False) -> int:
    """Show every difference between the tables and the ones that the product wants, and what to do about it."""
    found = run(_differences(context))
    out = Output()
    if as_json:
        out.json([difference._asdict() for difference in found])
    else:
        _print(out, found)
    return 0


def _print(out: Output, differences: list[Difference]) -> None:
    rows = [
        (
            f"{d.table}.{d.column}" if d.column else d.table,
            "must" if d.blocking else "may",
            d.detail,
            "`operator-dataverse schema create`" if d.missing else "change it in make.powerapps.com",
        )
        for d in differences
    ]
    out.table(("where", "needed", "what", "remedy"), rows, empty="There is no difference.")


async def _differences(context: typer.Context) -> list[Difference]:
    from operator_dataverse.client.comparison import compare, look, wanted

    tables = wanted(dataverse_settings(context).table)
    async with open_dataverse(context) as dataverse:
        there = await look(dataverse, tables)
    return [difference for table in tables for difference in compare(table, there[table.entity_set])]


async def _create(context: typer.Context, solution: str | None, dry_run: bool) -> tuple[list[Step], list[str]]:
    from operator_dataverse.client.comparison import look, wanted
    from operator_dataverse.client.making import make, plan

    tables = wanted(dataverse_settings(context).table)
    async with open_dataverse(context, timeout_s=_MAKING_S) as dataverse:
        there = await look(dataverse, tables)
        steps = [step for table in tables for step in plan(table, there[table.entity_set])]
        return steps, [] if dry_run else await make(dataverse, steps, solution=solution)
