"""The rows: created, read, changed and deleted as the service does it, one at a time."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from operator_core.clock import Clock, new_id
from operator_dataverse.double.definitions import Table
from operator_dataverse.double.history import Effect
from operator_dataverse.double.problems import (
    bad_payload,
    exists_already,
    missing_row,
    missing_segment,
    no_privilege,
    out_of_date,
)
from operator_dataverse.double.values import stamp, stored

__all__ = ["Account", "Row", "ServiceClock", "Store"]

_BOUND = re.compile(r"^/?(?P<set>\w+)\((?P<id>[0-9A-Fa-f-]{36})\)$")


@dataclass(frozen=True)
class Account:
    """Somebody who calls.

    Attributes:
        token: What the ``Authorization`` header must bear.
        user_id: Id of the system user.
        email: Address, also the name that shows.
        reach: All rows of the organisation, or only those this account owns.
        without: Privileges that it lacks, such as ``prvWritecr_shraga_task``.
    """

    token: str
    user_id: str
    email: str
    reach: Literal["organization", "own"] = "organization"
    without: frozenset[str] = frozenset()

    def may(self, verb: str, table: Table) -> bool:
        """Whether it may do this (``Create``, ``Read``, ``Write``, ``Delete``, ``Assign``) to some rows of the table.

        The role of a user has no right to give rows away: nobody could tell whose they really are.
        """
        granted = self.reach == "organization" or verb != "Assign"
        return granted and f"prv{verb}{table.logical_name}" not in self.without


@dataclass
class Row:
    """A stored row.

    Attributes:
        id: Its GUID, lower case.
        seq: The order in which rows were created.
        version: Rises with each change, over all tables; it makes the ETag.
        values: By property; times as ``2026-01-31T10:20:30Z``.
    """

    id: str
    seq: int
    version: int
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def etag(self) -> str:
        """As it is sent."""
        return f'W/"{self.version}"'


class ServiceClock:
    """The time of the service: the real time, and what a test adds to it."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._ahead = timedelta()

    def now(self) -> datetime:
        """UTC-aware."""
        return self._clock.now() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let time pass at once; rows become older."""
        self._ahead += timedelta(seconds=seconds)


class Store:
    """All tables and rows, and who may do what. Every method is atomic.

    Args:
        tables: The tables at the start.
        clock: Gives ``createdon`` and ``modifiedon``.
    """

    def __init__(self, tables: list[Table], clock: ServiceClock | None = None) -> None:
        self.clock = clock or ServiceClock()
        self.lock = threading.RLock()
        self._tables: dict[str, Table] = {}
        self._rows: dict[str, dict[str, Row]] = {}
        self._accounts: dict[str, Account] = {}
        self._version = 1000
        for table in tables:
            self.define(table)

    # -- tables and accounts -------------------------------------------------------------------------------------

    def define(self, table: Table) -> None:
        """Add a table, or give one other columns; rows stay."""
        with self.lock:
            self._tables[table.entity_set] = table
            self._rows.setdefault(table.entity_set, {})

    def table(self, entity_set: str) -> Table:
        """The table of this entity set.

        Raises:
            Problem: 404.
        """
        if entity_set not in self._tables:
            raise missing_segment(entity_set)
        return self._tables[entity_set]

    def tables(self) -> list[Table]:
        """All of them."""
        with self.lock:
            return list(self._tables.values())

    def drop_column(self, entity_set: str, name: str) -> None:
        """Take a column away, as in an organisation that never had it."""
        with self.lock:
            table = self._tables[entity_set]
            columns = {key: column for key, column in table.columns.items() if key != name}
            self._tables[entity_set] = Table(
                table.logical_name, entity_set, columns, table.primary_name, table.label, table.custom
            )
            for row in self._rows[entity_set].values():
                row.values.pop(name, None)

    def drop_table(self, entity_set: str) -> None:
        """Take a table and its rows away."""
        with self.lock:
            self._tables.pop(entity_set)
            self._rows.pop(entity_set)

    def admit(self, account: Account) -> Account:
        """Let this account in; it also becomes a row of ``systemusers``."""
        with self.lock:
            self._accounts[account.token] = account
            if "systemusers" in self._tables and account.user_id not in self._rows["systemusers"]:
                name = {"fullname": account.email, "internalemailaddress": account.email, "domainname": account.email}
                self.create("systemusers", name, account, account.user_id)
        return account

    def expel(self, token: str) -> None:
        """The token is valid no longer."""
        with self.lock:
            self._accounts.pop(token, None)

    def account(self, token: str) -> Account | None:
        """Whose token this is."""
        return self._accounts.get(token)

    def account_of(self, user_id: str) -> Account:
        """The account of a system user.

        Raises:
            Problem: 404.
        """
        for account in self._accounts.values():
            if account.user_id == user_id:
                return account
        raise missing_row("systemuser", user_id)

    def email_of(self, user_id: str) -> str | None:
        """Name of a system user."""
        row = self._rows.get("systemusers", {}).get(user_id)
        return None if row is None else row.values.get("fullname")

    # -- rows ----------------------------------------------------------------------------------------------------

    def rows(self, entity_set: str, account: Account | None = None) -> list[Row]:
        """The rows of a table that this account sees (None: all), in the order of their creation."""
        with self.lock:
            table = self.table(entity_set)
            _allow(account, "Read", table)
            return [row for row in self._rows[entity_set].values() if account is None or _reaches(account, row)]

    def has(self, entity_set: str, row_id: str) -> bool:
        """Whether there is such a row, whoever may see it."""
        with self.lock:
            return row_id in self._rows.get(entity_set, {})

    def row(self, entity_set: str, row_id: str, account: Account | None = None) -> Row:
        """One row.

        Raises:
            Problem: 404, or 403 when it is not this account's.
        """
        with self.lock:
            table = self.table(entity_set)
            _allow(account, "Read", table)
            found = self._rows[entity_set].get(row_id)
            if found is None:
                raise missing_row(table.logical_name, row_id)
            if account is not None and not _reaches(account, found):
                raise no_privilege(account.user_id, "Read", table.logical_name)
            return found

    def create(
        self, entity_set: str, values: Mapping[str, Any], account: Account, row_id: str | None = None
    ) -> tuple[Row, Effect]:
        """Make a row.

        Raises:
            Problem: 400 for values the columns do not take, 412 when the id is taken.
        """
        with self.lock:
            table = self.table(entity_set)
            _allow(account, "Create", table)
            fitted, owner = self._fitted(table, values)
            _allow_gift(account, table, owner)
            row_id = row_id or fitted.pop(table.key, None) or str(uuid.UUID(new_id()))
            fitted.pop(table.key, None)
            if row_id in self._rows[entity_set]:
                raise exists_already()
            moment = self._now()
            filled: dict[str, Any] = dict.fromkeys(table.columns)
            filled |= {
                table.key: row_id,
                "createdon": moment,
                "modifiedon": moment,
                "statecode": 0,
                "statuscode": 1,
                "_ownerid_value": owner or account.user_id,
                "_createdby_value": account.user_id,
                "_modifiedby_value": account.user_id,
            }
            filled |= fitted
            self._version += 1
            filled["versionnumber"] = self._version
            row = Row(row_id, self._version, self._version, filled)
            self._rows[entity_set][row_id] = row
            return row, Effect("created", entity_set, row_id, row.version, {}, fitted)

    def update(
        self, entity_set: str, row_id: str, values: Mapping[str, Any], account: Account, if_match: str | None
    ) -> tuple[Row, Effect]:
        """Change a row; ``if_match`` is an ETag, ``*``, or None for whatever is there.

        Raises:
            Problem: 400, 403, 404, or 412 when the row has another version.
        """
        with self.lock:
            table = self.table(entity_set)
            _allow(account, "Write", table)
            row = self.row(entity_set, row_id, account)
            _must_match(row, if_match)
            fitted, owner = self._fitted(table, values)
            _allow_gift(account, table, owner, row.values.get("_ownerid_value"))
            if fitted.pop(table.key, row_id) != row_id:
                raise bad_payload(entity_set, f"The property '{table.key}' cannot be changed.")
            if owner:
                fitted["_ownerid_value"] = owner
            old = {name: row.values.get(name) for name in fitted}
            self._version += 1
            row.version = self._version
            row.values.update(
                fitted, modifiedon=self._now(), _modifiedby_value=account.user_id, versionnumber=self._version
            )
            return row, Effect("updated", entity_set, row_id, row.version, old, fitted)

    def delete(self, entity_set: str, row_id: str, account: Account, if_match: str | None) -> Effect:
        """Remove a row.

        Raises:
            Problem: 403, 404 or 412.
        """
        with self.lock:
            _allow(account, "Delete", self.table(entity_set))
            row = self.row(entity_set, row_id, account)
            _must_match(row, if_match)
            del self._rows[entity_set][row_id]
            return Effect("deleted", entity_set, row_id, 0, dict(row.values), {})

    def backdate(self, entity_set: str, row_id: str, values: Mapping[str, Any]) -> None:
        """Give a row times of its own, which no client can."""
        with self.lock:
            self.row(entity_set, row_id).values.update(values)

    def _now(self) -> str:
        return stamp(self.clock.now())

    def _fitted(self, table: Table, values: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        fitted: dict[str, Any] = {}
        owner: str | None = None
        for name, value in values.items():
            if name == "ownerid@odata.bind":
                owner = self._owner(table, value)
            elif "@" in name:
                continue
            elif name not in table.columns:
                raise bad_payload(
                    table.entity_set,
                    f"Invalid property '{name}' was found in entity 'Microsoft.Dynamics.CRM.{table.logical_name}'.",
                )
            elif table.columns[name].writable:
                fitted[name] = stored(table, table.columns[name], value)
        return fitted, owner

    def _owner(self, table: Table, value: Any) -> str:
        found = _BOUND.match(value) if isinstance(value, str) else None
        if found is None or found["set"] != "systemusers":
            raise bad_payload(table.entity_set, "The value of 'ownerid@odata.bind' is no address of a user.")
        return self.row("systemusers", found["id"].lower()).id


def _allow(account: Account | None, verb: str, table: Table) -> None:
    if account is not None and not account.may(verb, table):
        raise no_privilege(account.user_id, verb, table.logical_name)


def _allow_gift(account: Account, table: Table, owner: str | None, now: str | None = None) -> None:
    """Making a row of somebody else, or giving one away, takes the right to assign."""
    if owner is not None and owner != (now or account.user_id):
        _allow(account, "Assign", table)


def _reaches(account: Account, row: Row) -> bool:
    return account.reach == "organization" or row.values.get("_ownerid_value") == account.user_id


def _must_match(row: Row, if_match: str | None) -> None:
    if if_match not in (None, "*", row.etag):
        raise out_of_date()
