"""Logins: browsers that came in with a token. Only a digest of each cookie is stored."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Text, and_, bindparam, delete, insert, or_, select

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.client import StoreClient
from operator_core.db.schema import logins, tokens
from operator_core.db.tokens import TokenInfo, token_info

__all__ = ["Login", "Logins", "Opened"]

_cookie = bindparam("cookie", type_=Text)
_now = bindparam("now", type_=Text)
_FIND = (
    select(tokens, logins.c.csrf, logins.c.expires_at.label("ends_at"))
    .join(tokens, tokens.c.id == logins.c.token_id)
    .where(
        logins.c.digest == _cookie,
        logins.c.expires_at > _now,
        and_(tokens.c.revoked_at.is_(None), or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > _now)),
    )
)
_INSERT = insert(logins)
_CLOSE = delete(logins).where(logins.c.digest == _cookie).returning(logins.c.token_id)
_PRUNE = delete(logins).where(logins.c.expires_at <= _now)
_LONGEST = 128


class Login(NamedTuple):
    """A browser that is signed in.

    Attributes:
        csrf: What its forms must carry.
        ends_at: It must sign in again then.
    """

    token: TokenInfo
    csrf: str
    ends_at: datetime


class Opened(NamedTuple):
    """A new login; ``cookie`` is known to the browser alone."""

    cookie: str
    login: Login


class Logins(StoreClient):
    """The logins of a store."""

    async def open(self, token: TokenInfo, hours: float, *, by: str) -> Opened:
        """Sign a browser in.

        Args:
            hours: For so long, and never longer than the token is valid.
            by: Who, as the ledger says it.
        """
        cookie, csrf, moment = secrets.token_urlsafe(32), secrets.token_urlsafe(32), clock.now()
        ends = moment + timedelta(hours=hours)
        if token.expires_at is not None:
            ends = min(ends, token.expires_at)
        row = {
            "digest": _digest(cookie),
            "token_id": token.id,
            "csrf": csrf,
            "created_at": clock.iso(moment),
            "expires_at": clock.iso(ends),
        }
        async with self.database.begin() as connection:
            await connection.execute(_PRUNE, {"now": clock.iso(moment)})
            await connection.execute(_INSERT, row)
            await ledger.append(
                self.database, connection, "login", act="signed_in", token=token.id, name=token.name, actor=by
            )
        return Opened(cookie, Login(token, csrf, ends))

    async def find(self, cookie: str) -> Login | None:
        """The login of this cookie, while it and its token are valid."""
        if not 0 < len(cookie) <= _LONGEST:
            return None
        rows = await self.database.fetch(_FIND, cookie=_digest(cookie), now=clock.iso())
        if not rows:
            return None
        row = rows[0]._mapping
        return Login(token_info(row), row["csrf"], clock.parse_iso(row["ends_at"]))

    async def close(self, cookie: str, *, by: str) -> bool:
        """Sign a browser out; whether it was signed in."""
        async with self.database.begin() as connection:
            row = (await connection.execute(_CLOSE, {"cookie": _digest(cookie)})).first()
            if row is None:
                return False
            await ledger.append(self.database, connection, "login", act="signed_out", token=row.token_id, actor=by)
        return True


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).hexdigest()
