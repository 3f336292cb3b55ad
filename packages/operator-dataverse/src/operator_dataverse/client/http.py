"""Requests to a service of Microsoft: with a token, repeated while it is sensible, and never beyond its own address.

The data of Dataverse, DevCenter and Power Automate go through this one class. It repeats what a service refused for now
(429, most of 5xx) and what was lost on the way, after the pause that the service asks for, until ``retry_s`` is over.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from operator_core.clock import Clock
from operator_core.errors import ConfigError
from operator_core.text import clip, printable
from operator_dataverse import __version__
from operator_dataverse.client.credentials import Credential, TokenCache
from operator_dataverse.errors import DataverseError, Refused, Throttled, Unauthorized, Unreachable

if TYPE_CHECKING:
    import httpx2

__all__ = ["Answer", "Http", "origin_of"]

_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
# After these nobody knows whether the service did what was asked.
_UNCERTAIN = frozenset({408, 500, 502, 504})
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_LONGEST_ASKED_S = 3600.0
_CONNECTIONS = 20
_until: ContextVar[float] = ContextVar("until", default=math.inf)


@dataclass(frozen=True)
class Answer:
    """What the service said.

    Attributes:
        status: The HTTP status.
        headers: Its headers; names in any case.
        body: The JSON document; None: there was none.
        uncertain: An earlier attempt of the same request may have had its effect already.
        code: The service's own code of a failure; may be empty.
        message: Its sentence about a failure; may be empty.
    """

    status: int
    headers: Mapping[str, str]
    body: Any = None
    uncertain: bool = False
    code: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the service did what was asked."""
        return 200 <= self.status < 300

    def object(self, what: str) -> dict[str, Any]:
        """The JSON object of the answer.

        Args:
            what: The request, for people.

        Raises:
            DataverseError: It is something else.
        """
        if isinstance(self.body, dict):
            return self.body
        raise DataverseError(f"The answer to {what} is no JSON object; check the configured address.")

    def refused(self, what: str) -> DataverseError:
        """This answer as an error.

        Args:
            what: The request, for people, such as ``GET cr_shraga_tasks``.
        """
        said = self.message or f"HTTP {self.status}"
        if self.status == 401:
            return Unauthorized(
                f"The service does not accept the access token ({said}); run `operator-dataverse authenticate`."
            )
        if self.status == 403:
            return Unauthorized(f"This account may not do {what} ({said}); give it the security role of the product.")
        if 300 <= self.status < 400:
            return Refused(f"The service sends {what} elsewhere; correct the configured address.", status=self.status)
        return Refused(f"The service refuses {what}: {said}", status=self.status, code=self.code)


