"""The board: what needs a person first."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Input, Static

from operator_core.api.models import TicketView
from operator_core.api.protocol import Api
from operator_core.model.ticket import TicketStatus
from operator_core.tui.approvals import ApprovalsScreen
from operator_core.tui.lines import board_line, style_of, ticket_cells, widths
from operator_core.tui.ticket import TicketScreen
from operator_core.tui.watching import KEYS, Watching

__all__ = ["BoardScreen"]

_ROWS = 200


class _View(NamedTuple):
    name: str
    status: tuple[str, ...] = ()
    needs_me: bool = False


_VIEWS = (
    _View("all"),
    _View("needs you", needs_me=True),
    _View("running", (TicketStatus.RUNNING.value,)),
    _View("open", (TicketStatus.OPEN.value, TicketStatus.QUEUED.value)),
    _View("closed", (TicketStatus.RESOLVED.value, TicketStatus.CANCELED.value)),
)


class BoardScreen(Watching):
    """All tickets, looked at again and again; only what changed is drawn anew.

    Args:
        pause_s: Between two looks, in seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o,enter", "open", "Open", tooltip="Show the chosen ticket"),
        Binding("a", "approvals", "Approvals", tooltip="Show the calls that wait for a person's word"),
        Binding("slash", "search", "Search", tooltip="Search; Esc shows all again"),
        Binding("f", "filter", "Filter", tooltip="Show another kind: needs you, running, open, closed, all"),
        Binding("j", "step(1)", "Down", show=False, tooltip="To the next ticket, as the arrow"),
        Binding("k", "step(-1)", "Up", show=False, tooltip="To the ticket before"),
        Binding("r", "look_again", "Look now", show=False),
        *KEYS,
    ]

    def __init__(self, api: Api, *, pause_s: float = 2.0) -> None:
        super().__init__(api, pause_s=pause_s)
        self._view = 0
        self._search = ""
        self._columns: dict[str, int] = {}
        self._rows: dict[str, dict[str, Text]] = {}

    def compose(self) -> ComposeResult:
        """The screen."""
        yield Static("…", id="counts", markup=False)
        yield Static("", id="stalled", markup=False)
        yield Static("", id="problem", markup=False)
        yield Input(placeholder="Search: words, #id, label=value", id="search")
        table: DataTable[Text] = DataTable(id="tickets", cursor_type="row", zebra_stripes=True)
        yield table
        yield Static("", id="empty", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        for name in ("#search", "#empty", "#stalled"):
            self.query_one(name).display = False
        self._table.focus()
        self.begin()

    def on_resize(self, event: events.Resize) -> None:
        """Columns for the terminal as it is now."""
        columns = widths(event.size.width)
        if columns != self._columns:
            chosen, self._columns = self._chosen, columns
            self._table.clear(columns=True)
            for name, width in columns.items():
                self._table.add_column(name, key=name, width=width)
            self._draw(chosen)

    # ---- looking

    async def look(self) -> bool:
        """Read the counts and the tickets."""
        view, search = _VIEWS[self._view], self._search
        board = await self._api.board()
        page = await self._api.tickets(
            status=view.status, needs_me=view.needs_me, search=search, order="attention", limit=_ROWS
        )
        if (view, search) != (_VIEWS[self._view], self._search):
            return True
        more = f" · the first {_ROWS} are shown" if page.next else ""
        shown = "" if not (self._view or search) else f" · shown: {view.name}{f', {search!r}' if search else ''}"
        self.say("counts", board_line(board) + shown + more)
        self.say("stalled", board.stalled or "")
        self._show({str(ticket.id): _cells(ticket) for ticket in page.items})
        return False

    def _show(self, rows: dict[str, dict[str, Text]]) -> None:
        table, self._rows = self._table, rows
        none = "No ticket is like that." if self._view or self._search else "There is no ticket yet."
        self.say("empty", "" if rows else none)
        if [row.value for row in table.rows] == list(rows):
            for row, cells in enumerate(rows.values()):
                for column, name in enumerate(self._columns):
                    place = Coordinate(row, column)
                    if table.get_cell_at(place) != cells[name]:
                        table.update_cell_at(place, cells[name])
            return
        chosen = self._chosen
        with self.app.batch_update():
            at, scrolled = table.cursor_row, table.scroll_y
            table.clear()
            row = self._draw(chosen, otherwise=at)
            table.scroll_to(y=scrolled + (row - at if chosen in rows else 0), animate=False)

    def _draw(self, chosen: str | None, otherwise: int = 0) -> int:
        """Fill the empty table; the cursor stays on its ticket, wherever that went; if that is gone, at its place."""
        for key, cells in self._rows.items():
            self._table.add_row(*(cells[name] for name in self._columns), key=key)
        keys = list(self._rows)
        row = keys.index(chosen) if chosen in keys else min(otherwise, max(0, len(keys) - 1))
        self._table.move_cursor(row=row, scroll=False)
        return row

    # ---- what keys do

    def action_open(self) -> None:
        """Open the chosen ticket."""
        if (chosen := self._chosen) is not None:
            self._open(int(chosen))

    def _open(self, ticket_id: int) -> None:
        self.app.push_screen(TicketScreen(self._api, ticket_id, pause_s=min(1.0, self._pause_s)))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """As the key."""
        self.action_open()

    def action_step(self, by: int) -> None:
        """To the next or the previous ticket."""
        self._table.move_cursor(row=self._table.cursor_row + by)

    def action_filter(self) -> None:
        """Show the next kind of tickets."""
        self._view = (self._view + 1) % len(_VIEWS)
        self.look_again()

    def action_approvals(self) -> None:
        """Show the calls that wait for a person's word."""
        self.app.push_screen(ApprovalsScreen(self._api, pause_s=self._pause_s, open_ticket=self._open))

    def action_look_again(self) -> None:
        """Look now."""
        self.look_again()

    def action_search(self) -> None:
        """Type what to search for."""
        field = self.query_one("#search", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while somebody types."""
        self._search = event.value.strip()[:200]
        self.look_again()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the list."""
        self._leave_search()

    def on_key(self, event: events.Key) -> None:
        """Esc ends the search."""
        if event.key == "escape" and self.query_one("#search", Input).display:
            event.stop()
            self.query_one("#search", Input).value = ""
            self._leave_search()

    def _leave_search(self) -> None:
        field = self.query_one("#search", Input)
        field.display = bool(field.value.strip())
        self._table.focus()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#tickets", DataTable)

    @property
    def _chosen(self) -> str | None:
        table = self._table
        if not table.is_valid_coordinate(Coordinate(table.cursor_row, 0)):
            return None
        return table.coordinate_to_cell_key(Coordinate(table.cursor_row, 0)).row_key.value


def _cells(ticket: TicketView) -> dict[str, Text]:
    style = {"State": style_of(ticket)}
    return {
        name: Text(text, style=style.get(name, ""), no_wrap=True, overflow="ellipsis")
        for name, text in ticket_cells(ticket).items()
    }
