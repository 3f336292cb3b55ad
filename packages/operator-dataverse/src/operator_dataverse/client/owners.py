"""Whose a row is, and whether what it says of itself is to be believed.

Everybody can write any address into a row. Who owns the row is what the platform vouches for: with the rights of a user
a person can only make rows of her own, and giving one to somebody else takes the right to assign. So a row speaks for a
person only if that person owns it, this account does, or an account that the settings call trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from operator_core import clock
from operator_dataverse.client.odata import Filter, field
from operator_dataverse.client.row import Conflict, Row
from operator_dataverse.errors import DataverseError, Refused, SchemaProblem, Unauthorized

if TYPE_CHECKING:
    from operator_dataverse.client.dataverse import Dataverse
    from operator_dataverse.client.http import Answer

__all__ = ["Owners", "given", "not_given"]

_USERS = "systemusers"
# The sign-in name first: people can change the other one themselves in some organisations.
_NAMES = ("domainname", "internalemailaddress")
_DIRECTORY_ID = "azureactivedirectoryobjectid"
_MOST_NAMESAKES = 10
_KEPT_S, _UNKNOWN_S = 600.0, 60.0
_MOST_KNOWN = 10_000

_log = logging.getLogger(__name__)


class Owners:
    """The owners of rows in one organisation.

    Args:
        dataverse: The organisation.
        trusted: Ids of accounts that write for everybody, such as the owner of the flows.
    """

    def __init__(self, dataverse: Dataverse, trusted: Collection[str] = ()) -> None:
        self._dataverse = dataverse
        self.trusted = frozenset(one.strip().lower() for one in trusted)
        self._me = ""
        self._known: dict[str, tuple[float, str | None]] = {}
        self._refused: dict[str, float] = {}

    async def me(self) -> str:
        """The id of this account's user."""
        self._me = self._me or await self._dataverse.whoami()
        return self._me

    async def user(self, person: str) -> Row | None:
        """The user with this address, with the id of the directory; None: there is none, or there are several."""
        name = person.strip()
        where = (field(_NAMES[0]) == name) | (field(_NAMES[1]) == name)
        rows = self._dataverse.rows(_USERS, where, select=(*_NAMES, _DIRECTORY_ID), top=_MOST_NAMESAKES)
        found = [row async for row in rows]
        for column in _NAMES:
            # To the service an accent makes no difference, and two people may differ in nothing else.
            fitting = [row for row in found if str(row.get(column) or "").strip().casefold() == name.casefold()]
            if fitting:
                return fitting[0] if len(fitting) == 1 else None
        return None

    async def id_of(self, person: str) -> str | None:
        """The id of the user with this address; None: unknown, or this account may not look. Remembered for minutes."""
        key = person.strip().casefold()
        if "@" not in key:
            return None
        until, known = self._known.get(key, (0.0, None))
        if clock.monotonic() < until:
            return known
        try:
            row = await self.user(person)
        except (Refused, SchemaProblem, Unauthorized) as error:
            if isinstance(error, Refused) and error.status >= 500:
                raise
            found = known  # what was seen once holds while this account may not look
        else:
            found = None if row is None else row.id
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()  # whoever writes many addresses that nobody has
        self._known[key] = clock.monotonic() + (_UNKNOWN_S if found is None else _KEPT_S), found
        return found

    async def of(self, person: str) -> frozenset[str]:
        """The owners whose rows speak for a person."""
        theirs = await self.id_of(person)
        return self.trusted | {await self.me()} | ({theirs} if theirs else set())

    async def owned(self, person: str) -> Filter:
        """The rows that speak for a person."""
        return field("_ownerid_value").is_in(UUID(one) for one in sorted(await self.of(person)))

    async def believes(self, owner: str, person: str) -> bool:
        """Whether a row of this owner speaks for a person.

        Args:
            owner: Its ``_ownerid_value``.
            person: The address that stands in it.
        """
        owner = owner.lower()
        if not owner:
            return False
        return owner in self.trusted or owner == await self.me() or owner == await self.id_of(person)

    async def heir(self, person: str) -> str | None:
        """Whose a new row for a person is to be, so that the person may see it; None: this account's own."""
        theirs = await self.id_of(person)
        return None if theirs is None or theirs == await self.me() else theirs

    async def give(self, table: str, values: Mapping[str, Any], person: str, *, row_id: str) -> Row | Conflict:
        """Make a row of a person's; where this account may not give any away, it is its own: better seen by few."""
        heir = await self.heir(person)
        if heir is not None and clock.monotonic() >= self._refused.get(table, 0.0):
            try:
                return await self._dataverse.create(table, values, row_id=row_id, owner=heir)
            except Refused as error:
                if error.status != 403:
                    raise
                self._refused[table] = clock.monotonic() + _KEPT_S
                _log.warning("%s", error)
        return await self._dataverse.create(table, values, row_id=row_id)


def given(values: Mapping[str, Any], owner: str | None) -> dict[str, Any]:
    """The body of a write that gives a row to a user; None: it stays whose it is."""
    return dict(values) if owner is None else {**values, "ownerid@odata.bind": f"/systemusers({UUID(owner)})"}


def not_given(answer: Answer, table: str) -> DataverseError:
    """Why a write with an owner was refused."""
    if answer.status != 403:
        return answer.refused(f"a write of {table}")
    return Refused(
        f"This account may not give a row of {table} to its person ({answer.message or 'HTTP 403'}); add Create, Write "
        "and Assign on that table to its security role, at Organization level.",
        status=403,
        code=answer.code,
    )
