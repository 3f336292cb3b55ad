"""``operator top``: the board and a ticket in a terminal, on a store and on a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.cells import cell_len
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog, Static

from operator_core import clock
from operator_core.api.models import EntryView, Observed
from operator_core.api.protocol import Api
from operator_core.client import Client
from operator_core.db.approvals import Approvals
from operator_core.db.approvals import Question as Asked
from operator_core.db.engine import Database
from operator_core.db.live_output import LiveOutputs
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.approval import Approval
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.person import Role
from operator_core.model.ticket import TicketStatus
from operator_core.tui.app import Top
from operator_core.tui.approvals import ApprovalsScreen
from operator_core.tui.asked import folded
from operator_core.tui.board import BoardScreen
from operator_core.tui.dialogs import Choice, Help, Question
from operator_core.tui.lines import entry_lines, one_line, tail_lines, ticket_facts
from operator_core.tui.ticket import TicketScreen
from tests.support.api import open_api
from tests.support.scene import HOSTILE, Scene, attempt, furnish
from tests.support.web import served


class Terminal(NamedTuple):
    """The program in a terminal that nobody sees."""

    app: Top
    pilot: Pilot[None]

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        """Wait until that holds."""
        end = clock.monotonic() + 15
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            assert clock.monotonic() < end, f"{what}; the screen says:\n{self.text}"
            await self.pilot.pause(0.02)

    @property
    def text(self) -> str:
        """Everything that the screen of this moment says."""
        parts = []
        for widget in self.app.screen.query("*"):
            if not widget.display:
                continue
            if isinstance(widget, Static):
                parts.append(str(widget.render()))
            elif isinstance(widget, DataTable):
                parts += ["  ".join(cell.plain for cell in widget.get_row_at(i)) for i in range(widget.row_count)]
            elif isinstance(widget, RichLog):
                parts += [strip.text for strip in widget.lines]
        return "\n".join(parts)

    @property
    def table(self) -> DataTable[object]:
        return self.app.screen.query_one(DataTable)

    @property
    def chosen(self) -> str | None:
        return self.table.coordinate_to_cell_key(self.table.cursor_coordinate).row_key.value

    async def open(self, ticket: int) -> None:
        """Open that ticket from the board."""
        await self.until(lambda: str(ticket) in [row.value for row in self.table.rows], f"#{ticket} is on the board")
        self.table.move_cursor(row=[row.value for row in self.table.rows].index(str(ticket)))
        await self.pilot.press("enter")
        await self.until(lambda: isinstance(self.app.screen, TicketScreen), "the ticket opened")


@asynccontextmanager
async def terminal(api: Api, size: tuple[int, int] = (160, 40)) -> AsyncIterator[Terminal]:
    app = Top(api, pause_s=0.1)
    async with app.run_test(size=size) as pilot:
        shown = Terminal(app, pilot)
        await shown.until(lambda: isinstance(app.screen, BoardScreen), "the board opened")
        await shown.until(lambda: shown.table.row_count > 0 or "There is no ticket yet" in shown.text, "it has looked")
        yield shown


class House(NamedTuple):
    api: Api
    database: Database
    scene: Scene

    @property
    def tickets(self) -> TicketDB:
        return TicketDB(self.database)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_api(str(tmp_path / "store.db")) as api:
        yield House(api, api.database, await furnish(api.database))


async def test_the_board_says_in_words_what_needs_a_person_first(house: House) -> None:
    async with terminal(house.api) as shown:
        rows = [int(row.value or 0) for row in shown.table.rows]
        wanted = {house.scene.waiting, house.scene.asking, house.scene.escalated, house.scene.hostile}
        assert set(rows[:4]) == wanted
        assert rows[4] == house.scene.running
        text = shown.text
        assert "4 need you (1 approval) · 1 running" in text
        for word in (
            "■ waiting: answer",
            "■ waiting: approval",
            "◆ escalated",
            "● running",
            "✓ resolved",
            "resolved, not proved",
            "○ open, held",
        ):
            assert word in text
        assert "answer it: " in text
        assert text.count("Make the tests pass") == 1, "a task is called as its prompt begins, which is said once"
        assert "by_hand" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text


async def test_the_board_follows_and_the_cursor_stays_on_its_ticket(house: House) -> None:
    async with terminal(house.api) as shown:
        await shown.pilot.press("j", "j", "j", "j")
        assert shown.chosen == str(house.scene.running)
        opened = await house.tickets.open_ticket("brand-new", "it came while somebody looked", severity="critical")
        await house.tickets.cancel_ticket(house.scene.waiting)
        await shown.until(lambda: "! brand-new: it came" in shown.text, "the new ticket is shown")
        await shown.until(lambda: "4 need you" not in shown.text, "the canceled one needs nobody")
        assert shown.chosen == str(house.scene.running), "the cursor moved to another ticket"
        assert str(opened.id) in [row.value for row in shown.table.rows]


async def test_what_did_not_change_is_not_drawn_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async with terminal(house.api) as shown:
        changed: list[str] = []
        table = shown.table
        update, clear = table.update_cell_at, table.clear
        monkeypatch.setattr(
            table, "update_cell_at", lambda place, value: (changed.append(str(value)), update(place, value))
        )
        monkeypatch.setattr(table, "clear", lambda *a, **k: (changed.append("all"), clear(*a, **k))[1])
        await house.tickets.hold_ticket(house.scene.running)
        await shown.until(lambda: "● running, held" in changed, "the change is shown")
        assert "all" not in changed
        assert len(changed) <= 3, "cells were drawn that say the same as before"


async def test_a_narrow_terminal_leaves_columns_out_and_a_wide_one_brings_them_back(house: House) -> None:
    async with terminal(house.api, size=(80, 24)) as shown:
        await shown.pilot.press("j")
        chosen = shown.chosen
        assert [column.label.plain for column in shown.table.ordered_columns] == ["State", "Ticket", "What", "Changed"]
        assert shown.table.virtual_size.width <= 80
        await shown.pilot.resize_terminal(200, 30)
        await shown.until(lambda: len(shown.table.columns) == 7, "all columns are there")
        assert shown.table.virtual_size.width <= 200
        assert shown.table.row_count == 10
        assert shown.chosen == chosen
        assert "answer it: " in shown.text


async def test_search_and_filter(house: House) -> None:
    async with terminal(house.api) as shown:
        await shown.pilot.press("slash", *"certif")
        await shown.until(lambda: [row.value for row in shown.table.rows] == [str(house.scene.asking)], "it was found")
        await shown.pilot.press("enter")
        assert shown.table.has_focus
        await shown.pilot.press("slash", *"zzz")
        await shown.until(lambda: "No ticket is like that" in shown.text, "nothing is like that")
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.table.row_count == 10, "all are shown again")
        assert not shown.app.screen.query_one(Input).display
        await shown.pilot.press("f")
        await shown.until(lambda: shown.table.row_count == 4 and "shown: needs you" in shown.text, "those that need me")
        await shown.pilot.press("f")
        await shown.until(lambda: [r.value for r in shown.table.rows] == [str(house.scene.running)], "those that run")


async def test_a_session_is_followed_while_it_works(tmp_path: Path) -> None:
    async with open_api(str(tmp_path / "store.db")) as api:
        ticket = await TicketDB(api.database).open_ticket("disk", "full")
        assert ticket.id is not None
        async with terminal(api) as shown:
            await shown.open(ticket.id)
            await shown.until(lambda: "No worker has begun" in shown.text, "it says that nothing happens")
            assert "! No worker is running" in shown.text
            work = await attempt(api.database, ticket.id)
            await work.run("du -sh /var", "31G\t/var/log\n\x1b[2J\x1b]0;pwned\x07", 1)
            await shown.until(
                lambda: "✗ exit 1" in shown.text and "31G    /var/log" in shown.text, "the result is shown"
            )
            assert "No worker has begun" not in shown.text
            await work.run("[bold]find[/bold] / -size +1G", done=False)
            outputs = LiveOutputs(api.database)
            await outputs.write(work.session_id, "call-9", "first\nloading 1%\rloading 99%\n", 24, work.claim)
            await shown.until(lambda: "loading 99%" in shown.text, "the running command's output is shown")
            assert "[bold]find[/bold]" in shown.text, "a command was read as markup"
            text = shown.text
            assert "loading 1%" not in text
            assert "\x1b" not in text
            assert "pwned" not in text
            assert text.count("du -sh /var") == 1, "an entry is there twice"


async def test_a_long_journal_is_shown_from_its_end(tmp_path: Path) -> None:
    async with open_api(str(tmp_path / "store.db")) as api:
        ticket = await TicketDB(api.database).open_ticket("disk", "full")
        assert ticket.id is not None
        work = await attempt(api.database, ticket.id)
        drafts = [Draft(EntryKind.NOTE, f"note number {n}") for n in range(700)]
        for draft in drafts:
            await work.journal.append(draft)
        async with terminal(api) as shown:
            await shown.open(ticket.id)
            await shown.until(lambda: "note number 699" in shown.text, "the end is shown")
            assert "note number 300" not in shown.text
            assert "earlier entries" in shown.text
            assert shown.text.count("note number 698") == 1


async def test_answers_steers_and_cancels(house: House) -> None:
    async with terminal(house.api) as shown:
        await shown.open(house.scene.waiting)
        await shown.until(lambda: "? May I delete the logs" in shown.text, "the question is shown")
        await shown.pilot.press("s")
        await shown.pilot.pause()
        assert isinstance(shown.app.screen, TicketScreen), "nobody would hear it"
        await shown.pilot.press("r")
        await shown.until(lambda: isinstance(shown.app.screen, Question), "it asks for the answer")
        await shown.pilot.press("escape")
        await shown.until(lambda: isinstance(shown.app.screen, TicketScreen), "nothing was sent")
        assert (await house.tickets.get_ticket(house.scene.waiting)).status is TicketStatus.WAITING_FOR_INPUT
        await shown.pilot.press("r", *"Yes", "enter")

        async def goes_on() -> bool:
            return (await house.tickets.get_ticket(house.scene.waiting)).status is TicketStatus.OPEN

        await shown.until(goes_on, "the answer was stored")
        await shown.until(lambda: "○ open" in shown.text, "the new state is shown")
        await shown.pilot.press("c")
        await shown.until(lambda: isinstance(shown.app.screen, Choice), "it asks whether to cancel")
        await shown.pilot.press("y")
        await shown.until(lambda: "– canceled" in shown.text, "it is canceled")
        await shown.pilot.press("escape")
        await shown.until(lambda: isinstance(shown.app.screen, BoardScreen), "the board is back")

    history = (await house.api.ticket(house.scene.waiting)).history
    assert any(event.actor == "api:ann" or "ann" in (event.actor or "") for event in history)


async def test_hostile_texts_stay_texts(house: House) -> None:
    async with terminal(house.api, size=(80, 24)) as shown:
        await shown.open(house.scene.hostile)
        await shown.until(lambda: "verdict: refuted" in shown.text, "the ticket is shown")
        await shown.until(lambda: "<script>" in shown.text, "the texts are shown as they are")
        assert not set(shown.text) & {"\x1b", "\u202e", "\x07", "\u200b"}


async def test_a_server_that_goes_away_is_said_and_then_caught_up_with(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with served(store) as first:
        async with Database.open(str(store)) as database, Client(first.url, first.tokens[Role.VIEWER]) as client:
            ticket = await TicketDB(database).open_ticket("before", "it was there")
            assert ticket.id is not None
            async with terminal(client) as shown:
                await shown.until(lambda: "before: it was there" in shown.text, "it is shown over HTTP")
                await asyncio.to_thread(first.stop)
                await shown.until(lambda: "not live: " in shown.text, "it is said that it is not live")
                assert "before: it was there" in shown.text
                await TicketDB(database).open_ticket("meanwhile", "nobody saw it")
                with served(store, tokens=first.tokens, port=first.port):
                    await shown.until(lambda: "meanwhile: nobody saw it" in shown.text, "it was caught up with")
                    assert "not live" not in shown.text
                    await shown.open(ticket.id)
                    await shown.pilot.press("c")
                    await shown.until(lambda: isinstance(shown.app.screen, Choice), "it asks whether to cancel")
                    await shown.pilot.press("y")
                    said = [n.message for n in shown.app._notifications]
                    await shown.until(
                        lambda: any("role" in n.message for n in shown.app._notifications), f"a viewer may not: {said}"
                    )
                    assert (await TicketDB(database).get_ticket(ticket.id)).status is TicketStatus.OPEN


async def test_a_journal_is_read_on_after_a_restart_of_the_server_without_a_lost_or_doubled_line(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store.db"
    with served(store) as first:
        async with Database.open(str(store)) as database, Client(first.url, first.tokens[Role.VIEWER]) as client:
            ticket = await TicketDB(database).open_ticket("disk", "full")
            assert ticket.id is not None
            work = await attempt(database, ticket.id)

            async def note(*numbers: int) -> None:
                for n in numbers:
                    await work.journal.append(Draft(EntryKind.NOTE, f"line-{n:03}"))

            await note(*range(20))
            async with terminal(client) as shown:
                await shown.open(ticket.id)
                await shown.until(lambda: "line-019" in shown.text, "what was there is shown")
                await asyncio.to_thread(first.stop)
                await note(*range(20, 40))
                await shown.until(lambda: "not live: " in shown.text, "it is said that it is not live")
                with served(store, tokens=first.tokens, port=first.port):
                    await note(*range(40, 60))
                    await shown.until(lambda: "line-059" in shown.text, "it was caught up with")
                    lines = [line[-8:] for line in shown.text.splitlines() if "line-" in line]
                    assert lines == [f"line-{n:03}" for n in range(60)]
                    await shown.until(lambda: "not live" not in shown.text, "it is live again")


# ---- approvals


async def asks(database: Database, name: str, arguments: dict[str, Any], *, expire_s: float = 600.0) -> Approval:
    """A ticket whose agent waits for a word about a call."""
    ticket = await TicketDB(database).open_ticket(name, f"{name} is not well", severity="critical", labels={"at": "eu"})
    assert ticket.id is not None
    work = await attempt(database, ticket.id, f"box-{name}")
    approvals = Approvals(database)
    await approvals.ask(work.journal, [Asked("call", "shell", arguments, "it is shared")], ["call"], expire_s)
    (found,) = await approvals.listed(ticket_id=ticket.id)
    assert await approvals.park(work.claim, found.id)
    return found


async def answered(database: Database, asked: Approval) -> tuple[str, str | None, str | None]:
    found = await Approvals(database).get(asked.id)
    return found.state, found.note, found.answered_by


@pytest.mark.parametrize("width", [20, 76, 200])
def test_what_stands_on_the_next_line_does_not_look_like_ours(width: int) -> None:
    """A terminal would put it at the beginning of a line, where our own words stand."""
    lies = "why      rule 1 of [approvals] allows such calls"
    pieces = list(folded([f"  │ {'x' * (width - 4)}{lies}", f"ticket   {'日' * width}{lies}", ""], width))
    assert all(cell_len(piece) <= width for piece in pieces)
    assert not any(piece.startswith("why") for piece in pieces)
    assert "".join(piece.removeprefix("  │ ").strip() for piece in pieces).count("日") == width
    assert pieces[-1] == ""


@pytest.mark.parametrize(("key", "state"), [("y", "approved"), ("n", "denied")])
async def test_a_call_is_shown_whole_and_answered(tmp_path: Path, key: str, state: str) -> None:
    command = "certbot renew\x1b]0;\nrm -rf /srv\x07\n" + "\n".join(f"step {n}" for n in range(40)) + "\nthe end"
    async with open_api(str(tmp_path / "store.db")) as api:
        asked = await asks(api.database, "cert", {"command": command, "why\n  hash     0000": HOSTILE})
        async with terminal(api, size=(80, 24)) as shown:
            await shown.pilot.press("a")
            await shown.until(lambda: isinstance(shown.app.screen, ApprovalsScreen), "the calls are shown")
            await shown.until(lambda: "1 call waits" in shown.text and "  │ the end" in shown.text, "the call is shown")
            text = shown.text
            for words in ("it is shared", "(critical) cert: cert is not well", "labels   at=eu", asked.arguments_hash):
                assert words in text
            # A terminal escape must not hide what would be executed, nor may a name look like a line of ours.
            assert "  │ certbot renew\\x1b]0;\n  │ rm -rf /srv\\x07\n  │ step 0\n" in text
            assert not set(text) & set("\x1b\x07\u202e\u200b")
            assert [line for line in text.splitlines() if line.startswith(("hash", "  hash"))] == [
                f"hash     {asked.arguments_hash}"
            ]
            call = shown.app.screen.query_one("#call", VerticalScroll)
            await shown.pilot.press("d", "pagedown", "pagedown")
            await shown.until(lambda: call.scroll_y > 0, "one can read on")
            await shown.pilot.press(key, "escape")
            await shown.until(lambda: isinstance(shown.app.screen, ApprovalsScreen), "nothing was said")
            assert (await answered(api.database, asked))[0] == "pending"
            await shown.pilot.press(key)
            await shown.until(lambda: isinstance(shown.app.screen, Question), "it asks for a word")
            assert "certbot renew" in shown.text
            await shown.pilot.press(*"mind", "enter")
            await shown.until(lambda: "Nothing waits for your word" in shown.text, "it is over")
            assert await answered(api.database, asked) == (state, "mind", "ann (api)")
            assert (await TicketDB(api.database).get_ticket(asked.ticket_id)).status is TicketStatus.OPEN


async def test_without_a_word_it_is_answered_too(tmp_path: Path) -> None:
    async with open_api(str(tmp_path / "store.db")) as api:
        asked = await asks(api.database, "cert", {"command": "certbot renew"})
        async with terminal(api) as shown:
            await shown.pilot.press("a")
            await shown.until(lambda: "certbot renew" in shown.text, "the call is shown")
            await shown.pilot.press("y", "enter")
            await shown.until(lambda: "Nothing waits for your word" in shown.text, "it is over")
            assert await answered(api.database, asked) == ("approved", None, "ann (api)")


async def test_the_answer_is_for_the_call_that_was_shown(tmp_path: Path) -> None:
    """Others come and go in the list while somebody reads and types."""
    async with open_api(str(tmp_path / "store.db")) as api:
        asked = await asks(api.database, "first", {"command": "echo first"})
        async with terminal(api) as shown:
            await shown.pilot.press("a")
            await shown.until(lambda: "  │ echo first" in shown.text, "the call is shown")
            urgent = await asks(api.database, "urgent", {"command": "echo urgent"}, expire_s=60)
            await shown.until(lambda: "2 calls wait" in shown.text, "the other one came")
            assert [row.value for row in shown.table.rows] == [urgent.id, asked.id]
            assert "  │ echo first" in shown.text, "another call came before the eyes of whoever reads"
            await shown.pilot.press("y")
            await shown.until(lambda: isinstance(shown.app.screen, Question), "it asks for a word")
            later = await asks(api.database, "later", {"command": "echo later"}, expire_s=30)
            await Approvals(api.database).decide(urgent.id, False)
            await shown.pilot.press("enter")
            await shown.until(lambda: "1 call waits" in shown.text, "it is answered")
            assert [(await answered(api.database, one))[0] for one in (asked, urgent, later)] == [
                "approved",
                "denied",
                "pending",
            ]
            assert "  │ echo later" in shown.text
            await shown.pilot.press("o")
            await shown.until(lambda: isinstance(shown.app.screen, TicketScreen), "its ticket is shown")
            await shown.until(lambda: f"#{later.ticket_id} ■ waiting: approval" in shown.text, "its ticket is shown")


async def test_who_comes_too_late_is_told_who_was_first(tmp_path: Path) -> None:
    async with open_api(str(tmp_path / "store.db")) as api:
        asked = await asks(api.database, "cert", {"command": "certbot renew"})
        async with terminal(api) as shown:
            await shown.pilot.press("a")
            await shown.until(lambda: "certbot renew" in shown.text, "the call is shown")
            await shown.pilot.press("y")
            await Approvals(api.database).decide(asked.id, False, actor="bob (web)")
            await shown.pilot.press("enter")
            await shown.until(
                lambda: any("bob (web) has denied" in n.message for n in shown.app._notifications), "it is said"
            )
            assert (await answered(api.database, asked))[0] == "denied"


@pytest.mark.parametrize("key", ["r", "a"])
async def test_a_ticket_that_waits_for_an_approval_takes_no_message_for_one(house: House, key: str) -> None:
    async with terminal(house.api) as shown:
        await shown.open(house.scene.asking)
        await shown.until(
            lambda: "? may it use shell? certificates are shared" in shown.text, "it says what it waits for"
        )
        assert "· rests ·" in shown.text
        assert "running" not in shown.text, "nobody works on it"
        await shown.pilot.press(key)
        await shown.until(lambda: isinstance(shown.app.screen, ApprovalsScreen), "its call is shown")
        await shown.until(lambda: f"1 call of ticket #{house.scene.asking} waits" in shown.text, "its call alone")
        assert "certbot renew --force-renewal" in shown.text
        await shown.pilot.press("escape", "escape")
        await shown.open(house.scene.waiting)
        await shown.until(lambda: "? May I delete" in shown.text, "the other one is shown")
        await shown.pilot.press("a")
        await shown.pilot.pause()
        assert isinstance(shown.app.screen, TicketScreen), "it waits for an answer, and for no approval"


async def test_a_viewer_sees_the_calls_and_answers_none(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with served(store) as server:
        async with Database.open(str(store)) as database, Client(server.url, server.tokens[Role.VIEWER]) as client:
            asked = await asks(database, "cert", {"command": "certbot renew"})
            async with terminal(client) as shown:
                await shown.pilot.press("a")
                await shown.until(lambda: "  │ certbot renew" in shown.text, "the call is shown over HTTP")
                await shown.pilot.press("y", "enter")
                await shown.until(lambda: any("role" in n.message for n in shown.app._notifications), "it is refused")
            assert (await answered(database, asked))[0] == "pending"


# ---- help


async def test_every_screen_says_what_its_keys_do(house: House) -> None:
    async with terminal(house.api, size=(80, 24)) as shown:

        async def helped(words: list[str]) -> None:
            screen = shown.app.screen
            await shown.pilot.press("question_mark")
            await shown.until(lambda: isinstance(shown.app.screen, Help), "the help is shown")
            lines = shown.text.splitlines()
            keys = [line.split("  ")[0] for line in lines[1 : lines.index("")]]
            assert keys == words
            assert "■ waiting" in shown.text
            await shown.pilot.press("question_mark")
            await shown.until(lambda: shown.app.screen is screen, "any key closes it")

        await helped(["o ⏎", "a", "/", "f", "j", "k", "r", "?", "q"])
        await shown.open(house.scene.running)
        await helped(["esc", "r", "a", "s", "c", "f", "j", "k", "?", "q"])
        await shown.pilot.press("escape", "a")
        await shown.until(lambda: "certbot" in shown.text, "the calls are shown")
        await helped(["esc", "y", "n", "o ⏎", "j", "k", "d pgdn", "u pgup", "?", "q"])


async def test_what_nobody_can_take_is_said_on_the_board(tmp_path: Path) -> None:
    async with open_api(str(tmp_path / "store.db")) as api:
        await TicketDB(api.database).open_ticket("disk", "full")
        async with terminal(api) as shown:
            await shown.until(lambda: "No worker is running" in shown.text, "it is said")
            await WorkQueue(api.database).register(clock.new_id(), 600.0, "box")
            await shown.until(lambda: "No worker is running" not in shown.text, "somebody is there")


async def test_what_stands_above_a_journal_says_what_was_seen_since_and_leaves_room_for_it(house: House) -> None:
    ticket = await house.api.ticket(house.scene.hostile)
    seen = Observed(said="resolved", by="alerts (intake)", at=clock.now(), detail={"note": HOSTILE})
    huge = ticket.model_copy(update={"observed": seen, "message": HOSTILE * 100_000, "invariant_name": HOSTILE * 100})
    session = await house.api.session(ticket.sessions[0].session_id)
    lines = ticket_facts(huge, session, width=80)
    assert any(line.startswith("since: resolved") and line.endswith("UTC; that proves nothing") for line in lines)
    assert lines[-1].startswith("session ")
    again = session.model_copy(update={"judges": session.session_id})
    assert "judges the work again" in ticket_facts(huge, again, width=80)[-1]
    assert "again" not in lines[-1]
    assert sum(-(-len(line) // 60) for line in lines) <= 14, "it takes the room of the journal"


def entry(kind: str, **more: object) -> EntryView:
    values = {
        "seq": 0,
        "timestamp": clock.now(),
        "entry_type": kind,
        "content": "",
        "prev_hash": "",
        "hash": "",
        **more,
    }
    return EntryView.model_validate(values)


def test_lines_are_bounded_and_harmless() -> None:
    huge = "\n".join(f"{n} {HOSTILE}" for n in range(100_000))
    for kind in ("reasoning", "tool_result", "verdict", "error", "note", "tool_call"):
        lines = list(entry_lines(entry(kind, content=huge, raw_content=huge, tool_name=HOSTILE, exit_code=1)))
        assert 0 < len(lines) < 60
        assert all(len(line.text) < 1000 and "\n" not in line.text for line in lines)
        assert not set("".join(line.text for line in lines)) & {"\x1b", "\u202e", "\r", "\u200b"}
    assert list(entry_lines(entry("message", content="x"))) == []
    (line,) = entry_lines(entry("tool_result", content="", raw_content="", exit_code=0))
    assert "exit 0" in line.text
    assert one_line("a\n\n b\tc ") == "a ⏎ b c"
    assert tail_lines("1\n2\n3\r\n50%\r100%", 2) == ["3", "100%"]
