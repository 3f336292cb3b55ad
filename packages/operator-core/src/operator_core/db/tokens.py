"""Tokens: what people and programs show to the server. Only a digest of each is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Text, and_, bindparam, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.client import StoreClient
from operator_core.db.schema import ledger_head, tokens
from operator_core.errors import ConfigError, NotFound
from operator_core.model.person import Role

__all__ = ["FIRST", "Minted", "TokenInfo", "Tokens", "token_info"]

FIRST = "first"
"""Name of the token that the first start makes."""

_FORM = re.compile(r"op_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@-]{0,63}")
_USED_STEP = timedelta(minutes=1)

_now = bindparam("now", type_=Text)
_VALID = and_(tokens.c.revoked_at.is_(None), or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > _now))
_INFO = [column for column in tokens.columns if column.name != "digest"]
_FIND = select(tokens).where(tokens.c.id == bindparam("token", type_=Text), _VALID)
_LIST = select(*_INFO).order_by(tokens.c.created_at.desc(), tokens.c.id)
_NAMED = select(*_INFO).where(
    or_(tokens.c.id == bindparam("named", type_=Text), tokens.c.name == bindparam("named", type_=Text))
)
_COUNT = select(func.count()).select_from(tokens)
_SAME_NAME = select(tokens.c.id).where(tokens.c.name == bindparam("named", type_=Text), _VALID)
_INSERT = insert(tokens)
_REVOKE = (
    update(tokens)
    .where(tokens.c.id == bindparam("token", type_=Text), tokens.c.revoked_at.is_(None))
    .values(revoked_at=_now)
    .returning(tokens.c.id)
)
_USED = (
    update(tokens)
    .where(
        tokens.c.id == bindparam("token", type_=Text),
        # One in the future is from before a clock was set back.
        or_(
            tokens.c.last_used_at.is_(None),
            tokens.c.last_used_at < bindparam("before", type_=Text),
            tokens.c.last_used_at > _now,
        ),
    )
    .values(last_used_at=_now)
    .returning(tokens.c.id)
)
# Two who make a token at the same moment queue for it, as everything does that is recorded.
_ONE_BY_ONE = select(ledger_head.c.seq).where(ledger_head.c.id == 1).with_for_update()


class TokenInfo(NamedTuple):
    """A token as it is listed.

    Attributes:
        id: Part of its text; no secret.
        created_by: Who made it, as the ledger says it.
        expires_at: None: never.
        last_used_at: To the minute.
    """

    id: str
    name: str
    role: Role
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    @property
    def state(self) -> str:
        """``valid``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= clock.now() else "valid"


class Minted(NamedTuple):
    """A new token; its text can never be shown again."""

    text: str
    info: TokenInfo


