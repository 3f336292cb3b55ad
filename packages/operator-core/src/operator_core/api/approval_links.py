"""Links that answer one question: whoever has one can, until the question is over, without signing in.

Each link is a secret of its own, made when a message goes out. Only its hash is in the store, in the ledger, so that
any server of the store knows the link, whoever can read the store cannot make one, and it is on record where links
went. A link gives no other right, and what the question itself allows is decided when it is answered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets

from operator_core.db.approvals import Approvals
from operator_core.db.engine import Database

__all__ = ["ApprovalLinks"]

_PURPOSE = b"operator: answer one question 2\0"
_ID, _SECRET = 16, 32


class ApprovalLinks:
    """Makes and reads the links of a store."""

    def __init__(self, database: Database) -> None:
        self._approvals = Approvals(database)

    async def make(self, approval_id: str, base_url: str, channel: str) -> str | None:
        """A new link to a question; None: there is no such question, or it is over.

        Args:
            base_url: How people reach the console.
            channel: Where it is sent; on record.
        """
        ident = _ident(approval_id)
        if ident is None:
            return None
        token = ident + secrets.token_bytes(_SECRET)
        if not await self._approvals.offer(approval_id, _digest(token), channel):
            return None
        return f"{base_url.rstrip('/')}/a/{_text(token)}"

    async def read(self, text: str) -> str | None:
        """The id of the question that a link is for; None: no such link was made, or the question expired."""
        try:
            token = base64.b64decode(text, altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        if len(token) != _ID + _SECRET or _text(token) != text:  # one link has one form
            return None
        approval_id = token[:_ID].hex()
        return approval_id if await self._approvals.was_offered(approval_id, _digest(token)) else None


def _ident(approval_id: str) -> bytes | None:
    try:
        ident = bytes.fromhex(approval_id)
    except ValueError:
        return None
    return ident if len(ident) == _ID and ident.hex() == approval_id else None


def _digest(token: bytes) -> str:
    return hashlib.sha256(_PURPOSE + token).hexdigest()


def _text(token: bytes) -> str:
    return base64.urlsafe_b64encode(token).decode()
