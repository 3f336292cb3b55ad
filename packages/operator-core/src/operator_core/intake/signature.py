"""Who sent a webhook, and when: signatures and shared secrets."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from operator_core.errors import IntakeRefused

__all__ = ["SIGNATURE", "TIMESTAMP", "check_bearer", "check_github", "check_signed", "sign"]

TIMESTAMP = "x-operator-timestamp"
"""Header with the Unix time (seconds) of a signed webhook."""
SIGNATURE = "x-operator-signature"
"""Header with its signature, ``v1=<64 hex digits>``."""

_WRONG = "The {} is missing or wrong; check the secret on both sides."


def sign(secret: bytes, timestamp: int, body: bytes) -> str:
    """The signature of a webhook: ``v1=`` and HMAC-SHA256 (hex) over ``<timestamp>.<body>``."""
    return "v1=" + hmac.new(secret, b"%d." % timestamp + body, hashlib.sha256).hexdigest()


def check_signed(secret: bytes, headers: Mapping[str, str], body: bytes, *, now: float, tolerance_s: float) -> str:
    """Check a webhook that :func:`sign` signed.

    Args:
        headers: Names in lower case.
        now: Unix time (seconds) of the server.

    Returns:
        The signature, which no second message can have.

    Raises:
        IntakeRefused: It is not of who it should be, or too old (or new).
    """
    told = headers.get(TIMESTAMP, "")
    # Nothing but digits: what `int` would also take is not what was signed.
    timestamp = int(told) if told.isascii() and told.isdecimal() and len(told) <= 12 else 0
    given = headers.get(SIGNATURE, "")
    if not _same(given, sign(secret, timestamp, body)) or told != str(timestamp):
        raise IntakeRefused(401, _WRONG.format("signature"))
    if abs(now - timestamp) > tolerance_s:
        raise IntakeRefused(
            401,
            f"The message is {abs(now - timestamp):.0f} s away from this server's clock; send it anew, with the time.",
        )
    return given


def check_github(secret: bytes, headers: Mapping[str, str], body: bytes) -> None:
    """Check ``X-Hub-Signature-256``.

    Raises:
        IntakeRefused: It is missing or wrong.
    """
    wanted = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    if not _same(headers.get("x-hub-signature-256", ""), wanted):
        raise IntakeRefused(401, _WRONG.format("signature"))


def check_bearer(secret: bytes, headers: Mapping[str, str]) -> None:
    """Check ``Authorization: Bearer SECRET``.

    Raises:
        IntakeRefused: It is missing or wrong.
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if not _same(given.strip(), secret) or scheme.lower() != "bearer":
        raise IntakeRefused(401, _WRONG.format("secret in `Authorization: Bearer …`"))


def _same(given: str, wanted: str | bytes) -> bool:
    right = wanted.encode() if isinstance(wanted, str) else wanted
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right)
