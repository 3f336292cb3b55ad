"""From what happened here to what is to be said over there: journal and ledger become letters of the outbox.

Everything behind the cursor of a link is read, and in one transaction its letters are put and the cursor is moved: so
each entry is told exactly once, wherever this process dies. Progress is collected for a while before it is told; until
then the cursor stays before it (D-54).

The channel ``dataverse:{box}/{row}`` has what is written to the row, in order: state first, texts behind it (D-52);
``dataverse:{box}/{row}/messages`` the messages; ``teams:{box}/{row}`` the cards. None of them waits for another.
"""

from __future__ import annotations

from sqlalchemy import Text, bindparam, select

from operator_core.db import ledger
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.links import LinkedTicket
from operator_core.db.schema import tickets, work_links
from operator_core.errors import Fenced, NotFound, StoreError, TransitionRefused
from operator_core.failpoints import reach
from operator_core.model.entry import Entry
from operator_core.model.ticket import TicketStatus
from operator_core.notify.outbox import put
from operator_dataverse.client import clip_units
from operator_dataverse.intake.desk import Desk
from operator_dataverse.intake.state import SOURCE, LinkState, changed
from operator_dataverse.reporting.events import in_order, moves_of
from operator_dataverse.reporting.messages import COLUMN
from operator_dataverse.reporting.results import UrlOf, code_of, expected_before
from operator_dataverse.reporting.story import ENDS, Story, Teller, channel_of, old_part

__all__ = ["Projection"]

_OF_ONE = (Fenced, NotFound, TransitionRefused)
"""Errors of the store that are about one thing in it."""
_RESTS = ENDS | {TicketStatus.WAITING_FOR_INPUT}

# A ticket that was reopened here, after both sides had agreed that it is over.
_REVIVED = (
    select(work_links.c.external_id)
    .join(tickets, tickets.c.id == work_links.c.ticket_id)
    .where(
        work_links.c.source == SOURCE,
        work_links.c.owner == bindparam("owner", type_=Text),
        work_links.c.settled.is_(True),
        tickets.c.status.not_in([status.value for status in ENDS]),
    )
)


class Projection:
    """Tells what happens to the tickets of one dev box.

    Args:
        desk: Both sides.
        cards: Whether cards are posted from here.
        urls: The address of a file or folder on the web.

    Attributes:
        room: UTF-16 code units of a message.
    """

    def __init__(self, desk: Desk, *, cards: bool, urls: UrlOf) -> None:
        self._desk = desk
        self._cards = cards
        self._urls = urls
        self._audit = AuditLogDB(desk.database)
        self._told: dict[str, tuple[object, ...]] = {}
        self.room = COLUMN

    async def step(self) -> int:
        """Tell what is new.

        Returns:
            How many letters were put.
        """
        await self._revive()
        letters = 0
        found = await self._desk.links.tickets(SOURCE, owner=self._desk.box)
        for one in found:
            row_id, seen = one.link.external_id, _seen(one)
            if self._told.get(row_id) == seen:
                continue
            try:
                count, all_told = await self._tell(one)
            except Exception as error:
                if isinstance(error, StoreError) and not isinstance(error, _OF_ONE):
                    raise
                # What is wrong with one task, or our mistake about it, must not keep the others from being told.
                self._desk.say(f"[Dataverse] Task {row_id[:8]} cannot be reported: {type(error).__name__}: {error}")
                count, all_told = await self._tell_state(one), True
            letters += count
            if all_told:
                self._told[row_id] = seen
        here = {one.link.external_id for one in found}
        self._told = {row_id: seen for row_id, seen in self._told.items() if row_id in here}
        return letters

    async def _revive(self) -> None:
        for row in await self._desk.database.fetch(_REVIVED, owner=self._desk.box):
            await self._desk.remember(row.external_id, settled=False)

    # ---- one ticket

    async def _tell(self, one: LinkedTicket) -> tuple[int, bool]:
        """Returns: How many letters were put, and whether nothing was held back."""
        state = LinkState.model_validate(one.link.state)
        if state.claiming:
            return 0, False
        # In this order: what a transition ended is in the journal before it.
        moves = moves_of(await ledger.ticket_history(self._desk.database, one.ticket_id), state.ledger)
        journals = await self._news(one.ticket_id, state)
        events = in_order(moves, journals)
        if not events and state.told == state.attempt:
            return 0, True
        teller = Teller(self._desk, self._audit, self._cards, self._urls, self.room)
        story = Story(teller, one, state, await self._desk.tickets.get_ticket(one.ticket_id))
        if state.told and state.told != state.attempt:
            # What an earlier attempt still had to say is void.
            skipped = old_part(events)
            story.skip(events[:skipped])
            events = events[skipped:]
        if state.lost:
            story.skip(events)
        else:
            await story.tell(events)
        reach("projection.read")
        return await self._commit(story, state), not story.held

    async def _tell_state(self, one: LinkedTicket) -> int:
        """The bare state, where more cannot be told: a row that went on as running would be done again, for ever."""
        state = LinkState.model_validate(one.link.state)
        if state.claiming or state.lost or one.status not in _RESTS:
            return 0
        row_id, key = one.link.external_id, f"{SOURCE}/{one.link.external_id}/{state.attempt}/bare-{one.fence}"
        said = f"This cannot be reported; see `operator tickets show {one.ticket_id}` on {self._desk.box}"
        patch = {
            "row": row_id,
            "values": {"cr_status": int(code_of(one.status)), "cr_statusmessage": clip_units(said, 200)},
            "expected": expected_before(one.status, None),
            "attempt": state.attempt,
        }
        channel = channel_of(self._desk.box, row_id)
        async with self._desk.database.begin() as c:
            letters = int(await put(c, channel, "patch", patch, dedupe_key=f"{key}/state"))
            if one.status in ENDS:
                body = {"row": row_id, "attempt": state.attempt}
                letters += await put(c, channel, "settle", body, dedupe_key=f"{key}/settle")
        return letters

    async def _news(self, ticket_id: int, state: LinkState) -> list[list[Entry]]:
        news = []
        for session in reversed(await self._audit.sessions(ticket_id=ticket_id, limit=1000)):
            after = state.cursor.get(session.session_id, -1)
            if session.entries - 1 > after:
                news.append(await self._audit.entries(session.session_id, after=after))
        return news

    async def _commit(self, story: Story, before: LinkState) -> int:
        letters = 0
        async with self._desk.database.begin() as c:
            link = await self._desk.links.lock(c, SOURCE, story.row_id)
            if link is None or _place(LinkState.model_validate(link.state)) != _place(before):
                # Another process of this box has told it, or the row was lost or claimed again meanwhile.
                story.held = True
                return 0
            for letter in story.letters:
                letters += await put(c, letter.channel, letter.kind, letter.body, dedupe_key=letter.key)
            change = changed(lambda state: state.but(**story.after))
            await self._desk.links.change_in(c, SOURCE, story.row_id, change)
            reach("projection.put")
        reach("projection.committed")
        return letters


def _seen(one: LinkedTicket) -> tuple[object, ...]:
    return one.link.state.get("attempt"), one.ticket_id, one.status, one.updated_at, one.session_id, one.head_seq


def _place(state: LinkState) -> tuple[object, ...]:
    return state.cursor, state.ledger, state.told, state.attempt, state.lost, state.claiming, state.reported
