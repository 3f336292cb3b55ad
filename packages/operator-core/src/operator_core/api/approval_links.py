"""Signed links: whoever has one can answer that one question, until it expires, without signing in.

What is signed is the id of the question and the moment until which the link is good; the key never leaves the state
folder. A link gives no other right, and what the question itself allows is decided when it is answered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import timedelta

from operator_core import clock
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.db.retention import create_key
from operator_core.work.state import StateFolder

__all__ = ["TOKEN", "ApprovalLinks"]

TOKEN = r"^[A-Za-z0-9_-]{75}$"
"""The form of what stands behind ``/a/``."""

_PURPOSE = b"operator: answer one question 1\0"
_ID, _MOMENT = 16, 8


class ApprovalLinks:
    """Makes and reads the links of one installation.

    Args:
        key: Only this installation knows it.
        base_url: How people reach the console, without a slash at the end.
        valid_s: How long a link is good.
    """

    def __init__(self, key: bytes, base_url: str, valid_s: float) -> None:
        self._key = hmac.digest(key, _PURPOSE, hashlib.sha256)
        self._base_url = base_url.rstrip("/")
        self._valid = timedelta(seconds=valid_s)

    @classmethod
    def of(cls, settings: Settings, database: Database, base_url: str) -> ApprovalLinks:
        """Those of this store; servers on other machines need the same audit key in their state folder.

        Raises:
            OperatorError: The key cannot be read or written.
        """
        key = create_key(StateFolder.locate(settings, database))
        return cls(key, base_url, settings.approvals.expire_s)

    def url(self, approval_id: str) -> str | None:
        """The link of a question; None: that is no id of one."""
        try:
            ident = bytes.fromhex(approval_id)
        except ValueError:
            return None
        if len(ident) != _ID:
            return None
        until = int((clock.now() + self._valid).timestamp())
        signed = ident + until.to_bytes(_MOMENT)
        return f"{self._base_url}/a/{_text(signed + self._sign(signed))}"

    def read(self, token: str) -> str | None:
        """The id of the question that a link is for; None: it is forged, altered or expired."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        if _text(data) != token:  # one link has one form
            return None
        signed, mac = data[: _ID + _MOMENT], data[_ID + _MOMENT :]
        if not hmac.compare_digest(mac, self._sign(signed)):
            return None
        until = int.from_bytes(signed[_ID:])
        return signed[:_ID].hex() if clock.now().timestamp() < until else None

    def _sign(self, signed: bytes) -> bytes:
        return hmac.digest(self._key, signed, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
