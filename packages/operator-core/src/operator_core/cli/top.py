"""``operator top``: the board and live sessions in the terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from operator_core.cli.context import open_api, run
from operator_core.errors import ConfigError

__all__ = ["top"]


def top(
    context: typer.Context,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.2, max=60, help="Seconds between looks.")] = 2.0,
) -> None:
    """The board and live sessions in this terminal; the same data as the console."""
    if find_spec("textual") is None:
        raise ConfigError("`operator top` needs the extra `tui`: install `operator-core[tui]`.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("`operator top` needs a terminal; elsewhere use `operator tickets list`.")

    async def work() -> None:
        from operator_core.tui.app import Top

        async with open_api(context) as api:
            shown = Top(api, pause_s=interval)
            # Else it would end at once, and leave the terminal in the other screen.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, shown.call_later, shown.action_quit)
            await shown.run_async()

    run(work())
