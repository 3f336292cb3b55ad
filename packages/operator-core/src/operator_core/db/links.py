"""Links between the rows of another system and the tickets that they became.

The row of a link is written before anything is done to the other system's row, and in the same transaction as the
ticket; so whoever comes after a crash knows how far it went. A link is locked before its ticket, never after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, Text, and_, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db.client import StoreClient
from operator_core.db.schema import agent_sessions, db_now_ms, tickets, work_links
from operator_core.model.entry import stored_json
from operator_core.model.ticket import TicketStatus

__all__ = ["Change", "Link", "LinkedTicket", "Links"]

Change = Callable[[dict[str, Any]], Mapping[str, Any] | None]
"""From the state of a link to its next one; None: nothing is written."""

_KEY = and_(
    work_links.c.source == bindparam("in_source", type_=Text),
    work_links.c.external_id == bindparam("in_id", type_=Text),
)
_ONE = select(work_links).where(_KEY)
_LOCKED = _ONE.with_for_update()
_SET = (
    update(work_links)
    .where(_KEY)
    .values(
        state=bindparam("new_state", type_=Text),
        owner=bindparam("new_owner", type_=Text),
        settled=bindparam("new_settled", type_=Boolean),
        updated_at=bindparam("now", type_=Text),
    )
    .returning(work_links)
)
_JOINED = select(
    work_links,
    tickets.c.status,
    tickets.c.reason,
    tickets.c.fence,
    tickets.c.session_id,
    tickets.c.cancel_requested,
    tickets.c.diagnosis,
    tickets.c.updated_at.label("ticket_updated_at"),
    agent_sessions.c.head_seq,
).select_from(
    work_links.join(tickets, tickets.c.id == work_links.c.ticket_id).outerjoin(
        agent_sessions, agent_sessions.c.session_id == tickets.c.session_id
    )
)


@dataclass(frozen=True)
class Link:
    """One row of another system.

    Attributes:
        source: The system, e.g. ``dataverse``.
        external_id: Its id of the row.
        ticket_id: The ticket that it became; None: not yet, or it never will.
        owner: Whose link it is, in the words of the source, e.g. the name of a machine.
        state: What the source has to remember; JSON.
        settled: Both sides agree, and nothing is left to be said about it.
        updated_at: ISO 8601 (UTC).
    """

    source: str
    external_id: str
    ticket_id: int | None
    owner: str
    state: dict[str, Any]
    settled: bool
    updated_at: str


@dataclass(frozen=True)
class LinkedTicket:
    """A link, and what is to be known of its ticket without a further look.

    Attributes:
        status: The ticket's state.
        reason: Why it is in it.
        fence: Grows with every claim by a worker; so it also tells one question to a person from the next.
        session_id: The session of the newest attempt; None: none has begun.
        head_seq: Number of its newest journal entry; -1: none.
        canceling: A person canceled, and the session has not ended yet.
        diagnosis: How it ended, in words.
        updated_at: When the ticket changed (ISO 8601, UTC).
    """

    link: Link
    ticket_id: int
    status: TicketStatus
    reason: str | None
    fence: int
    session_id: str | None
    head_seq: int
    canceling: bool
    diagnosis: str | None
    updated_at: str


class Links(StoreClient):
    """The links of every source in a store."""

    async def get(self, source: str, external_id: str) -> Link | None:
        """One link."""
        rows = await self.database.fetch(_ONE, in_source=source, in_id=external_id)
        return _link(rows[0]) if rows else None

    async def of_ticket(self, ticket_id: int) -> Link | None:
        """The link that a ticket came by; None: a person or a monitor opened it."""
        rows = await self.database.fetch(select(work_links).where(work_links.c.ticket_id == ticket_id))
        return _link(rows[0]) if rows else None

    async def tickets(
        self,
        source: str,
        *,
        owner: str | None = None,
        ids: Sequence[str] | None = None,
        settled: bool | None = False,
    ) -> list[LinkedTicket]:
        """Links that became tickets, with the state of the ticket and the head of its journal, in one look.

        Args:
            owner: Only those of this owner.
            ids: Only these rows.
            settled: Only those that are (True) or are not (False) settled; None: both.
        """
        statement = _JOINED.where(work_links.c.source == source)
        if owner is not None:
            statement = statement.where(work_links.c.owner == owner)
        if ids is not None:
            statement = statement.where(work_links.c.external_id.in_(ids))
        if settled is not None:
            statement = statement.where(work_links.c.settled.is_(settled))
        return [_linked(row) for row in await self.database.fetch(statement.order_by(tickets.c.id))]

    async def begin(self, source: str, external_id: str, owner: str, state: Mapping[str, Any]) -> bool:
        """Make a link without a ticket; False: there is one already, and it stays as it is."""
        async with self.database.begin() as c:
            return await self.begin_in(c, source, external_id, owner, state)

    async def begin_in(
        self, c: AsyncConnection, source: str, external_id: str, owner: str, state: Mapping[str, Any]
    ) -> bool:
        """As :meth:`begin`, in the caller's transaction; a second caller waits there for the first one to end."""
        insert = sqlite.insert if self.database.sqlite else postgresql.insert
        statement = (
            insert(work_links)
            .values(
                source=source,
                external_id=external_id,
                owner=owner,
                state=self._stored(state),
                updated_at=clock.iso(),
            )
            .on_conflict_do_nothing()
            .returning(work_links.c.external_id)
        )
        return (await c.execute(statement)).first() is not None

    async def change(
        self,
        source: str,
        external_id: str,
        change: Change,
        *,
        owner: str | None = None,
        settled: bool | None = None,
    ) -> Link | None:
        """Change the state of a link from what it is now; nobody else changes it meanwhile.

        Args:
            change: Must be quick, and may be called once only.
            owner: A new owner.
            settled: A new value.

        Returns:
            The link after it; None: there is none.
        """
        async with self.database.begin() as c:
            return await self.change_in(c, source, external_id, change, owner=owner, settled=settled)

    async def change_in(
        self,
        c: AsyncConnection,
        source: str,
        external_id: str,
        change: Change,
        *,
        owner: str | None = None,
        settled: bool | None = None,
    ) -> Link | None:
        """As :meth:`change`, in the caller's transaction."""
        link = await self.lock(c, source, external_id)
        if link is None:
            return None
        state = change(dict(link.state))
        if state is None:
            return link
        values = {
            "in_source": source,
            "in_id": external_id,
            "new_state": self._stored(state),
            "new_owner": link.owner if owner is None else owner,
            "new_settled": link.settled if settled is None else settled,
            "now": clock.iso(),
        }
        return _link((await c.execute(_SET, values)).one())

    async def lock(self, c: AsyncConnection, source: str, external_id: str) -> Link | None:
        """The link as it is now; nobody else changes it before the caller's transaction ends."""
        row = (await c.execute(_LOCKED, {"in_source": source, "in_id": external_id})).first()
        return None if row is None else _link(row)

    async def forget(self, source: str, external_id: str) -> bool:
        """Remove a link that never became a ticket; False: there is none, or it has a ticket."""
        statement = (
            delete(work_links)
            .where(
                work_links.c.source == source,
                work_links.c.external_id == external_id,
                work_links.c.ticket_id.is_(None),
            )
            .returning(work_links.c.external_id)
        )
        async with self.database.begin() as c:
            return (await c.execute(statement)).first() is not None

    async def tie(self, c: AsyncConnection, source: str, external_id: str, ticket_id: int | None) -> None:
        """Give a link its ticket, in the transaction that opens the ticket; None: it is to become another one."""
        await c.execute(
            update(work_links)
            .where(work_links.c.source == source, work_links.c.external_id == external_id)
            .values(ticket_id=ticket_id, updated_at=clock.iso())
        )

    async def now_ms(self) -> int:
        """Milliseconds since 1970 on the store's clock, which is one clock for all processes."""
        return int((await self.database.fetch(select(db_now_ms())))[0][0])

    async def list(
        self,
        source: str,
        *,
        owner: str | None = None,
        ids: Sequence[str] | None = None,
        unsettled: bool = False,
        without_ticket: bool = False,
    ) -> list[Link]:
        """Links of a source, oldest change first.

        Args:
            owner: Only those of this owner.
            ids: Only these rows.
            unsettled: Only those about which something may be left to do or to say.
            without_ticket: Only those that have not become a ticket.
        """
        statement = select(work_links).where(work_links.c.source == source)
        if owner is not None:
            statement = statement.where(work_links.c.owner == owner)
        if ids is not None:
            statement = statement.where(work_links.c.external_id.in_(ids))
        if unsettled:
            statement = statement.where(work_links.c.settled.is_(False))
        if without_ticket:
            statement = statement.where(work_links.c.ticket_id.is_(None))
        rows = await self.database.fetch(statement.order_by(work_links.c.updated_at, work_links.c.external_id))
        return [_link(row) for row in rows]

    def _stored(self, state: Mapping[str, Any]) -> str:
        return stored_json(self.database.redactor.tree(dict(state)), str)


def _link(row: Row[Any]) -> Link:
    return Link(
        row.source,
        row.external_id,
        row.ticket_id,
        row.owner,
        json.loads(row.state),
        bool(row.settled),
        row.updated_at,
    )


def _linked(row: Row[Any]) -> LinkedTicket:
    return LinkedTicket(
        _link(row),
        row.ticket_id,
        TicketStatus(row.status),
        row.reason,
        row.fence,
        row.session_id,
        -1 if row.head_seq is None else row.head_seq,
        bool(row.cancel_requested),
        row.diagnosis,
        row.ticket_updated_at,
    )
