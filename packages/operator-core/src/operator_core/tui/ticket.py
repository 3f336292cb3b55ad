"""One ticket: what is known of it, its newest journal while that grows, and what a person can say to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Footer, RichLog, Static

from operator_core.api.models import SessionDetail, TicketDetail
from operator_core.api.protocol import Api
from operator_core.errors import OperatorError
from operator_core.model.ticket import TERMINAL, TicketStatus
from operator_core.text import printable
from operator_core.tui.dialogs import Choice, Question
from operator_core.tui.lines import entry_lines, tail_lines, ticket_facts

__all__ = ["TicketScreen"]

_BEGIN = 300
"""So many of the newest entries are shown of a journal that is there already."""
_PAGE = 200
_PAGES_AT_ONCE = 5
_KEPT = 10_000
_TAIL = 8
_STYLES = {"say": "", "call": "bold", "good": "green", "bad": "red", "output": "dim", "mark": "dim", "judge": "bold"}


class TicketScreen(Screen[None]):
    """A ticket and its newest session.

    Args:
        pause_s: Between two looks, in seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "app.pop_screen", "Board"),
        ("r", "reply", "Reply"),
        ("s", "steer", "Steer"),
        ("c", "cancel", "Cancel"),
        ("f", "follow", "Follow"),
        ("j", "log_down", "Down"),
        ("k", "log_up", "Up"),
        ("q", "app.quit", "Quit"),
    ]

    def __init__(self, api: Api, ticket_id: int, *, pause_s: float = 1.0) -> None:
        super().__init__()
        self._api = api
        self._ticket_id = ticket_id
        self._pause_s = pause_s
        self._ticket: TicketDetail | None = None
        self._session: str | None = None
        self._seen = -1
        self._said: dict[str, str] = {}
        self._wake = asyncio.Event()

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
        self.query_one("#problem").display = self.query_one("#tail").display = False
        self._log.focus()
        self.run_worker(self._watch(), name=f"ticket-{self._ticket_id}")

    # ---- looking

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            more = False
            if self.is_current:
                try:
                    more = await self._look()
                    self._say("problem", "")
                except OperatorError as error:
                    self._say("problem", f"not live: {printable(str(error))}")
            if more:
                continue
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self) -> bool:
        """Look once; whether there is more to read at once."""
        ticket = self._ticket = await self._api.ticket(self._ticket_id)
        newest = ticket.sessions[0].session_id if ticket.sessions else None
        session = await self._api.session(newest) if newest else None
        self._say("facts", "\n".join(ticket_facts(ticket, session)))
        if session is None:
            if not self._said.get("none"):
                self._said["none"] = "said"
                self._log.write(Text("No worker has begun with it yet."))
            return False
        if session.session_id != self._session:
            self._begin(session)
        more = await self._read(session.session_id)
        live = session.live
        self._say("tail", "\n".join(tail_lines(live.tail, _TAIL)) if live and session.ended_at is None else "")
        return more

    def _begin(self, session: SessionDetail) -> None:
        self._session = session.session_id
        self._log.clear()
        self._seen = max(-1, session.entries - 1 - _BEGIN)
        if self._seen >= 0:
            command = f"operator sessions show {session.session_id}"
            self._log.write(Text(f"… {self._seen + 1:,} earlier entries; `{command}` has all of them"))

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

    def _say(self, where: str, text: str) -> None:
        """Show a text in its place, unless it stands there already."""
        if self._said.get(where) != text:
            self._said[where] = text
            field = self.query_one(f"#{where}", Static)
            field.update(text)
            field.display = bool(text)

    # ---- what keys do

    async def action_reply(self) -> None:
        """Answer the question of a session that waits."""
        if self._is(TicketStatus.WAITING_FOR_INPUT, "It asks nothing; `s` says something to an agent that works."):
            self._ask("Your answer", "A worker goes on with it.", "reply")

    async def action_steer(self) -> None:
        """Say something to an agent that works."""
        if self._is(TicketStatus.RUNNING, "Nobody works on it now, so nobody would hear it."):
            self._ask("Say to the agent", "It reads it before its next step.", "steer")

    async def action_cancel(self) -> None:
        """Cancel the ticket."""
        ticket = self._ticket
        if ticket is None or ticket.status in TERMINAL:
            self._tell("It has ended already.")
            return
        keys = {"y": "cancel it at its next step", "k": "cancel it now, in the middle of a command"}
        chosen = Choice(f"Cancel ticket #{self._ticket_id}?", keys)

        def take(key: str | None) -> None:
            if key is not None:
                self._act(self._api.cancel(self._ticket_id, now=key == "k"), "The cancellation was stored.")

        self.app.push_screen(chosen, take)

    def action_follow(self) -> None:
        """Stay at the end while the journal grows, or stay where it is."""
        self._log.auto_scroll = not self._log.auto_scroll
        self._tell("It follows." if self._log.auto_scroll else "It stays where it is; `f` follows again.")
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
        self._tell(otherwise)
        return False

    def _ask(self, title: str, hint: str, what: str) -> None:
        def take(text: str | None) -> None:
            if text is not None:
                act = self._api.reply if what == "reply" else self._api.steer
                self._act(act(self._ticket_id, text), "The message was stored.")

        self.app.push_screen(Question(f"{title} (#{self._ticket_id})", hint), take)

    def _act(self, act: Awaitable[TicketDetail], said: str) -> None:
        async def work() -> None:
            try:
                await act
            except OperatorError as error:
                self._tell(printable(str(error)), bad=True)
            else:
                self._tell(said)
            self._wake.set()

        self.run_worker(work(), name="act")

    def _tell(self, text: str, *, bad: bool = False) -> None:
        self.notify(text, severity="error" if bad else "information", markup=False)

    @property
    def _log(self) -> RichLog:
        return self.query_one("#journal", RichLog)
