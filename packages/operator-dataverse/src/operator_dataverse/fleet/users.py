"""What is known of each person: the dev box, how far its set-up is, and when somebody of theirs was last seen there."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from operator_core import clock
from operator_dataverse.client import Conflict, Dataverse, Row, field, units
from operator_dataverse.errors import DataverseError, Refused, SchemaProblem
from operator_dataverse.fleet.changes import change, derived_id
from operator_dataverse.tables.schema import USERS, schema_of
from operator_dataverse.tables.user import AuthStatus, DevBoxStatus, UserRow

__all__ = ["FIELDS", "Users", "address", "columns_of", "known_of"]

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "azure_ad_id": "crb3b_azureadid",
        "devbox_name": "crb3b_devboxname",
        "devbox_status": "crb3b_devboxstatus",
        "claude_auth_status": "crb3b_claudeauthstatus",
        "manager_status": "crb3b_managerstatus",
        "onboarding_step": "crb3b_onboardingstep",
        "capacity": "crb3b_capacity",
        "labels": "crb3b_labels",
    }
)
"""Our name of each thing that may be set -> its column. Nothing else of a person is ever written."""

_MOST_ADDRESS = 200
_MOST_ROWS = 5000
_MOST_TWINS = 50


def known_of(user: UserRow) -> dict[str, Any]:
    """What is known of a person, JSON-ready, with what follows from the columns.

    ``provisioning_started``: a box was asked for. ``provisioning_complete``: it can be used. ``auth_complete``: the
    agent on it is signed in.
    """
    return {
        "email": user.email,
        "azure_ad_id": user.azure_ad_id or None,
        "devbox_name": user.devbox_name or None,
        "devbox_status": user.devbox_status,
        "claude_auth_status": user.auth_status,
        "manager_status": user.manager_status,
        "onboarding_step": user.onboarding_step,
        "last_seen": clock.iso(user.last_seen) if user.last_seen else None,
        "worker_seen": clock.iso(user.worker_seen) if user.worker_seen else None,
        "capacity": user.capacity,
        "labels": list(user.labels),
        "connection_url": user.connection_url or None,
        "auth_url": user.auth_url or None,
        "provisioning_started": user.devbox_status is not None or bool(user.devbox_name),
        "provisioning_complete": user.devbox_status == DevBoxStatus.SUCCEEDED,
        "auth_complete": user.auth_status == AuthStatus.AUTHENTICATED,
    }


class Users:
    """The users table.

    Args:
        dataverse: Where it is.
        time: Gives the time that ``crb3b_lastseen`` is set to.
    """

    def __init__(self, dataverse: Dataverse, time: clock.Clock | None = None) -> None:
        self._dataverse = dataverse
        self._time = time or clock.Clock()

    async def get(self, email: str) -> UserRow | None:
        """What is known of a person; None: nothing.

        Raises:
            DataverseError: It could not be looked at, which is not the same as unknown (D-56).
        """
        row = await self._row(address(email))
        return None if row is None else UserRow.parse(row)

    async def all(self) -> list[UserRow]:
        """Everybody, by address."""
        rows = self._dataverse.rows(USERS, orderby=("crb3b_useremail asc",), top=_MOST_ROWS)
        return [UserRow.parse(row) async for row in rows]

    async def set(self, email: str, values: Mapping[str, str | None]) -> UserRow:
        """Write what is known of a person, who becomes known by it; ``last_seen`` stays as it is.

        Args:
            email: Whose.
            values: Keys of :data:`FIELDS`; None clears one.

        Raises:
            Refused: A key or a value that does not exist; nothing was written.
        """
        return await self._write(address(email), columns_of(values))

    async def seen(self, email: str, *, values: Mapping[str, str | None] | None = None) -> UserRow:
        """As :meth:`set`, and it is a sign of life of what answers for this person."""
        columns = columns_of(values or {})
        return await self._write(address(email), {**columns, "crb3b_lastseen": self._time.now()})

    async def worker_seen(self, email: str, box: str) -> None:
        """A sign of life of the worker on a box of this person; nothing where the tables have no place for it."""
        email = address(email)
        if not (await self._dataverse.info(USERS)).has("crb3b_workerseen"):
            return
        found = await self._row(email)
        known = UserRow.parse(found).devbox_name if found is not None else ""
        if known and known.casefold() != box.casefold():
            return  # the row of a person is about one box, and it is another one
        await self._write(email, {"crb3b_workerseen": self._time.now(), **({} if known else {"crb3b_devboxname": box})})

    async def _row(self, email: str) -> Row | None:
        # To the service an accent makes no difference, and two people may differ in nothing else. Two rows of one
        # person can only come from elsewhere; the older one is used by all of us.
        where = field("crb3b_useremail") == email
        async for row in self._dataverse.rows(USERS, where, orderby=("createdon asc",), top=_MOST_TWINS):
            if str(row.get("crb3b_useremail") or "").strip().casefold() == email.casefold():
                return row
        return None

    async def _write(self, email: str, columns: Mapping[str, Any]) -> UserRow:
        info = await self._dataverse.info(USERS)
        missing = [name for name in columns if not info.has(name)]
        if missing:
            raise SchemaProblem(
                f"{USERS} has no column {', '.join(missing)}; make it with `operator-dataverse schema create`."
            )
        found = await self._row(email)
        if found is None:
            # The same id wherever it is made: of two who make a person known at once, one finds the other's row.
            row_id = derived_id("user", email.casefold())
            values = {"crb3b_useremail": email, **columns}
            made = await self._dataverse.owners.give(USERS, values, email, row_id=row_id)
            if not isinstance(made, Conflict):
                return UserRow.parse(made)
        else:
            row_id = found.id
        row = await change(self._dataverse, USERS, row_id, lambda row: _new(row, columns))
        if row is None:
            raise DataverseError(f"The row of {email} was deleted meanwhile; try again.")
        return UserRow.parse(row)


def columns_of(values: Mapping[str, str | None]) -> dict[str, str | int | None]:
    """Columns for our names.

    Raises:
        Refused: A key or a value that does not exist.
    """
    columns: dict[str, str | int | None] = {}
    for name, value in values.items():
        if name not in FIELDS:
            raise Refused(f"`{name:.60}` cannot be set; there are {', '.join(FIELDS)}.")
        columns[FIELDS[name]] = None if value is None else _value(name, value)
    return columns


def _value(name: str, value: str) -> str | int:
    column = schema_of(USERS).column(FIELDS[name])
    if column.type == "integer":
        if not value.isascii() or not value.isdecimal() or len(value) > 6:
            raise Refused(f"`{name}` cannot be `{value:.60}`; it is a number, 0 or more.")
        return int(value)
    if column.values and value not in column.values:
        raise Refused(f"`{name}` cannot be `{value:.60}`; it is one of {', '.join(column.values)}.")
    if column.max_length is not None and units(value) > column.max_length:
        raise Refused(f"`{name}` has more than {column.max_length} characters; make it shorter.")
    return value


def address(email: str) -> str:
    """An e-mail address as it is looked for.

    Raises:
        Refused: It is none.
    """
    found = email.strip()
    name, _, host = found.rpartition("@")
    if not name or not host or len(found) > _MOST_ADDRESS or not found.isprintable() or " " in found:
        raise Refused(f"`{found:.60}` is no e-mail address; give one such as alice@example.com.")
    return found


def _new(row: Row, columns: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wanted = {name: value for name, value in columns.items() if row.get(name) != value}
    return wanted or None
