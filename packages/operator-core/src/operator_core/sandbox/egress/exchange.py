"""One request and its answer, each written anew from what was understood of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from operator_core.sandbox.egress.body import chunk, read_body
from operator_core.sandbox.egress.broker import Dressed
from operator_core.sandbox.egress.message import Headers, Malformed, Request, Response, parse_response
from operator_core.sandbox.egress.refusal import answer

__all__ = ["Exchange", "Streams", "tunnel"]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_BLOCK = 1 << 16
_MOST_INTERIM = 10
_WITH_BODY = ("POST", "PUT", "PATCH")


class Exchange:
    """See the module.

    Args:
        request: What was asked; its head has been read from ``client``.
        client: The agent's program.
        server: Where it goes.
        dressed: The request with its credentials, if it gets any.
        most: Bytes of the request's body, and of a hundredth of the answer's.

    Attributes:
        begun: Whether the client has got any of the server's answer.
    """

    def __init__(self, request: Request, client: Streams, server: Streams, dressed: Dressed | None, most: int) -> None:
        self.request, self.client, self.server, self.dressed = request, client, server, dressed
        self.begun = False
        self._most = most

    async def run(self, alive: Callable[[], None]) -> None:
        """Carry it out; a failure before the answer has begun is told to the client.

        Args:
            alive: Called when a part of it has passed.
        """
        sending = asyncio.ensure_future(self._send(alive))
        answering = asyncio.ensure_future(self._answer(alive))
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and isinstance(sending.exception(), Malformed):
                sending.result()
            # A server may answer, and close, before it has read the whole request.
            await answering
        except (Malformed, EOFError, OSError, asyncio.LimitOverrunError) as error:
            if self.begun:
                raise
            status = error.status if isinstance(error, Malformed) else 502
            why = error.why if isinstance(error, Malformed) else f"{self.request.host.name} gave no answer"
            self.client[1].write(answer(status, why))
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _send(self, alive: Callable[[], None]) -> None:
        request, out = self.request, self.server[1]
        host = request.host.at(request.port) if request.port != 80 else request.host.at(80).removesuffix(":80")
        headers = [("Host", host), *(self.dressed.headers if self.dressed else request.headers)]
        if request.length is None:
            headers.append(("Transfer-Encoding", "chunked"))
        elif request.length or request.method in _WITH_BODY:
            headers.append(("Content-Length", str(request.length)))
        out.write(_head(f"{request.method} {request.path} HTTP/1.1", headers))
        await out.drain()
        if request.length == 0:
            return
        if request.expects and request.version:
            self.client[1].write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async for data in read_body(self.client[0], request.length, self._most):
            out.write(chunk(data) if request.length is None else data)
            alive()
            await out.drain()
        if request.length is None:
            out.write(chunk(b""))
            await out.drain()

    async def _answer(self, alive: Callable[[], None]) -> None:
        response = await self._response()
        alive()
        out = self.client[1]
        headers, clean = response.headers, None
        if self.dressed:
            # What is left of a compressed answer cannot be looked through.
            if any(n.lower() == "content-encoding" and v.lower() != "identity" for n, v in headers):
                raise Malformed(f"{self.request.host.name} answered in a coding that cannot be searched", 502)
            headers, clean = self.dressed.shown(headers), self.dressed.clean.filter()
        length = response.length
        if clean and length != 0:
            length = None  # it may become shorter or longer
        chunked = length is None and self.request.version == 1
        if chunked:
            headers = [*headers, ("Transfer-Encoding", "chunked")]
        elif response.declared >= 0 and length is not None:
            headers = [*headers, ("Content-Length", str(response.declared))]
        self.begun = True
        reason = self.dressed.clean.text(response.reason) if self.dressed else response.reason
        out.write(_head(f"HTTP/1.1 {response.status} {reason}", headers))

        async def show(data: bytes) -> None:
            if data:
                out.write(chunk(data) if chunked else data)
                await out.drain()

        async for data in read_body(self.server[0], response.length, 100 * self._most):
            await show(clean.feed(data) if clean else data)
            alive()
        if clean:
            await show(clean.flush())
        if chunked:
            out.write(chunk(b""))

    async def _response(self) -> Response:
        for _ in range(_MOST_INTERIM):
            response = parse_response(await self.server[0].readuntil(b"\r\n\r\n"), self.request.method)
            if response.status >= 200:
                return response
            if response.status == 101:
                break
        raise Malformed("the answer is none of HTTP/1.1", 502)


def _head(first: str, headers: Headers) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers), "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def tunnel(client: Streams, server: Streams, alive: Callable[[], None]) -> None:
    """Carry bytes both ways until both sides have ended, or one breaks off."""
    pumps = [
        asyncio.ensure_future(_pump(client[0], server[1], alive)),
        asyncio.ensure_future(_pump(server[0], client[1], alive)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, alive: Callable[[], None]) -> None:
    while data := await reader.read(_BLOCK):
        writer.write(data)
        alive()
        await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