class Http:
    """One service. It is closed by ``async with`` or :meth:`close`.

    Args:
        url: Its address; ``https``, or ``http`` on this machine.
        credential: Who asks.
        resource: What tokens are asked for (default: the origin of ``url``).
        timeout_s: Limit of one request, in seconds.
        retry_s: How long a request is repeated, in seconds.
        clock: Time.
        headers: Sent with every request.
        learn: Told each token, e.g. ``Redactor.learn``.

    Raises:
        ConfigError: The address is none, or would send the token in the clear.
    """

    def __init__(
        self,
        url: str,
        credential: Credential,
        *,
        resource: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 120.0,
        clock: Clock | None = None,
        headers: Mapping[str, str] | None = None,
        learn: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self.origin = origin_of(url)
        self.url = url.rstrip("/")
        self.clock = clock or Clock()
        self._tokens = TokenCache(credential, resource or self.origin, clock=self.clock, learn=learn)
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._headers = {"User-Agent": f"operator-dataverse/{__version__}", "Accept": "application/json"}
        self._headers |= headers or {}
        self._client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give all requests made here, with their repetitions, so much time together; then they are unreachable."""
        token = _until.set(min(_until.get(), self.clock.monotonic() + seconds))
        try:
            yield
        finally:
            _until.reset(token)

    def address(self, path: str) -> str:
        """The whole address of a path below :attr:`url`; a whole address is kept if it is of the same origin.

        Raises:
            Refused: It is of another origin, which must not get the token.
        """
        if "://" not in path:
            return f"{self.url}/{path.lstrip('/')}"
        if origin_of(path) != self.origin:
            raise Refused(f"The service sends this client to {printable(clip(path, 80))}, where it does not go.")
        return path

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        accept: Iterable[int] = (),
        idempotent: bool = True,
    ) -> Answer:
        """Send one request, and repeat it while that may help.

        Args:
            method: ``GET``, ``PATCH`` …
            path: Below :attr:`url`; or a whole address of the same origin.
            params: The query.
            body: Sent as JSON; None: nothing.
            headers: Further ones.
            accept: Statuses of 300 and more that are answers here and no errors.
            idempotent: Whether it may be repeated when nobody knows if it had its effect.

        Raises:
            Unauthorized: 401 with a fresh token, or 403.
            Throttled: The service wants a longer pause than ``retry_s``.
            Unreachable: There was no answer for ``retry_s``.
            Refused: Any other answer that is not a success and not in ``accept``.
        """
        import httpx2

        what = f"{method} {path.partition('?')[0]}"
        address = self.address(path)
        if params:
            # A `+` for a blank, as forms have it, is no blank to every service.
            address += "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in params.items())
        content = None if body is None else json.dumps(body, ensure_ascii=True, allow_nan=False).encode()
        until = _until.get()
        deadline = min(self.clock.monotonic() + self._retry_s, until)
        attempt, uncertain, renewed = 0, False, False
        while True:
            attempt += 1
            token = await self._tokens.token()
            sent = {**self._headers, **(headers or {}), "Authorization": f"Bearer {token}"}
            if content is not None:
                sent["Content-Type"] = "application/json"
            reply: httpx2.Response | None = None
            why = ""
            left = None if until == math.inf else max(0.0, until - self.clock.monotonic())
            try:
                async with asyncio.timeout(left):
                    reply = await self._open().request(method, address, content=content, headers=sent)
            except TimeoutError:
                why, uncertain = "its time is over", True
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                why = type(error).__name__
            except httpx2.TransportError as error:
                why, uncertain = type(error).__name__, True
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise Unreachable(f"{what} failed ({type(error).__name__}); check the address.") from None
            if reply is not None:
                if reply.status_code == 401 and not renewed and await self._tokens.another(token) is not None:
                    renewed = True
                    continue
                if reply.status_code not in _AGAIN:
                    answer = _answer(reply, uncertain, token)
                    if answer.ok or answer.status in accept:
                        return answer
                    raise answer.refused(what)
                uncertain = uncertain or reply.status_code in _UNCERTAIN
            pause = self._pause(reply, attempt)
            if self.clock.monotonic() + pause > deadline or (uncertain and not idempotent):
                raise _given_up(what, reply, why, pause, token)
            await self.clock.sleep(pause)

    def _open(self) -> httpx2.AsyncClient:
        import httpx2

        if self._client is None:
            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(self._timeout_s, pool=None),
                limits=httpx2.Limits(max_connections=_CONNECTIONS),
                follow_redirects=False,
            )
        return self._client

    def _pause(self, reply: httpx2.Response | None, attempt: int) -> float:
        asked = None if reply is None else _retry_after(reply.headers.get("Retry-After"), self.clock)
        own = random.uniform(0.5, 1.0) * min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt - 1, 16))
        # All workers were told the same moment, and need not come back in it together.
        return own if asked is None else asked + own


def origin_of(url: str) -> str:
    """``scheme://host[:port]`` of an address.

    Raises:
        ConfigError: It is no address, it holds a login, or it is not encrypted and not of this machine.
    """
    import ipaddress

    try:
        parts = urlsplit(url.strip())
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    if parts.username or parts.password:
        raise ConfigError(f"The address of {host or 'the service'} holds a login; leave it out.")
    if parts.scheme not in ("https", "http") or not host:
        raise ConfigError(
            f"{printable(clip(url, 80))!r} is no address; give one such as https://example.crm.dynamics.com."
        )
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    if parts.scheme == "http" and not here:
        raise ConfigError(f"The access token would go to {host} unencrypted; give its address with https.")
    default = {"https": 443, "http": 80}[parts.scheme]
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + (f":{port}" if port not in (None, default) else "")


def _answer(reply: httpx2.Response, uncertain: bool, token: str) -> Answer:
    body, code, message = None, "", ""
    if reply.content:
        try:
            body = json.loads(reply.content)
        except (ValueError, RecursionError):
            if reply.is_success:
                raise DataverseError(
                    f"{reply.request.url.host} answers with something else than JSON; check the configured address."
                ) from None
            message = reply.text
    if not reply.is_success and isinstance(body, dict) and isinstance(body.get("error"), dict):
        error = body["error"]
        code, message = str(error.get("code") or ""), str(error.get("message") or "")
    message = clip(" ".join(printable(message.replace(token, "[REDACTED]")).split()), 500)
    return Answer(reply.status_code, reply.headers, body, uncertain, code, message)


def _given_up(what: str, reply: httpx2.Response | None, why: str, pause: float, token: str) -> DataverseError:
    if reply is None:
        return Unreachable(f"{what} got no answer ({why}); check the configured address and the network.")
    answer = _answer(reply, False, token)
    said = answer.message or f"HTTP {reply.status_code}"
    if reply.status_code == 500:
        return answer.refused(what)
    if reply.status_code in (429, 503):
        return Throttled(
            f"The service asks for a pause of {pause:.0f} s before {what} ({said}); try again then.", after_s=pause
        )
    return Unreachable(f"{what} got no answer ({said}); check whether the service is up and try again.")


def _retry_after(value: str | None, clock: Clock) -> float | None:
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except (ValueError, TypeError):
            return None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        seconds = (moment - clock.now()).total_seconds()
    return min(max(0.0, seconds), _LONGEST_ASKED_S) if seconds == seconds else None
