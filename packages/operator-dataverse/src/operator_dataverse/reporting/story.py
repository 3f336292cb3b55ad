"""The letters about what happened to one ticket since the last look, and how far they tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

from operator_core import clock
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.links import LinkedTicket
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.ticket import Ticket, TicketStatus
from operator_core.text import clip, printable
from operator_dataverse.client import fit
from operator_dataverse.intake.desk import Desk
from operator_dataverse.intake.state import SOURCE, LinkState
from operator_dataverse.reporting.cards import card_of
from operator_dataverse.reporting.events import Event, Move
from operator_dataverse.reporting.messages import Line, line_of, message, pack
from operator_dataverse.reporting.results import (
    Ending,
    Patch,
    UrlOf,
    begun,
    code_of,
    ending_of,
    expected_after,
    expected_before,
    shown_by,
    texts_of,
)
from operator_dataverse.tables import MESSAGES
from operator_dataverse.teams import TaskFacts

__all__ = ["CARDS", "ENDS", "Outgoing", "Story", "Teller", "channel_of", "old_part", "place_of"]

ENDS = frozenset({TicketStatus.RESOLVED, TicketStatus.ESCALATED, TicketStatus.CANCELED})
"""States of a ticket in which nothing is done for it any more."""
CARDS = "teams:"
"""What the channels of cards begin with."""

_TITLE = 100


class Teller(NamedTuple):
    """What every story needs.

    Attributes:
        desk: Both sides.
        audit: The journals.
        cards: Whether cards are posted from here.
        urls: The address of a file or folder on the web.
        room: UTF-16 code units of a message.
    """

    desk: Desk
    audit: AuditLogDB
    cards: bool
    urls: UrlOf
    room: int


class Outgoing(NamedTuple):
    """A letter that is to be put."""

    channel: str
    kind: str
    key: str
    body: dict[str, Any]


def place_of(box: str) -> str:
    """What the channels of a dev box begin with, behind the first word.

    Only its own worker carries them: with its person's account, to its organisation and its webhook. Workers of other
    people may share the store.
    """
    return f"{quote(box.casefold(), safe='')}/"


def channel_of(box: str, row_id: str) -> str:
    """The channel of what is written to a row."""
    return f"{SOURCE}:{place_of(box)}{row_id}"


def old_part(events: Sequence[Event]) -> int:
    """How many of the events, from the first on, are of an attempt before the newest one."""
    reopened = [
        n for n, e in enumerate(events, 1) if isinstance(e, Move) and e.new is TicketStatus.OPEN and e.old in ENDS
    ]
    return reopened[-1] if reopened else 0


class Story:
    """What is told of one ticket in one go.

    Args:
        teller: See there.
        one: The ticket and its link.
        state: The state of the link, of which the story goes on.
        ticket: The ticket in full.

    Attributes:
        letters: What is to be put.
        held: Whether something is left for a later story.
    """

    def __init__(self, teller: Teller, one: LinkedTicket, state: LinkState, ticket: Ticket) -> None:
        self.row_id = one.link.external_id
        self.letters: list[Outgoing] = []
        self.held = False
        self._teller = teller
        self._channel = channel_of(teller.desk.box, self.row_id)
        self._state = state
        self._ticket = ticket
        self._cursor = dict(state.cursor)
        self._ledger = state.ledger
        self._progress_ms = state.progress_ms
        self._reported = TicketStatus(state.reported) if state.reported else None
        self._pending: list[tuple[Entry, Line | None]] = []
        title = printable(" ".join((state.title or ticket.invariant_name).split()))
        self._title = clip(title, _TITLE) or "(a task without a name)"
        self._iterations = int((ticket.check_spec or {}).get("max_iterations") or 10)

    @property
    def after(self) -> dict[str, Any]:
        """What changes in the state of the link when the letters are put."""
        return {
            "cursor": self._cursor,
            "ledger": self._ledger,
            "progress_ms": self._progress_ms,
            "reported": "" if self._reported is None else self._reported.value,
            "told": self._state.attempt,
        }

    def skip(self, events: Sequence[Event]) -> None:
        """Say nothing about these."""
        for event in events:
            self._pass(event)

    async def tell(self, events: Sequence[Event]) -> None:
        """Make letters of these; the last ones may be left for later."""
        last: tuple[Move, TicketStatus, Ending, list[Entry]] | None = None
        for event in events:
            if isinstance(event, Move):
                self._flush(now=True)
                self._pass(event)
                shown = shown_by(event.new, event.old)
                if shown is not None:
                    ending, journal = await self._ending(event, shown)
                    self._say(ending.notice, f"{event.seq}/notice")
                    last = event, shown, ending, journal
            else:
                self._entry(event)
        self._flush(now=False)
        if last is not None:
            await self._state_letters(*last)

    # ---- entries

    def _entry(self, entry: Entry) -> None:
        line = line_of(entry, title=self._title, row_id=self.row_id, iterations=self._iterations)
        if line is None or line.progress:
            self._pending.append((entry, line))
            return
        self._flush(now=True)
        self._pass(entry)
        self._say(line.text, f"{entry.session_id}/{entry.seq}")
        if entry.entry_type == EntryKind.BASELINE:
            values = begun([entry], self._teller.urls)
            self._patch(Patch("begun", values), [int(code_of(TicketStatus.RUNNING))], f"{entry.session_id}/begun")
            running = Ending("", "", "", "")
            self._card(TicketStatus.RUNNING, running, f"{entry.session_id}/card", [entry])
        elif entry.entry_type == EntryKind.TASK:
            self._patch(
                Patch("about", begun([entry], self._teller.urls)),
                [int(code_of(TicketStatus.RUNNING))],
                f"{entry.session_id}/about",
            )

    def _flush(self, *, now: bool) -> None:
        """Tell the progress that was collected, if it is time."""
        lines = [(entry, line.text) for entry, line in self._pending if line is not None]
        if lines and not now and not self._is_time(lines[0][0]):
            self.held = True
            self._pending = []
            return
        packs = pack([text for _, text in lines], self._teller.room)
        for number, part in enumerate(packs if now else packs[:1]):
            self._say(part.text, f"{lines[0][0].session_id}/{lines[0][0].seq}/progress-{number}")
            self._progress_ms = _ms()
        passed = [entry for entry, _ in self._pending]
        if not now and len(packs) > 1:
            self.held = True
            passed = passed[: passed.index(lines[packs[0].lines][0])]
        for entry in passed:
            self._pass(entry)
        self._pending = []

    def _is_time(self, oldest: Entry) -> bool:
        mine = self._teller.desk.mine
        pause_ms = 1000 * max(mine.message_s, 60.0 / mine.messages_per_minute)
        since = _ms() - self._progress_ms
        age_s = (clock.now() - clock.parse_iso(oldest.timestamp)).total_seconds()
        # A clock that was set back must not hold up anything.
        return not 0 <= since < pause_ms and not 0 <= age_s < mine.message_s

    def _pass(self, event: Event) -> None:
        if isinstance(event, Move):
            self._ledger = max(self._ledger, event.seq)
        else:
            self._cursor[event.session_id] = max(self._cursor.get(event.session_id, -1), event.seq)

    # ---- states

    async def _ending(self, move: Move, shown: TicketStatus) -> tuple[Ending, list[Entry]]:
        journal: list[Entry] = []
        if shown is not TicketStatus.RUNNING and move.session_id is not None:
            journal = await self._teller.audit.entries(move.session_id)
        ending = await asyncio.to_thread(
            ending_of,
            shown,
            move.reason,
            box=self._teller.desk.box,
            title=self._title,
            diagnosis=self._ticket.diagnosis or "",
            entries=journal,
            urls=self._teller.urls,
        )
        return ending, journal

    async def _state_letters(self, move: Move, shown: TicketStatus, ending: Ending, journal: list[Entry]) -> None:
        """The state first, and behind it what may be long."""
        if shown is TicketStatus.RUNNING and self._reported is TicketStatus.RUNNING:
            return
        state = {"cr_status": int(code_of(shown)), "cr_statusmessage": ending.status_message}
        self._patch(Patch("state", state), expected_before(shown, self._reported), f"{move.seq}/state")
        self._reported = shown
        if shown is not TicketStatus.RUNNING:
            self._card(shown, ending, f"{move.seq}/card", journal, question=str(move.fence))
        if shown not in ENDS:
            return
        patches = await asyncio.to_thread(
            texts_of,
            shown,
            ending,
            ticket=self._ticket,
            row_id=self.row_id,
            box=self._teller.desk.box,
            entries=journal,
            urls=self._teller.urls,
        )
        for patch in patches:
            self._patch(patch, expected_after(shown), f"{move.seq}/{patch.name}")
        body = {"row": self.row_id, "attempt": self._state.attempt}
        self._post(self._channel, "settle", f"{move.seq}/settle", body)

    # ---- letters

    def _patch(self, patch: Patch, expected: list[int], key: str) -> None:
        # As the service keeps them, so that what was written is recognised.
        values = {name: value.strip() if isinstance(value, str) else value for name, value in patch.values.items()}
        fitted = fit(self._teller.desk.info, values, pointer=patch.pointer)
        if not fitted.values:
            return
        body = {
            "row": self.row_id,
            "values": fitted.values,
            "expected": expected,
            "attempt": self._state.attempt,
        }
        self._post(self._channel, "patch", key, body)

    def _say(self, text: str, key: str) -> None:
        if text.strip():
            user = self._state.user or self._teller.desk.mine.user or ""
            values = message(text, user=user, row_id=self.row_id)
            body = {"table": MESSAGES, "id": new_guid(), "values": values}
            self._post(f"{self._channel}/messages", "create", f"{key}/message", body)

    def _card(
        self, status: TicketStatus, ending: Ending, key: str, journal: list[Entry], *, question: str = ""
    ) -> None:
        if not self._teller.cards:
            return
        places = begun(journal, self._teller.urls)
        facts = TaskFacts(
            self.row_id,
            self._title,
            self._teller.desk.box,
            str(places.get("crb3b_shortdescription", "")),
            places.get("crb3b_onedriveurl"),
        )
        answerable = self._teller.desk.mine.teams_answers
        card = card_of(status, ending, facts, question=question, answerable=answerable)
        self._post(f"{CARDS}{place_of(self._teller.desk.box)}{self.row_id}", "card", key, {"card": card})

    def _post(self, channel: str, kind: str, key: str, body: dict[str, Any]) -> None:
        self.letters.append(Outgoing(channel, kind, f"{SOURCE}/{self.row_id}/{self._state.attempt}/{key}", body))


def new_guid() -> str:
    """The id of a row that is to be made; chosen before, so that it is made once (row B-012)."""
    return str(UUID(hex=clock.new_id()))


def _ms() -> int:
    return int(clock.now().timestamp() * 1000)
