"""Over standard input and output: for a program that starts `operator mcp` itself."""

from __future__ import annotations

import asyncio
import os
import stat

from operator_core.agent_lab.toolbox.mcp_messages import LONGEST_MESSAGE, messages
from operator_core.errors import ConfigError
from operator_core.mcp.server import Access, make_server

__all__ = ["serve_stdio"]


async def serve_stdio(access: Access, stop: asyncio.Event, *, write: bool) -> None:
    """Serve until the other side ends its input, or ``stop`` is set.

    Args:
        access: Who is at the other side; whoever starts a program has that person's rights.
        write: Whether there are tools that change something.

    Raises:
        ConfigError: Nobody is at the other side.
    """
    server = make_server(lambda request: access, write=write)
    reader, writer, source = await _standard_streams()

    async def work() -> None:
        async with messages(reader, writer, lambda why: None) as (read, answers):
            await server.run(read, answers, server.create_initialization_options())

    running = asyncio.ensure_future(work())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
        source.close()
        await asyncio.sleep(0)  # only then it is closed


async def _standard_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.ReadTransport]:
    """Standard input and output, which from now on nothing else can read or write.

    The SDK's own way reads in a thread that nothing can interrupt, so that a signal would have to wait for input.
    """
    if not all(_carries_messages(fd) for fd in (0, 1)):
        raise ConfigError(
            "`operator mcp` speaks with the program that starts it; name it in that program's list of MCP servers, or "
            "use --http."
        )
    loop = asyncio.get_running_loop()
    source, sink = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    reader = asyncio.StreamReader(limit=LONGEST_MESSAGE)
    reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    # A protocol for readers, because only that one can say when its pipe is closed.
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, sink)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop), reading


def _carries_messages(fd: int) -> bool:
    """Whether there is a program at the other side, and no terminal or file."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
