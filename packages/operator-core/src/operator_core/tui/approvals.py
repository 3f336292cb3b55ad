"""The calls that wait for a person's word: what each would do, to the last character, and the word itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static

from operator_core.api.models import ApprovalView
from operator_core.api.protocol import Api
from operator_core.tui.asked import COLUMNS, asked_cells, asked_lines, asked_widths, call_lines, folded
from operator_core.tui.dialogs import Question
from operator_core.tui.watching import KEYS, Watching
from operator_core.web.words import grouped

__all__ = ["ApprovalsScreen"]

_MOST = 200
_LONGEST_NOTE = 2000
_IN_DIALOG = 5


class ApprovalsScreen(Watching):
    """The questions of a store, or those of one ticket.

    Args:
        pause_s: Between two looks, in seconds.
        ticket_id: None: those of all tickets.
        open_ticket: Shows a ticket; None: it is on the screen before.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("y", "answer(True)", "Allow once", tooltip="Allow exactly this call, once"),
        Binding("n", "answer(False)", "Deny", tooltip="Deny this call; the agent reads your word"),
        Binding("o,enter", "open", "Ticket", tooltip="Show its ticket"),
        Binding("j", "step(1)", "Down", show=False, tooltip="To the next call, as the arrow"),
        Binding("k", "step(-1)", "Up", show=False, tooltip="To the call before"),
        Binding("d,pagedown", "scroll_call(1)", "Read on", show=False, priority=True, tooltip="Read on in a long call"),
        Binding("u,pageup", "scroll_call(-1)", "Read back", show=False, priority=True, tooltip="Read back"),
        *KEYS,
    ]

    def __init__(
        self,
        api: Api,
        *,
        pause_s: float,
        ticket_id: int | None = None,
        open_ticket: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(api, pause_s=pause_s)
        self._open_ticket = open_ticket
        self._ticket_id = ticket_id
        self._asked: dict[str, ApprovalView] = {}
        self._chosen: str | None = None
        self._cells: list[tuple[str, ...]] = []

    def compose(self) -> ComposeResult:
        """The screen."""
        yield Static("…", id="counts", markup=False)
        yield Static("", id="problem", markup=False)
        table: DataTable[Text] = DataTable(id="asked", cursor_type="row", zebra_stripes=True)
        yield table
        yield Static("", id="empty", markup=False)
        with VerticalScroll(id="call", can_focus=False):
            yield Static("", id="what", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#empty").display = False
        self._table.focus()
        self.begin()

    def on_resize(self, event: events.Resize) -> None:
        """Columns for the terminal as it is now."""
        self._table.clear(columns=True)
        for name, width in asked_widths(event.size.width).items():
            self._table.add_column(name, key=name, width=width)
        self._draw()

    async def look(self) -> bool:
        """Read the questions."""
        found = await self._api.approvals(limit=_MOST)
        self._asked = {a.id: a for a in found if self._ticket_id in (None, a.ticket_id)}
        many = len(self._asked)
        only = "" if self._ticket_id is None else f" of ticket #{self._ticket_id}"
        calls = f"{grouped(many)}{' or more' if many == _MOST else ''} call{'' if many == 1 else 's'}"
        self.say("counts", f"{calls}{only} wait{'s' if many == 1 else ''} for a person's word")
        self.say("empty", "" if many else "Nothing waits for your word.")
        if [tuple(asked_cells(a).values()) for a in self._asked.values()] != self._cells:
            self._draw()
        self._show()
        return False

    def _draw(self) -> None:
        """Fill the table; the cursor stays on its question, or, if that is over, at its place."""
        table, at = self._table, self._table.cursor_row
        self._cells = [tuple(asked_cells(a).values()) for a in self._asked.values()]
        with self.app.batch_update():
            table.clear()
            for key, cells in zip(self._asked, self._cells, strict=True):
                named = dict(zip(COLUMNS, cells, strict=True))
                shown = (Text(named[str(c.value)], no_wrap=True, overflow="ellipsis") for c in table.columns)
                table.add_row(*shown, key=key)
            table.display = bool(self._asked)
            keys = list(self._asked)
            row = keys.index(self._chosen) if self._chosen in keys else min(at, len(keys) - 1)
            table.move_cursor(row=max(0, row), scroll=True)

    def _show(self) -> None:
        """What the chosen call would do."""
        asked = self._here
        chosen = asked.id if asked else None
        if chosen != self._chosen:
            self.query_one("#call", VerticalScroll).scroll_home(animate=False)
        self._chosen = chosen
        self.say("what", "\n".join(folded(asked_lines(asked), max(20, self.size.width - 4))) if asked else "")
        self.query_one("#call").display = asked is not None

    # ---- what keys do

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show that one."""
        self._show()

    def action_step(self, by: int) -> None:
        """To the next or the previous question."""
        self._table.move_cursor(row=self._table.cursor_row + by)

    def action_open(self) -> None:
        """Show the ticket of the chosen call."""
        if self._open_ticket is None:
            self.app.pop_screen()
        elif self._here is not None:
            self._open_ticket(self._here.ticket_id)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """As the key."""
        self.action_open()

    def action_scroll_call(self, by: int) -> None:
        """Read on in the call."""
        call = self.query_one("#call", VerticalScroll)
        (call.scroll_page_down if by > 0 else call.scroll_page_up)(animate=False)

    def action_answer(self, approve: bool) -> None:
        """Allow or deny the chosen call, with a word for the agent."""
        asked = self._here
        if asked is None:
            self.tell("Nothing waits for your word.")
            return
        lines = list(folded(call_lines(asked), max(20, min(90, self.size.width * 4 // 5) - 8)))
        shown = lines[:_IN_DIALOG] + ([f"… {grouped(len(lines) - _IN_DIALOG)} more lines"] * (len(lines) > _IN_DIALOG))
        title = f"{'Allow this call once?' if approve else 'Deny this call?'} (ticket #{asked.ticket_id})"
        does = "allows" if approve else "denies"
        hint = f"A word with it, if you like; the agent reads it. Enter {does}, Esc leaves it."
        said = "may run this call once" if approve else "is told that this call is denied"

        def take(note: str | None) -> None:
            if note is not None:
                act = self._api.decide(asked.id, approve, note=note)
                self.act(act, f"The agent of ticket #{asked.ticket_id} {said}.")

        ask = Question(title, hint, about="\n".join(shown), optional=True, longest=_LONGEST_NOTE)
        self.app.push_screen(ask, take)

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#asked", DataTable)

    @property
    def _here(self) -> ApprovalView | None:
        """The question under the cursor."""
        table = self._table
        if not table.is_valid_coordinate(Coordinate(table.cursor_row, 0)):
            return None
        return self._asked.get(table.coordinate_to_cell_key(Coordinate(table.cursor_row, 0)).row_key.value or "")
