"""Messages of MCP over a connection: one JSON object in each line, none of them without end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from operator_core import clock

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

__all__ = ["LONGEST_MESSAGE", "MOST_AT_ONCE", "messages"]

LONGEST_MESSAGE = 4 << 20
"""Bytes; a side that sends a longer message is left. Streams for :func:`messages` are made with this limit."""

MOST_AT_ONCE = 5000
"""Lines; a side that sends so many within a second is left: nothing else would be done here any more."""


@asynccontextmanager
async def messages(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: Callable[[str], None]
) -> AsyncIterator[TransportStreams]:
    """The SDK's streams of messages over a connection, which is closed in the end.

    Args:
        ended: Called when the other side ends it; or sends too much, with a clause that says so.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        lines, since = 0, clock.monotonic()
        try:
            async with to_session:
                while line := await reader.readuntil(b"\n"):
                    lines += 1
                    if lines == MOST_AT_ONCE:
                        if clock.monotonic() - since < 1.0:
                            ended(f"it sent {MOST_AT_ONCE} lines within a second")
                            return
                        lines, since = 0, clock.monotonic()
                    # What is no message is a program that prints, which is no reason to end.
                    with contextlib.suppress(ValueError):
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        await to_session.send(SessionMessage(message))
        except asyncio.LimitOverrunError:
            ended(f"it sent a message of more than {LONGEST_MESSAGE} bytes")
        except (OSError, asyncio.IncompleteReadError):
            ended("")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # nobody listens any more

    async def write() -> None:
        try:
            async with from_session:
                async for message in from_session:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    writer.write(text.encode() + b"\n")
                    await writer.drain()
        except OSError:
            ended("")

    tasks = [asyncio.create_task(read()), asyncio.create_task(write())]
    try:
        yield incoming, outgoing
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (to_session, incoming, outgoing, from_session):
            stream.close()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
