"""Signed webhooks: a POST of JSON that its receiver can trust (the form of standardwebhooks.com).

``webhook-id`` stays the same however often a message is repeated; ``webhook-signature`` is ``v1,`` and the base64 of
HMAC-SHA256 over ``id.timestamp.body``. A secret that begins with ``whsec_`` is base64, any other one is taken as it is.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from operator_core import __version__, clock
from operator_core.errors import ConfigError
from operator_core.notify.outbox import Delivered, Later, Never, Outcome

if TYPE_CHECKING:
    import ssl

__all__ = ["headers_of", "key_of", "post", "signature"]

_DEADLINE_S = 15.0
# What is wrong with this very message, and stays wrong.
_REFUSED = frozenset({400, 410, 413, 415, 422})
_PREFIX = "whsec_"
_SHORTEST = 16
_LONGEST_PAUSE_S = 3600.0


def key_of(secret: str) -> bytes:
    """The key of a secret.

    Raises:
        ConfigError: It is no secret of that form, or too short for one.
    """
    if not secret.startswith(_PREFIX):
        key = secret.encode()
    else:
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            raise ConfigError(f"A secret that begins with {_PREFIX} goes on in base64; make another one.") from None
    if len(key) < _SHORTEST:
        raise ConfigError(f"The secret of a webhook needs at least {_SHORTEST} characters; make another one.")
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """What the header ``webhook-signature`` says."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def headers_of(key: bytes, message_id: str, body: bytes) -> dict[str, str]:
    """All headers of a message that goes out now."""
    timestamp = int(clock.now().timestamp())
    return {
        "content-type": "application/json",
        "user-agent": f"operator/{__version__}",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(key, message_id, timestamp, body),
    }


async def post(url: str, key: bytes, message_id: str, message: Mapping[str, Any]) -> Outcome:
    """Send one message. Redirects are not followed, proxies of the environment are not used, no answer is read.

    Args:
        message_id: The same for each repetition.
        message: JSON.
    """
    import httpx2

    body = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode()
    try:
        async with (
            asyncio.timeout(_DEADLINE_S),
            httpx2.AsyncClient(
                timeout=_DEADLINE_S, trust_env=False, follow_redirects=False, verify=_trusted()
            ) as client,
            client.stream("POST", url, content=body, headers=headers_of(key, message_id, body)) as answer,
        ):
            status, pause = answer.status_code, answer.headers.get("retry-after", "")
    except TimeoutError:
        return Later("it did not answer in time")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        return Later(f"it cannot be reached ({type(error).__name__})")
    if 200 <= status < 300:
        return Delivered()
    if status in _REFUSED:
        return Never(f"it was refused with status {status}")
    return Later(f"it was answered with status {status}", _seconds(pause))


@cache
def _trusted() -> ssl.SSLContext:
    """Read once: it takes as long as many messages."""
    import httpx2

    return httpx2.create_ssl_context()


def _seconds(text: str) -> float | None:
    return min(float(text), _LONGEST_PAUSE_S) if text.isascii() and text.isdigit() and len(text) < 9 else None
