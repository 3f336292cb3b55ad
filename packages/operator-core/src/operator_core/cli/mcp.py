"""``operator mcp``: the product as an MCP server, for other agents."""

from __future__ import annotations

import importlib.util
import sys
from typing import Annotated

import typer

from operator_core.cli.context import Invocation, invocation, open_api, run
from operator_core.cli.output import Output
from operator_core.errors import ConfigError
from operator_core.model.person import Actor, Role

__all__ = ["mcp"]

_PORT = 8643


def mcp(
    context: typer.Context,
    write: Annotated[
        bool, typer.Option("--write", help="Also submit, reply and cancel; without it this server only reads.")
    ] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP on this machine, with a token in each request.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=0, max=65535, help=f"For --http; default: {_PORT}; 0: any free one."),
    ] = None,
) -> None:
    """Serve MCP over standard input and output, for the program that starts this one."""
    if port is not None and not http:
        raise ConfigError("--port is for --http; over standard input and output there is none.")
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError("MCP is not installed; install it with `pip install 'operator-core[mcp]'`.")
    call = invocation(context)
    run(_over_http(context, call, write, _PORT if port is None else port) if http else _over_stdio(context, write))


async def _over_stdio(context: typer.Context, write: bool) -> None:
    from operator_core.api.local import LocalApi
    from operator_core.cli.until import until_signal
    from operator_core.mcp.server import Access
    from operator_core.mcp.stdio import serve_stdio

    role = Role.OPERATOR if write else Role.VIEWER
    async with open_api(context) as api:
        if isinstance(api, LocalApi):
            api = api.as_(Actor("person", role, "mcp"))
        await serve_stdio(Access(api, role), until_signal(), write=write)


async def _over_http(context: typer.Context, call: Invocation, write: bool, port: int) -> None:
    from operator_core.api.local import LocalApi
    from operator_core.cli.context import open_store
    from operator_core.cli.until import until_signal
    from operator_core.http_server import listen
    from operator_core.mcp.http import ServerGate, StoreGate, serve_http

    say = Output(sys.stderr).line
    loaded = call.load()
    most = loaded.settings.web.max_body_bytes
    if call.server is not None:
        gate = ServerGate(call.server)
        try:
            listener = listen("127.0.0.1", port, choose="--port")
            await serve_http(gate, listener, until_signal(), say, write=write, most=most)
        finally:
            await gate.close()
        return
    async with open_store(context) as database:
        nobody = LocalApi(database, loaded.settings, Actor("nobody", Role.VIEWER, "mcp"), loaded=loaded)
        listener = listen("127.0.0.1", port, choose="--port")
        await serve_http(StoreGate(nobody), listener, until_signal(), say, write=write, most=most)
