"""``operator-dataverse double``: a stand-in for Dataverse on this machine, to try everything else on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output

if TYPE_CHECKING:
    from operator_dataverse.double import Double

__all__ = ["double"]

_USER = "alice@example.com"
_EVERY_S = 0.2


def double(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="On 127.0.0.1; default: a free one.")] = 0,
    token: Annotated[
        str | None, typer.Option("--token", help="The access token that it accepts; default: a random one.")
    ] = None,
    seed: Annotated[bool, typer.Option("--seed", help=f"Begin with a few rows of {_USER}.")] = False,
    storm: Annotated[
        float, typer.Option("--storm", min=0.0, max=0.9, help="Share of the requests that get 429 or 503.")
    ] = 0.0,
    least: Annotated[
        bool, typer.Option("--least", help="Without the columns that the product can use but need not have.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Serve a stand-in for Dataverse, DevCenter, Power Automate and Teams until Ctrl-C; print what it is asked.

    It keeps nothing, and asks no service of Microsoft.
    """
    return run(_serve(port, token, seed, storm, least, as_json))


async def _serve(port: int, token: str | None, seed: bool, storm: float, least: bool, as_json: bool) -> int:
    import asyncio
    import contextlib

    from operator_core.cli.until import until_signal
    from operator_dataverse.double import Double

    stop, out = until_signal(), Output()
    with Double(port=port, token=token, optional_columns=not least) as double:
        if seed:
            seed_examples(double)
        if storm:
            double.faults.storm(storm, retry_after="1")
        if as_json:
            out.json(_described(double))
        else:
            _introduce(double, out)
        shown = 0
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _EVERY_S)
            if as_json:
                continue
            for request in double.history.ended(since=shown):
                out.say(str(request))
                shown = request.seq
    return 0


def seed_examples(double: Double) -> None:
    """A person, a task of theirs that waits, and one that is done."""
    double.seed("crb3b_shragausers", crb3b_useremail=_USER, crb3b_onboardingstep="completed")
    double.seed(
        "cr_shraga_tasks",
        cr_name="Say hello",
        cr_prompt="Write hello.txt with the one word hello.",
        cr_status=1,
        crb3b_useremail=_USER,
    )
    double.seed(
        "cr_shraga_tasks",
        cr_name="Count to three",
        cr_prompt="Write 1, 2 and 3 into numbers.txt, a line each.",
        cr_status=7,
        cr_result="numbers.txt has three lines.",
        crb3b_useremail=_USER,
        createdon="2026-01-31T10:20:30Z",
        modifiedon="2026-01-31T10:25:00Z",
    )


def _described(double: Double) -> dict[str, Any]:
    return {
        "url": double.url,
        "token": double.token,
        "user": _USER,
        "teams_webhook_url": double.webhook_url,
        "devcenter_url": double.devcenter_url,
        "flow_url": double.flow_url,
    }


def _introduce(double: Double, out: Output) -> None:
    out.line("A stand-in for Dataverse on this machine: no service of Microsoft is asked, and nothing is kept.")
    out.line("In another terminal (in PowerShell: $env:NAME = 'VALUE'):")
    out.line(f"  export DATAVERSE_URL={double.url}")
    out.line(f"  export DATAVERSE_TOKEN={double.token}")
    out.line(f"  export WEBHOOK_USER={_USER}")
    out.line(f"  export TEAMS_WEBHOOK_URL={double.webhook_url}")
    out.line("  operator-dataverse doctor")
    out.line(f"DevCenter is at {double.devcenter_url}, Power Automate at {double.flow_url}.")
    out.line("What it is asked, until Ctrl-C:")
