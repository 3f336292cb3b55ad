"""One server over HTTP: its address, the token that goes there and nowhere else, and what its refusals mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from operator_core import __version__
from operator_core.errors import (
    ConfigError,
    NotFound,
    OperatorError,
    StoreError,
    StoreUnavailable,
    TransitionRefused,
)
from operator_core.text import clip, printable

if TYPE_CHECKING:
    import httpx2
    from pydantic import TypeAdapter

__all__ = ["Http"]

T = TypeVar("T")

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CONNECT_S = 10.0
_PAUSES_S = (0.3, 1.0, 3.0)
_LATER = frozenset({502, 503, 504})
_QUIET_S = 60.0
"""A stream says something every fifteen seconds; one that is silent for so long is dead."""
_MOST_BYTES = 256 << 20
_HEADER = {"User-Agent": f"operator/{__version__}", "Accept": "application/json"}


class Http:
    """Requests to one server.

    Args:
        url: ``https://…``, or ``http://…`` on this machine.
        token: ``op_…``.
        timeout_s: Of one request, in seconds.

    Raises:
        ConfigError: The address or the token is none, or the token would go over the network in the clear.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = 60.0) -> None:
        self.url = _address(url)
        self._token = _usable(token)
        self._timeout_s = timeout_s
        self._client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        import httpx2

        local = urlsplit(self.url).hostname in _LOOPBACK
        self._client = httpx2.AsyncClient(
            headers={**_HEADER, "Authorization": f"Bearer {self._token}"},
            timeout=httpx2.Timeout(self._timeout_s, connect=_CONNECT_S),
            follow_redirects=False,
            # A proxy of the environment is for what is elsewhere.
            trust_env=not local,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def get(self, path: str, shape: TypeAdapter[T], params: Mapping[str, Any] | None = None) -> T:
        """Read something; asked again when the server is away for a moment."""
        return self._understood(shape, await self._send("GET", path, params=params))

    async def post(
        self,
        path: str,
        shape: TypeAdapter[T],
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> T:
        """Do something; with an idempotency key asked again when the answer was lost, else never."""
        return self._understood(shape, await self._send("POST", path, params=params, body=body, key=key))

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[httpx2.EventSource]:
        """One connection of a live stream.

        Raises:
            StoreUnavailable: There is none now.
        """
        import httpx2

        timeout = httpx2.Timeout(_QUIET_S, connect=_CONNECT_S)
        headers = {"Accept": "text/event-stream"}
        try:
            async with self._open.stream(
                "GET", self.url + path, params=_plain(params), headers=headers, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    raise self._refusal(response.status_code, await response.aread())
                yield httpx2.EventSource(response)
        except httpx2.TransportError as error:
            raise self._away(error) from None

    def _understood(self, shape: TypeAdapter[T], data: bytes) -> T:
        try:
            return shape.validate_json(data)
        except ValueError:
            raise self.strange() from None

    def strange(self) -> StoreError:
        """What was answered is not what is asked for."""
        return StoreError(
            f"What answers at {self.url} is no Operator server, or one of another version; check `--server`, and "
            "install the same version on both sides."
        )

    @property
    def _open(self) -> httpx2.AsyncClient:
        if self._client is None:
            raise StoreError("This Client is not open; use `async with Client(...) as operator`.")
        return self._client

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> bytes:
        repeat = method == "GET" or key is not None
        for pause in (*_PAUSES_S, None):
            try:
                return await self._once(method, path, params, body, key)
            except StoreUnavailable:
                if pause is None or not repeat:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _once(
        self, method: str, path: str, params: Mapping[str, Any] | None, body: Mapping[str, Any] | None, key: str | None
    ) -> bytes:
        import httpx2

        headers = {} if key is None else {"Idempotency-Key": key}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        try:
            request = self._open.build_request(
                method, self.url + path, params=_plain(params or {}), content=content, headers=headers
            )
            response = await self._open.send(request, stream=True)
            try:
                data = b"".join([part async for part in _bounded(response)])
            finally:
                await response.aclose()
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise ConfigError(f"{self.url!r} is not the address of a server; check `--server`.") from None
        except httpx2.TransportError as error:
            raise self._away(error) from None
        if not 200 <= response.status_code < 300:
            raise self._refusal(response.status_code, data)
        if response.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise StoreError(f"What answers at {self.url} is not an Operator server; check `--server`.")
        return data

    def _refusal(self, status: int, data: bytes) -> OperatorError:
        said = _detail(data) or f"it answered with status {status}"
        match status:
            case 401:
                return ConfigError(
                    f"The server {self.url} does not know this token, or it has expired; set another in OPERATOR_TOKEN "
                    "or with --token-file."
                )
            case 404:
                return NotFound(said)
            case 409:
                return TransitionRefused(said)
            case 400 | 403 | 413 | 421 | 422 | 429:
                return ConfigError(said)
            case _ if 300 <= status < 400:
                return ConfigError(f"The server {self.url} sends requests elsewhere; give its own address.")
            case _ if status in _LATER:
                return StoreUnavailable(f"The server {self.url} cannot do that now ({_clause(said)}); try again later.")
        return StoreError(f"The server {self.url} failed ({_clause(said)}); look at what it says on its own machine.")

    def _away(self, error: Exception) -> StoreUnavailable:
        why = _clause(str(error)) or type(error).__name__
        return StoreUnavailable(f"The server {self.url} cannot be reached ({why}); start it, or check `--server`.")


async def _bounded(response: httpx2.Response) -> AsyncIterator[bytes]:
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > _MOST_BYTES:
            raise StoreError("The answer of the server is too large; ask for less at once.")
        yield part


def _address(url: str) -> str:
    wrong = ConfigError(
        f"{clip(printable(url), 120)!r} is not the address of a server; give https://HOST or http://127.0.0.1:PORT."
    )
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise wrong
    if parts.username is not None or parts.password is not None:
        raise ConfigError("The address of the server must not contain a password; give a token in OPERATOR_TOKEN.")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise ConfigError(
            f"http://{printable(host)} would send the token in the clear; use https://, or a tunnel to this machine."
        )
    return url.strip().rstrip("/")


def _usable(token: str) -> str:
    word = token.strip()
    if not word:
        raise ConfigError("A server needs a token; set OPERATOR_TOKEN, or name a file with --token-file.")
    if not word.isascii() or not word.isprintable() or " " in word or len(word) > 500:
        raise ConfigError("The token is not usable; it is one word that begins with `op_`.")
    return word


def _plain(params: Mapping[str, Any]) -> httpx2.QueryParams:
    """Parameters as they stand in an address; those without a value are left out."""
    import httpx2

    pairs: list[tuple[str, str | int | float | bool | None]] = []
    for name, value in params.items():
        values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        pairs += [(name, str(v).lower() if isinstance(v, bool) else str(v)) for v in values if v is not None]
    return httpx2.QueryParams(pairs)


def _detail(data: bytes) -> str:
    try:
        problem = json.loads(data)
    except ValueError:
        return ""
    detail = problem.get("detail") if isinstance(problem, dict) else None
    return clip(" ".join(printable(detail).split()), 1000) if isinstance(detail, str) else ""


def _clause(sentence: str) -> str:
    return clip(" ".join(printable(sentence).split()).rstrip("."), 300)
