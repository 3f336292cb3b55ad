"""HTTP of which no answer can fill the memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2

__all__ = ["Bounded"]


class Bounded(httpx2.AsyncHTTPTransport):
    """Ends an answer that is one document at a number of bytes; a stream of events has limits of its own.

    Nothing may be compressed: a few bytes could be gigabytes then.

    Args:
        most: Bytes.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.ReadError("the answer is compressed, which was not asked for", request=request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Counted(response.stream, self._most, request)
        return response


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, most: int, request: httpx2.Request) -> None:
        self._stream, self._most, self._request = stream, most, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"the answer is longer than {self._most} bytes", request=self._request)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
