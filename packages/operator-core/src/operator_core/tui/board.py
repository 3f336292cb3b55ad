"""The board: what needs a person first."""

from __future__ import annotations

import asyncio
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.coordinate import Coordinate
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from operator_core.api.protocol import Api
from operator_core.errors import OperatorError
from operator_core.model.ticket import TicketStatus
from operator_core.text import printable
from operator_core.tui.lines import board_line, ticket_cells, widths
from operator_core.tui.ticket import TicketScreen

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


class BoardScreen(Screen[None]):
    """All tickets, looked at again and again; only what changed is drawn anew.

    Args:
        pause_s: Between two looks, in seconds.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("o", "open", "Open"),
        ("slash", "search", "Search"),
        ("f", "filter", "Filter"),
        ("j", "step(1)", "Down"),
        ("k", "step(-1)", "Up"),
        ("r", "look", "Refresh"),
        ("q", "app.quit", "Quit"),
    ]

    def __init__(self, api: Api, *, pause_s: float = 2.0) -> None:
        super().__init__()
        self._api = api
        self._pause_s = pause_s
        self._view = 0
        self._search = ""
        self._wake = asyncio.Event()
        self._counts = ""
        self._columns: dict[str, int] = {}
        self._rows: dict[str, dict[str, str]] = {}

    def compose(self) -> ComposeResult:
        """The screen."""
        yield Static("…", id="counts", markup=False)
        yield Static("", id="problem", markup=False)
        yield Input(placeholder="Search names, messages, #id", id="search")
        table: DataTable[Text] = DataTable(id="tickets", cursor_type="row", zebra_stripes=True)
        yield table
        yield Static("", id="empty", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self._problem.display = self.query_one("#search").display = self.query_one("#empty").display = False
        self._table.focus()
        self.run_worker(self._watch(), name="board")

    def on_resize(self, event: events.Resize) -> None:
        """Columns for the terminal as it is now."""
        columns = widths(event.size.width)
        if columns != self._columns:
            chosen, self._columns = self._chosen, columns
            self._table.clear(columns=True)
            for name, width in columns.items():
                self._table.add_column(name, key=name, width=width)
            self._draw(chosen)

    def on_screen_resume(self) -> None:
        """What was missed meanwhile is looked at now."""
        self._wake.set()

    # ---- looking

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            if self.is_current:
                await self._look()
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        view, search = _VIEWS[self._view], self._search
        try:
            board = await self._api.board()
            page = await self._api.tickets(
                status=view.status, needs_me=view.needs_me, search=search, order="attention", limit=_ROWS
            )
        except OperatorError as error:
            # What is on the screen may be old then, and must not look as if it were not.
            self._problem.update(f"not live: {printable(str(error))}")
            self._problem.display = True
            return
        if (view, search) != (_VIEWS[self._view], self._search):
            self._wake.set()
            return
        self._problem.display = False
        more = f" · the first {_ROWS} are shown" if page.next else ""
        shown = "" if not (self._view or search) else f" · shown: {view.name}{f', {search!r}' if search else ''}"
        counts = board_line(board) + shown + more
        if counts != self._counts:
            self._counts = counts
            self.query_one("#counts", Static).update(counts)
        self._show({str(ticket.id): ticket_cells(ticket) for ticket in page.items})

    def _show(self, rows: dict[str, dict[str, str]]) -> None:
        table, self._rows = self._table, rows
        empty = self.query_one("#empty", Static)
        empty.display = not rows
        empty.update("No ticket is like that." if self._view or self._search else "There is no ticket yet.")
        if [row.value for row in table.rows] == list(rows):
            for row, cells in enumerate(rows.values()):
                for column, name in enumerate(self._columns):
                    place = Coordinate(row, column)
                    if table.get_cell_at(place).plain != cells[name]:
                        table.update_cell_at(place, _cell(cells[name]))
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
            self._table.add_row(*(_cell(cells[name]) for name in self._columns), key=key)
        keys = list(self._rows)
        row = keys.index(chosen) if chosen in keys else min(otherwise, max(0, len(keys) - 1))
        self._table.move_cursor(row=row, scroll=False)
        return row

    # ---- what keys do

    def action_open(self) -> None:
        """Open the chosen ticket."""
        if (chosen := self._chosen) is not None:
            self.app.push_screen(TicketScreen(self._api, int(chosen), pause_s=min(1.0, self._pause_s)))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """As the key."""
        self.action_open()

    def action_step(self, by: int) -> None:
        """To the next or the previous ticket."""
        self._table.move_cursor(row=self._table.cursor_row + by)

    def action_filter(self) -> None:
        """Show the next kind of tickets."""
        self._view = (self._view + 1) % len(_VIEWS)
        self._wake.set()

    def action_look(self) -> None:
        """Look now."""
        self._wake.set()

    def action_search(self) -> None:
        """Type what to search for."""
        field = self.query_one("#search", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while somebody types."""
        self._search = event.value.strip()[:200]
        self._wake.set()

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
    def _problem(self) -> Static:
        return self.query_one("#problem", Static)

    @property
    def _chosen(self) -> str | None:
        table = self._table
        if not table.is_valid_coordinate(Coordinate(table.cursor_row, 0)):
            return None
        return table.coordinate_to_cell_key(Coordinate(table.cursor_row, 0)).row_key.value


def _cell(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
