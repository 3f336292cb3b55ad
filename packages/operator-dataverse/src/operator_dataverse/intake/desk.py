"""What every part of the intake needs to know, gathered once when the source starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from dataclasses import field as data_field
from typing import Any

from operator_core import clock
from operator_core.agent_lab.gateway import Say
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.db.links import Link, Links
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_dataverse.client import Dataverse, Filter, Row, TableInfo, field
from operator_dataverse.errors import SchemaProblem
from operator_dataverse.intake.state import SOURCE, LinkState, changed
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.tables.task import HEARTBEAT, LEASE_OWNER, TaskCode, TaskRow

__all__ = ["Apart", "Desk", "open_desk", "same", "together"]

_NEEDED = ("cr_name", "cr_prompt", "cr_status", "cr_statusmessage", "crb3b_useremail", "crb3b_devbox")
_MARK_DIGITS = 8

Apart = Callable[[str, str], AbstractAsyncContextManager[None]]
"""From the id of a row, and what is done to it, to what keeps a refusal of this one row from the others."""


def together(row_id: str, what: str) -> AbstractAsyncContextManager[None]:
    """A refusal of one row ends the look at all of them."""
    return nullcontext()


def same(one: str, other: str) -> bool:
    """Whether two names or addresses are one to Dataverse, which does not tell capital letters from small ones."""
    return one.casefold() == other.casefold()


@dataclass(frozen=True)
class Desk:
    """The two sides, and who this worker is on each.

    Attributes:
        settings: Of the product.
        mine: ``[dataverse]``.
        database: The open store.
        dataverse: The organisation.
        say: Prints a line for a person.
        info: Columns of the task table.
        people: What stands in a row for the person whose tasks are taken: e-mail address and id, in small letters.
        me: This process, among those that share the store.
    """

    settings: Settings
    mine: DataverseSettings
    database: Database
    dataverse: Dataverse
    say: Say
    info: TableInfo
    people: tuple[str, ...]
    me: str = data_field(default_factory=clock.new_id)

    @property
    def table(self) -> str:
        """The task table."""
        return self.mine.table

    @property
    def box(self) -> str:
        """Name of this dev box."""
        return self.mine.box

    @property
    def links(self) -> Links:
        """The links of the store."""
        return Links(self.database)

    @property
    def tickets(self) -> TicketDB:
        """The tickets of the store."""
        return TicketDB(self.database)

    @property
    def queue(self) -> WorkQueue:
        """The queue of the store."""
        return WorkQueue(self.database)

    # ---- whose row is it

    @property
    def has_lease_owner(self) -> bool:
        """Whether a row can say which process has it."""
        return LEASE_OWNER in self.info.columns

    @property
    def for_us(self) -> Filter:
        """Rows that name the person, and this box or none (never a row of nobody: D-42)."""
        box = field("crb3b_devbox")
        return self.of_person & (box.eq(self.box) | box.eq(None))

    @property
    def for_this_box(self) -> Filter:
        """Rows that name the person and this box."""
        return self.of_person & field("crb3b_devbox").eq(self.box)

    @property
    def of_person(self) -> Filter:
        """Rows that name the person."""
        columns = [name for name in ("crb3b_useremail", "cr_userid") if name in self.info.columns]
        return _any([field(name).eq(value) for name in columns for value in self.people])

    def may_take(self, row: TaskRow) -> bool:
        """The same for one row, read just now; who may write filters may not be asked twice for what they select."""
        person = row.user_email.casefold() in self.people or row.user_id.casefold() in self.people
        return person and (not row.devbox or same(row.devbox, self.box))

    async def believes(self, row: TaskRow) -> bool:
        """Whether the row is really of the person that it names: whose row it is, nobody can make up."""
        return await self.dataverse.owners.believes(row.owner, self.people[0])

    def new_mark(self) -> str:
        """What a claim writes into its row: ``{box}/{digits}``, never twice the same."""
        return f"{self.box[:180]}/{clock.new_id()[: 2 * _MARK_DIGITS]}"

    def claim_values(self, mark: str) -> dict[str, Any]:
        """The columns of a claim (row B-005)."""
        said = f"Claimed by {self.box}"
        values = self.beat_values(said)
        if self.has_lease_owner:
            values[LEASE_OWNER] = mark
        else:
            # Without it nobody could tell a claim whose answer was lost from one of another process of this box.
            said = f"Claimed by {self.box[:150]} ({mark.rpartition('/')[2]})"
        return {**values, "cr_status": int(TaskCode.RUNNING), "cr_statusmessage": said, "crb3b_devbox": self.box}

    def beat_values(self, status_message: str) -> dict[str, Any]:
        """The columns of a sign of life; where there is none for it, the row is touched with what it says anyway."""
        if HEARTBEAT in self.info.columns:
            return {HEARTBEAT: f"{clock.now():%Y-%m-%dT%H:%M:%SZ}"}
        return {"cr_statusmessage": status_message}

    def is_claim_of(self, row: TaskRow, mark: str) -> bool:
        """Whether the claim with this mark arrived, and nobody has claimed the row since."""
        if not mark or row.status is not TaskCode.RUNNING:
            return False
        if self.has_lease_owner:
            return row.lease_owner == mark
        return same(row.devbox, self.box) and mark.rpartition("/")[2] in row.status_message

    def is_ours(self, row: TaskRow, state: LinkState) -> bool:
        """Whether a row that was claimed once is still in the hands of this store."""
        if self.has_lease_owner and row.lease_owner:
            return row.lease_owner == state.mark
        return same(row.devbox, self.box)

    # ---- reading and writing

    async def row(self, row_id: str) -> TaskRow | None:
        """One task; None: it was deleted."""
        found = await self.dataverse.row(self.table, row_id, select=TaskRow.select(self.info))
        return None if found is None else TaskRow.parse(found)

    async def write(self, row: TaskRow, values: dict[str, Any]) -> TaskRow | None:
        """Change a row if it is still as it was read; None: it is not."""
        if row.etag is None:
            return None
        written = await self.dataverse.update(self.table, row.id, values, etag=row.etag)
        return TaskRow.parse(written) if isinstance(written, Row) else None

    async def remember(self, row_id: str, *, settled: bool | None = None, **values: Any) -> Link | None:
        """Change fields of a link's state, and nothing else in it."""
        return await self.links.change(SOURCE, row_id, changed(lambda state: state.but(**values)), settled=settled)


async def open_desk(
    settings: Settings, mine: DataverseSettings, database: Database, dataverse: Dataverse, say: Say
) -> Desk:
    """Look who we are and what the task table has.

    Raises:
        SchemaProblem: The table lacks a column that nothing can be done without.
        DataverseError: The service does not answer, or not to us.
    """
    person = (mine.needs("url", "user").user or "").strip().casefold()
    info = await dataverse.info(mine.table)
    missing = [name for name in _NEEDED if name not in info.columns]
    if missing:
        raise SchemaProblem(
            f"The table {mine.table} has no {', '.join(missing)}; make it complete with `operator-dataverse schema "
            "create`."
        )
    return Desk(settings, mine, database, dataverse, say, info, (person, await dataverse.owners.me()))


def _any(filters: list[Filter]) -> Filter:
    found = Filter.any(filters)
    assert found is not None
    return found
