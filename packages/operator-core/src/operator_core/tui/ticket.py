"""One ticket: what is known of it, its newest journal while that grows, and what a person can say to it."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, RichLog, Static

from operator_core.api.models import SessionDetail, TicketDetail
from operator_core.api.protocol import Api
from operator_core.model.ticket import TERMINAL, TicketStatus
from operator_core.tui.approvals import ApprovalsScreen
from operator_core.tui.dialogs import Choice, Question
from operator_core.tui.lines import entry_lines, tail_lines, ticket_facts
from operator_core.tui.watching import KEYS, Watching

__all__ = ["TicketScreen"]

_BEGIN = 300
"""So many of the newest entries are shown of a journal that is there already."""
_PAGE = 200
_PAGES_AT_ONCE = 5
_KEPT = 10_000
_UNREAD = "It is being read; try again."
_TAIL = 8
# Blue and orange, which nobody takes for each other; the signs and words say it without any colour.
_STYLES = {
    "say": "",
    "call": "bold",
    "good": "#56b4e9",
    "bad": "bold #e69f00",
    "output": "#c0c0c0",
    "mark": "dim",
    "judge": "bold",
}


class TicketScreen(Watching):
    """A ticket and its newest session.

    Args:
        pause_s: Between two looks, in seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Board", tooltip="Back"),
        Binding("r", "reply", "Reply", tooltip="Answer what it asks"),
        Binding("a", "approval", "Approval", tooltip="Show its call that waits for a person's word"),
        Binding("s", "steer", "Steer", tooltip="Say something to the agent while it works"),
        Binding("c", "cancel", "Cancel", tooltip="Cancel the ticket, at the next step or at once"),
        Binding("f", "follow", "Follow", tooltip="Follow the journal as it grows, or stay here"),
        Binding("j", "log_down", "Down", show=False, tooltip="Down in the journal, as the arrow"),
        Binding("k", "log_up", "Up", show=False, tooltip="Up in the journal"),
        *KEYS,
    ]

    def __init__(self, api: Api, ticket_id: int, *, pause_s: float = 1.0) -> None:
        super().__init__(api, pause_s=pause_s)
        self._ticket_id = ticket_id
        self._ticket: TicketDetail | None = None
        self._session: str | None = None
        self._seen = -1
        self._empty = False

    def compose(self) -> ComposeResult:
        """The screen."""
        yield Static("…", id="facts", markup=False)
        yield Static("", id="problem", markup=False)
        log = RichLog(id="journal", wrap=True, markup=False, highlight=False, max_lines=_KEPT, min_width=20)
        yield log
        yield Static("", id="tail", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#tail").display = False
        self._log.focus()
        self.begin()

    # ---- looking

    async def look(self) -> bool:
        """Read the ticket, and what is new in its journal."""
        ticket = self._ticket = await self._api.ticket(self._ticket_id)
        newest = ticket.sessions[0].session_id if ticket.sessions else None
        session = await self._api.session(newest) if newest else None
        self.say("facts", "\n".join(ticket_facts(ticket, session, width=self.size.width - 2)))
        if session is None:
            if not self._empty:
                self._empty = True
                self._log.write(Text("No worker has begun with it yet."))
            return False
        if session.session_id != self._session:
            self._begin(session)
        more = await self._read(session.session_id)
        live = session.live
        self.say("tail", "\n".join(tail_lines(live.tail, _TAIL)) if live and session.ended_at is None else "")
        return more

    def _begin(self, session: SessionDetail) -> None:
        self._session = session.session_id
        self._log.clear()
        self._seen = max(-1, session.entries - 1 - _BEGIN)
        if self._seen >= 0:
            self._log.write(Text(f"… {self._seen + 1:,} earlier entries are not shown here", style="dim"))

    async def _read(self, session_id: str) -> bool:
        for _ in range(_PAGES_AT_ONCE):
            page = await self._api.entries(session_id, after=self._seen, limit=_PAGE, max_chars=20_000)
            for entry in page.items:
                for line in entry_lines(entry):
                    self._log.write(Text(line.text, style=_STYLES[line.kind]))
                self._seen = entry.seq
            if len(page.items) < _PAGE:
                return False
        return True

    # ---- what keys do

    async def action_reply(self) -> None:
        """Answer the question of a session that waits, whichever it is."""
        if self._ticket is not None and self._ticket.needs == "approval":
            # A message is no answer to it.
            self.action_approval()
        elif self._is(TicketStatus.WAITING_FOR_INPUT, "It asks nothing; `s` says something to an agent that works."):
            self._ask("Your answer", "A worker goes on with it.", "reply")

    def action_approval(self) -> None:
        """Show the call that waits for a person's word."""
        if self._ticket is not None and self._ticket.needs == "approval":
            self.app.push_screen(ApprovalsScreen(self._api, pause_s=self._pause_s, ticket_id=self._ticket_id))
        else:
            self.tell(_UNREAD if self._ticket is None else "No call of it waits for a word.")

    async def action_steer(self) -> None:
        """Say something to an agent that works."""
        if self._is(TicketStatus.RUNNING, "Nobody works on it now, so nobody would hear it."):
            self._ask("Say to the agent", "It reads it before its next step.", "steer")

    async def action_cancel(self) -> None:
        """Cancel the ticket."""
        ticket = self._ticket
        if ticket is not None and ticket.status in TERMINAL:
            self.tell("It has ended already.")
            return
        keys = {"y": "cancel it at its next step", "k": "cancel it now, in the middle of a command"}
        chosen = Choice(f"Cancel ticket #{self._ticket_id}?", keys)

        def take(key: str | None) -> None:
            if key is not None:
                self.act(self._api.cancel(self._ticket_id, now=key == "k"), "The cancellation was stored.")

        self.app.push_screen(chosen, take)

    def action_follow(self) -> None:
        """Stay at the end while the journal grows, or stay where it is."""
        self._log.auto_scroll = not self._log.auto_scroll
        self.tell("It follows." if self._log.auto_scroll else "It stays where it is; `f` follows again.")
        if self._log.auto_scroll:
            self._log.scroll_end(animate=False)

    def action_log_down(self) -> None:
        """Scroll."""
        self._log.scroll_down(animate=False)

    def action_log_up(self) -> None:
        """Scroll."""
        self._log.scroll_up(animate=False)

    def _is(self, status: TicketStatus, otherwise: str) -> bool:
        if self._ticket is not None and self._ticket.status is status:
            return True
        self.tell(_UNREAD if self._ticket is None else otherwise)
        return False

    def _ask(self, title: str, hint: str, what: str) -> None:
        def take(text: str | None) -> None:
            if text is not None:
                act = self._api.reply if what == "reply" else self._api.steer
                self.act(act(self._ticket_id, text), "The message was stored.")

        self.app.push_screen(Question(f"{title} (#{self._ticket_id})", hint), take)

    @property
    def _log(self) -> RichLog:
        return self.query_one("#journal", RichLog)
