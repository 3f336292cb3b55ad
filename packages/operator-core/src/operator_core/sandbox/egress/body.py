"""Bodies of HTTP/1 messages: read by their own rules, written anew."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from operator_core.sandbox.egress.message import Malformed

__all__ = ["chunk", "read_body"]

_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n\Z")
_BLOCK = 1 << 16
_MOST_TRAILERS = 64


async def read_body(reader: asyncio.StreamReader, length: int | None, most: int) -> AsyncIterator[bytes]:
    """The content of a body.

    Args:
        length: In bytes; -1: until the stream ends; None: it comes in chunks.
        most: Bytes; what is longer is refused.

    Raises:
        Malformed: It is not what its head says, or too long.
    """
    if length is None:
        async for data in _chunks(reader, most):
            yield data
        return
    if length > most:
        raise Malformed("the body is too long", 413)
    left = most + 1 if length < 0 else length
    while left:
        data = await reader.read(min(left, _BLOCK))
        if not data:
            if length < 0:
                return
            raise Malformed("the body ended before its length")
        left -= len(data)
        yield data
    if length < 0:
        raise Malformed("the body is too long", 413)


async def _chunks(reader: asyncio.StreamReader, most: int) -> AsyncIterator[bytes]:
    total = 0
    while size := await _size(reader):
        total += size
        if total > most:
            raise Malformed("the body is too long", 413)
        while size:
            data = await reader.read(min(size, _BLOCK))
            if not data:
                raise Malformed("the body ended inside a chunk")
            size -= len(data)
            yield data
        if await reader.readexactly(2) != b"\r\n":
            raise Malformed("a chunk is longer than it says")
    for _ in range(_MOST_TRAILERS):
        if await reader.readuntil(b"\r\n") == b"\r\n":
            return
    raise Malformed("there are too many trailers", 431)


async def _size(reader: asyncio.StreamReader) -> int:
    match = _SIZE.match(await reader.readuntil(b"\r\n"))
    if match is None:
        raise Malformed("a chunk does not begin with its size")
    return int(match[1], 16)


def chunk(data: bytes) -> bytes:
    """One chunk; that of no data is the end of the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
