"""``operator serve``: the API and the console over a store, and letters to people; no worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import invocation, run
from operator_core.cli.output import Output

if TYPE_CHECKING:
    from operator_core.config import Settings

__all__ = ["Host", "Port", "serve", "with_address"]

Host = Annotated[str | None, typer.Option("--host", help="Address to listen on; default: `[web] host`.")]
Port = Annotated[
    int | None, typer.Option("--port", "-p", min=0, max=65535, help="Default: `[web] port`; 0: any free one.")
]


def serve(context: typer.Context, host: Host = None, port: Port = None) -> None:
    """Serve the console and the API, until Ctrl-C or SIGTERM.

    The first start shows a token for an administrator, once.
    """
    loaded = invocation(context).load()
    loaded = loaded._replace(settings=with_address(loaded.settings, host, port))

    async def work() -> None:
        from operator_core.cli.face import Face
        from operator_core.cli.until import until_signal
        from operator_core.db.engine import Database
        from operator_core.http_server import listen

        out = Output()
        web = loaded.settings.web
        # Before the store is made: nothing is left behind by a start that fails.
        listener = listen(web.host, web.port)
        try:
            async with Database.open(loaded.settings.store.url) as database:
                await Face(loaded, database, say=out.say).run(until_signal(), listener)
        finally:
            listener.close()

    run(work())


def with_address(settings: Settings, host: str | None, port: int | None) -> Settings:
    """The settings with the address of the command line."""
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return settings.model_copy(update={"web": settings.web.model_copy(update=given)}) if given else settings
