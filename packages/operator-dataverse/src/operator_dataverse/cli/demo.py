"""``operator-dataverse demo``: the whole round trip on this machine, without any account."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output

__all__ = ["demo"]


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the store and the session folders, and say where.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show two tasks on their way: from a row of Dataverse through a real worker back to the row, and to Teams.

    A stand-in server plays Dataverse and Teams, a script plays the model; no account is needed and nothing leaves this
    machine.
    """
    import shutil
    import tempfile

    from operator_dataverse.demo.play import play

    # The document is standard output; the story then goes to standard error.
    out = Output(sys.stderr if as_json else None)
    folder = Path(tempfile.mkdtemp(prefix="operator-dataverse-demo-")).resolve()
    ended = False
    try:
        played = run(play(folder, out))
        ended = True
    finally:
        if ended and not keep:
            shutil.rmtree(folder, ignore_errors=True)
        elif not ended:
            out.say(f"What there is of it stays in {folder}.")
    if as_json:
        Output().json(played.to_dict())
    else:
        for task in played.tasks:
            way = " -> ".join(str(code) for code in task.codes)
            out.line(f"{task.name}: {way}, {task.messages} messages, {len(task.cards)} cards.")
        out.line(played.audit)
        out.line(
            f"That took {played.seconds:.0f} s; {'everything is in ' + str(folder) if keep else 'nothing is left'}."
        )
    return 0 if played.ok else 1