class Tokens(StoreClient):
    """The tokens of a store."""

    async def create(self, name: str, role: Role, *, by: str, expires_s: float | None = None) -> Minted:
        """Make one.

        Args:
            name: What the ledger calls its bearer; 1 to 64 letters, digits, blanks and ``. _ @ -``.
            by: Who makes it.
            expires_s: How long it is valid, in seconds; None: until it is revoked.

        Raises:
            ConfigError: The name cannot be used, a valid token has it, or the time is not usable.
        """
        minted = _mint(name, role, by, expires_s)
        async with self.database.begin() as connection:
            await connection.execute(_ONE_BY_ONE)
            if (await connection.execute(_SAME_NAME, {"named": name, "now": clock.iso()})).first() is not None:
                raise ConfigError(f"There is a valid token {name!r} already; revoke it or take another name.")
            await self._put(connection, minted)
        return minted

    async def first(self) -> Minted | None:
        """The admin token of the first start; None: there are, or were, tokens already."""
        if (await self.database.fetch(_COUNT))[0][0]:
            return None
        minted = _mint(FIRST, Role.ADMIN, "first start", None)
        async with self.database.begin() as connection:
            await connection.execute(_ONE_BY_ONE)
            if (await connection.execute(_COUNT)).scalar_one():
                return None
            await self._put(connection, minted)
        return minted

    async def list(self) -> list[TokenInfo]:
        """All of them, the newest first; also those that are not valid any more."""
        return [token_info(row._mapping) for row in await self.database.fetch(_LIST)]

    async def revoke(self, named: str, *, by: str) -> TokenInfo:
        """End a token, and every login that was made with it. To revoke it again changes nothing.

        Args:
            named: Its id, or its name when only one valid token has it.

        Raises:
            NotFound: There is none.
        """
        found = [token_info(row._mapping) for row in await self.database.fetch(_NAMED, named=named)]
        valid = [info for info in found if info.revoked_at is None]
        if not found:
            raise NotFound("There is no such token; list them with `operator token list`.")
        info = next((i for i in found if i.id == named), (valid or found)[0])
        moment = clock.iso()
        async with self.database.begin() as connection:
            if (await connection.execute(_REVOKE, {"token": info.id, "now": moment})).first() is not None:
                await ledger.append(
                    self.database, connection, "token", act="revoked", token=info.id, name=info.name, actor=by
                )
                return info._replace(revoked_at=clock.parse_iso(moment))
        return info

    async def check(self, text: str) -> TokenInfo | None:
        """The valid token with this text; None: there is none, and nobody can tell why."""
        match = _FORM.fullmatch(text)
        rows = await self.database.fetch(_FIND, token=match[1] if match else "", now=clock.iso())
        stored = rows[0].digest if rows else "0" * 64
        if not hmac.compare_digest(stored, _digest(text)) or not rows:
            return None
        return token_info(rows[0]._mapping)

    async def still_valid(self, token_id: str) -> bool:
        """Whether the token may still be used."""
        return bool(await self.database.fetch(_FIND, token=token_id, now=clock.iso()))

    async def used(self, token_id: str) -> None:
        """Note that it was used just now; at most once a minute."""
        moment = clock.now()
        await self.database.one(_USED, token=token_id, now=clock.iso(moment), before=clock.iso(moment - _USED_STEP))

    async def _put(self, connection: Any, minted: Minted) -> None:
        info = minted.info
        row = {
            "id": info.id,
            "name": info.name,
            "role": info.role.value,
            "digest": _digest(minted.text),
            "created_at": clock.iso(info.created_at),
            "created_by": info.created_by,
            "expires_at": clock.iso(info.expires_at) if info.expires_at else None,
        }
        try:
            await connection.execute(_INSERT, row)
        except IntegrityError:  # the same 48 random bits, for the first time
            raise ConfigError("This token could not be made; try again.") from None
        await ledger.append(
            self.database,
            connection,
            "token",
            act="created",
            token=info.id,
            name=info.name,
            role=info.role.value,
            expires_at=row["expires_at"],
            actor=info.created_by,
        )


def token_info(row: Mapping[Any, Any]) -> TokenInfo:
    """A token from its stored row."""
    moments = {
        name: clock.parse_iso(row[name]) if row[name] else None for name in ("expires_at", "revoked_at", "last_used_at")
    }
    return TokenInfo(
        row["id"], row["name"], Role(row["role"]), clock.parse_iso(row["created_at"]), row["created_by"], **moments
    )


def _mint(name: str, role: Role, by: str, expires_s: float | None) -> Minted:
    if not _NAME.fullmatch(name) or name != name.strip():
        raise ConfigError(
            "A token's name has 1 to 64 letters, digits, blanks and . _ @ -, and begins with a letter or digit."
        )
    moment = clock.now()
    try:
        expires = None if expires_s is None else moment + timedelta(seconds=expires_s)
    except (OverflowError, ValueError):
        expires = moment
    if expires is not None and expires <= moment:
        raise ConfigError("A token is valid for at least one second and at most some thousand years; see --expires.")
    token = clock.new_id()[:12]
    # 256 bits of chance: nobody guesses them, so a fast digest is enough.
    text = f"op_{token}_{secrets.token_urlsafe(32)}"
    return Minted(text, TokenInfo(token, name, role, moment, by, expires, None, None))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
