"""``operator-dataverse outbox``: what is still to go to Dataverse and Teams from this store, and what never will."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, open_store, run
from operator_core.cli.output import Output
from operator_core.text import clip

if TYPE_CHECKING:
    from operator_core.notify.outbox import Slip

__all__ = ["app"]

app = typer.Typer(help="Look at what is still to go out, and let it go out again.", no_args_is_help=True)

_CHANNELS = ("dataverse:", "teams:")


@app.command("list")
def list_(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=5000, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List what waits and what was given up, the newest first."""
    found = run(_slips(context, limit))
    output = Output()
    if as_json:
        output.json([{**slip._asdict(), "state": _state(slip)} for slip in found])
        return
    if not found:
        output.line("Nothing is left to go out.")
        return
    rows = [
        (slip.id, _state(slip), slip.kind, slip.channel, slip.attempts, clip(slip.error or "", 100)) for slip in found
    ]
    output.table(("ID", "STATE", "KIND", "CHANNEL", "ATTEMPTS", "WHY"), rows)


@app.command("again")
def again_(
    context: typer.Context,
    letter: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=2**31 - 1, help="Number of the letter, from `outbox list`.")
    ],
) -> None:
    """Let one that waits, or that was given up, go out now; a worker of this dev box carries it."""
    run(_again(context, letter))
    Output().line(f"Letter {letter} goes out as soon as a worker of this dev box looks.")


async def _slips(context: typer.Context, limit: int) -> list[Slip]:
    from operator_core.notify.outbox import slips

    async with open_store(context) as database:
        found = [slip for channels in _CHANNELS for slip in await slips(database, channels, limit=limit)]
    return sorted(found, key=lambda slip: -slip.id)[:limit]


async def _again(context: typer.Context, letter: int) -> None:
    from operator_core.notify.outbox import again

    async with open_store(context) as database:
        await again(database, letter, actor="person (cli)")


def _state(slip: Slip) -> str:
    if slip.ended_at is not None:
        return "given up"
    return "waiting" if slip.error else "to go"
