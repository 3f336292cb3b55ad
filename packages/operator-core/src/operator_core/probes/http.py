"""Looking over HTTP, and at a Prometheus-compatible server."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from operator_core.model.entry import canonical
from operator_core.model.invariant import HttpProbe, PromQLProbe
from operator_core.model.json_path import lookup
from operator_core.probes.observation import LookFailed, Scalar, Seen, excerpt
from operator_core.redaction import MASK, looks_secret, without_named

if TYPE_CHECKING:
    import ssl

__all__ = ["BODY_LIMIT", "is_ours", "look_http", "look_promql", "say_http", "say_promql"]

BODY_LIMIT = 1024 * 1024
"""So many bytes of an answer are read, and not one more."""

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})


class _Answer(NamedTuple):
    status: int
    body: bytes
    complete: bool
    encoding: str


def is_ours(error: BaseException) -> bool:
    """Whether a failed connection is the fault of this machine (no file descriptors, no ports, no memory)."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _OURS:
            return True
        seen = seen.__cause__ or seen.__context__
    return False


async def look_http(probe: HttpProbe) -> Seen:
    """One request; its value is the status, or what ``value`` names in the JSON answer.

    Args:
        probe: What to ask. Redirects are answers, they are not followed; proxies of the environment are not used.

    Raises:
        LookFailed: There was no answer, or not one with that value.
    """
    answer = await _fetch(probe.method, probe.url, probe.headers, probe.body)
    raw = excerpt(answer.body)
    if probe.value is None:
        return Seen(answer.status, raw)
    if probe.status and answer.status not in probe.status:
        raise LookFailed(f"answered with status {answer.status}", raw=raw)
    try:
        return Seen(_scalar(lookup(_parse(answer), probe.value)), raw)
    except LookupError as error:
        raise LookFailed(str(error.args[0]), raw=raw) from None
    except ValueError as error:
        raise LookFailed(str(error), raw=raw, ours=True) from None


async def look_promql(probe: PromQLProbe) -> Seen:
    """One instant query; its value is the scalar, or the only sample of the vector.

    Raises:
        LookFailed: No answer, an error, no series, several series, or NaN: none of them is a zero.
    """
    answer = await _fetch("GET", _query_url(probe), {}, None)
    raw = excerpt(answer.body)
    if answer.status != 200:
        raise LookFailed(f"the server answered with status {answer.status}", raw=raw)
    document = _parse(answer)
    try:
        if document["status"] != "success":
            raise LookFailed(f"the server refused the query: {document.get('error', 'no reason given')}", raw=raw)
        kind, result = document["data"]["resultType"], document["data"]["result"]
        if kind == "vector":
            if len(result) != 1:
                what = "no series" if not result else f"{len(result)} series, and only one can be compared"
                raise LookFailed(f"the query found {what}", raw=raw)
            sample = result[0]["value"][1]
        elif kind == "scalar":
            sample = result[1]
        else:
            raise LookFailed(f"the query gives a {kind}, and only a scalar or one series can be compared", raw=raw)
        value = float(sample)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise LookFailed("the answer is not that of a Prometheus server", raw=raw) from None
    if math.isnan(value):
        raise LookFailed("the value is NaN", raw=raw)
    return Seen(int(value) if value.is_integer() and abs(value) < 2**53 else value, raw)


def say_http(probe: HttpProbe) -> str:
    """The ``curl`` line of the same request; headers and parameters that look secret are masked."""
    words = ["curl", "-sS", "--noproxy", "*", "--max-time", f"{probe.timeout_s:g}"]
    if probe.value is None:
        words.append("-i")
    if probe.method.upper() != "GET":
        words += ["-X", probe.method.upper()]
    for name, value in probe.headers.items():
        words += ["-H", f"{name}: {MASK if looks_secret(name) else value}"]
    if probe.body is not None:
        words += ["--data-binary", probe.body]
    return shlex.join([*words, without_named(probe.url)])


def say_promql(probe: PromQLProbe) -> str:
    """The ``curl`` line of the same query."""
    words = ["curl", "-sS", "--noproxy", "*", "--max-time", f"{probe.timeout_s:g}", "-G"]
    url = f"{without_named(probe.url).rstrip('/')}/api/v1/query"
    return shlex.join([*words, url, "--data-urlencode", f"query={probe.query}"])


def _query_url(probe: PromQLProbe) -> str:
    return f"{probe.url.rstrip('/')}/api/v1/query?{urlencode({'query': probe.query})}"


@cache
def _trusted() -> ssl.SSLContext:
    # A sixth of a second of CPU, so it is made once. SSL_CERT_FILE of the environment counts, proxies do not.
    import httpx2

    return httpx2.create_ssl_context()


async def _fetch(method: str, url: str, headers: dict[str, str], body: str | None) -> _Answer:
    import httpx2

    try:
        secure = httpx2.URL(url).scheme == "https"
        verify = await asyncio.to_thread(_trusted) if secure else False
        # No limits here: the caller's deadline covers everything, also a server that sends a byte now and then.
        async with (
            httpx2.AsyncClient(verify=verify, trust_env=False, timeout=None, follow_redirects=False) as client,
            client.stream(
                method.upper(),
                url,
                # Compressed answers are refused: a small one could unpack to any size.
                headers={"accept-encoding": "identity", "user-agent": "operator-probe", **headers},
                content=None if body is None else body.encode(),
            ) as response,
        ):
            read = bytearray()
            complete = True
            async for chunk in response.aiter_raw(65536):
                read += chunk
                if len(read) > BODY_LIMIT:
                    complete = False
                    break
            encoding = response.headers.get("content-encoding", "identity").lower()
            return _Answer(response.status_code, bytes(read[:BODY_LIMIT]), complete, encoding)
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, UnicodeError) as error:
        raise LookFailed(f"the request cannot be sent ({_reason(error)})", ours=True) from None
    except (httpx2.HTTPError, OSError) as error:
        raise LookFailed(f"no answer ({_reason(error)})", ours=is_ours(error)) from None


def _reason(error: BaseException) -> str:
    return excerpt(str(error) or type(error).__name__, 200)


def _parse(answer: _Answer) -> Any:
    raw = excerpt(answer.body)
    if answer.encoding not in ("", "identity"):
        raise LookFailed(f"the answer is compressed ({answer.encoding}) although that was not asked for", raw=raw)
    if not answer.complete:
        raise LookFailed(f"the answer is longer than {BODY_LIMIT // 1024} KiB", raw=raw)
    try:
        return json.loads(answer.body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise LookFailed("the answer is not JSON", raw=raw) from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return canonical(value)
