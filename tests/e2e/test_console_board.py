"""The console in a real browser at a real server: board, ticket, forms, keys, live changes, and who cannot see well."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import Locator, Page, Route, expect
from sqlalchemy import select

from operator_core.db.approvals import Approvals
from operator_core.db.engine import Database
from operator_core.db.schema import agent_sessions
from operator_core.db.tickets import TicketDB
from operator_core.model.person import Role
from operator_core.model.ticket import TicketStatus
from tests.support.browser import Window, browsing
from tests.support.scene import Scene, furnish
from tests.support.web import served


class House(NamedTuple):
    """A furnished store, open here too, a server on it, and a browser."""

    database: Database
    window: Window
    scene: Scene

    @property
    def tickets(self) -> TicketDB:
        return TicketDB(self.database)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scene")


@pytest.fixture
async def house(tmp_path: Path, stores: Path) -> AsyncIterator[House]:
    template, store = stores / "store.db", tmp_path / "store.db"
    if not template.exists():
        async with Database.open(str(template)) as database:
            (stores / "scene").write_text(repr(tuple(await furnish(database))))
    shutil.copy(template, store)
    scene = Scene(*eval((stores / "scene").read_text(), {"__builtins__": {}}))
    with served(store) as server:
        async with Database.open(str(store)) as database, browsing(server) as window:
            yield House(database, window, scene)


async def top_of(row: Locator) -> float:
    """Where a row is in the window, in pixels."""
    box = await row.bounding_box()
    assert box is not None, "the row cannot be seen"
    return box["y"]


async def order(page: Page) -> list[int]:
    """The tickets on the board, from top to bottom."""
    return [int(row) for row in await page.eval_on_selector_all("tr[data-row]", "rows => rows.map(r => r.id.slice(2))")]


# ---- live


async def test_the_board_follows_without_losing_focus_or_place(house: House) -> None:
    page = await house.window.page()
    await page.set_viewport_size({"width": 1100, "height": 420})
    row = page.locator(f"#t-{house.scene.verified}")
    await row.locator("a.go").focus()
    await row.scroll_into_view_if_needed()
    await page.evaluate("scrollTo(0, document.body.scrollHeight)")
    top = await top_of(row)
    element = await row.element_handle()

    opened = await house.tickets.open_ticket("new-one", "this came while somebody was looking", severity="critical")
    await house.tickets.cancel_ticket(house.scene.held)
    await expect(page.locator(f"#t-{opened.id}")).to_contain_text("this came while")
    await expect(page.locator(f"#t-{house.scene.held}")).to_contain_text("canceled")

    assert await page.evaluate("e => e.isConnected", element), "a row that did not change was thrown away"
    assert await page.evaluate("document.activeElement.closest('tr').id") == f"t-{house.scene.verified}"
    assert abs(await top_of(row) - top) < 2, "what a person reads moved away"
    shown = await order(page)
    assert len(shown) == len(set(shown)) == 11


async def test_the_board_keeps_its_filter_and_counts_while_it_follows(house: House) -> None:
    page = await house.window.page(path="/?view=needs")
    badge = page.locator("#badge-needs")
    await expect(badge).to_contain_text("4")
    await expect(page.locator("tr[data-row]")).to_have_count(4)
    await house.tickets.reopen_ticket(house.scene.escalated)
    await expect(page.locator("tr[data-row]")).to_have_count(3)
    await expect(badge).to_contain_text("3")
    await expect(page.locator(".chip[aria-current]")).to_contain_text("Needs you 3")
    for ticket in (house.scene.hostile, house.scene.asking, house.scene.waiting):
        await house.tickets.cancel_ticket(ticket)
    await expect(page.get_by_role("heading", name="Nothing needs you")).to_be_visible()
    await house.tickets.open_ticket("other", "does not belong here")
    assert "view=needs" in page.url


@pytest.mark.deep
async def test_a_server_that_was_away_is_said_and_then_caught_up_with(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with served(store) as first:
        tokens, port = first.tokens, first.port
        async with Database.open(str(store)) as database, browsing(first) as window:
            page = await window.page()
            await expect(page.get_by_role("heading", name="Nothing is going on")).to_be_visible()
            first.stop()
            await expect(page.locator("#offline")).to_be_visible()
            ticket = await TicketDB(database).open_ticket("meanwhile", "opened while the server was away")
            with served(store, tokens=tokens, port=port):
                await expect(page.locator(f"#t-{ticket.id}")).to_be_visible(timeout=20_000)
                await expect(page.locator("#offline")).to_be_hidden()
                assert await order(page) == [ticket.id]
                await page.goto("about:blank")


async def test_what_happens_before_the_stream_begins_is_not_missed(house: House) -> None:
    page = await house.window.page()

    async def late(route: Route) -> None:
        await house.tickets.cancel_ticket(house.scene.held)
        await route.continue_()

    await page.route("**/api/v1/stream*", late, times=1)
    await page.goto("/?view=open")
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    await expect(page.locator(f"#t-{house.scene.held}")).to_have_count(0)


async def test_a_ticket_follows_and_never_eats_what_is_typed(house: House) -> None:
    page = await house.window.page(path=f"/tickets/{house.scene.held}")
    await house.tickets.unhold_ticket(house.scene.held)
    await expect(page.get_by_role("button", name="Keep workers away")).to_be_visible()
    await page.goto(f"/tickets/{house.scene.waiting}")
    await page.get_by_label("Your answer").fill("Yes, and")
    await house.tickets.hold_ticket(house.scene.waiting)
    await expect(page.get_by_text("Something has changed")).to_be_visible()
    assert await page.get_by_label("Your answer").input_value() == "Yes, and"
    await page.get_by_role("button", name="Show it").click()
    await expect(page.get_by_role("button", name="Give it back")).to_be_visible()
    assert await page.get_by_label("Your answer").input_value() == "Yes, and"


# ---- acts


async def test_a_question_is_answered_and_a_call_allowed(house: House) -> None:
    page = await house.window.page()
    await page.get_by_role("link", name="disk").click()
    await expect(page.get_by_role("heading", name="It asks")).to_be_visible()
    await page.get_by_label("Your answer").fill("Yes.")
    await page.get_by_role("button", name="Answer").click()
    await expect(page.get_by_text("The answer was stored")).to_be_visible()
    assert (await house.tickets.get_ticket(house.scene.waiting)).status is TicketStatus.OPEN
    await page.get_by_role("navigation", name="Main").get_by_role("link", name="Approvals").click()
    await expect(page.get_by_text("certbot renew --force-renewal")).to_be_visible()
    await page.get_by_role("button", name="Allow once").click()
    await expect(page.get_by_text("The call is allowed, once")).to_be_visible()
    await expect(page.get_by_role("heading", name="Nothing waits for your word")).to_be_visible()


async def test_work_is_submitted_and_ended_by_hand(house: House) -> None:
    page = await house.window.page()
    await page.get_by_role("link", name="New task").click()
    await page.get_by_label("What is to be done").fill("Make <b>it</b> right")
    await page.get_by_label("Checks", exact=True).fill("pytest -q")
    await page.get_by_role("button", name="Submit the task").dblclick()
    await expect(page.get_by_text("The task is submitted")).to_be_visible()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Make <b>it</b> right")
    assert len([t for t in await house.tickets.list_tickets() if "<b>it</b>" in t.message]) == 1
    await page.get_by_text("Resolve by hand …").click()
    await page.get_by_label("Why is it done?").fill("I did it.")
    await page.get_by_role("button", name="Resolve", exact=True).click()
    await expect(page.get_by_text("recorded as such")).to_be_visible()
    await expect(page.get_by_text("nothing was proved")).to_be_visible()


async def test_a_search_needs_no_return_key_and_is_in_the_address(house: House) -> None:
    page = await house.window.page()
    await page.get_by_role("searchbox").press_sequentially("storage", delay=20)
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    assert "q=storage" in page.url
    await page.get_by_role("searchbox").fill("")
    await expect(page.locator("tr[data-row]")).to_have_count(10)
    await page.get_by_label("Severity").select_option("critical")
    await expect(page.locator("tr[data-row]")).to_have_count(3)
    # By the page, not by the browser, which on a busy machine has not heard of the newest address yet.
    await page.evaluate("history.back()")
    await expect(page.locator("tr[data-row]")).to_have_count(10)


# ---- keys, themes, scripts, sizes, eyes


async def test_everything_is_reached_by_keys(house: House) -> None:
    page = await house.window.page()
    shown = await order(page)
    for _ in range(3):
        await page.keyboard.press("j")
    await page.keyboard.press("k")
    assert await page.evaluate("document.activeElement.closest('tr').id") == f"t-{shown[1]}"
    await page.keyboard.press("o")
    await page.wait_for_url(f"**/tickets/{shown[1]}")
    await page.keyboard.press("g")
    await page.keyboard.press("a")
    await page.wait_for_url("**/approvals")
    await page.keyboard.press("g")
    await page.keyboard.press("b")
    await page.wait_for_url("**/")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.keyboard.press("/")
    await page.keyboard.type("jk/?gb")
    assert await page.get_by_role("searchbox").input_value() == "jk/?gb", "keys in a field are letters"
    await page.keyboard.press("Escape")
    await page.keyboard.press("n")
    await page.wait_for_url("**/submit#prompt")
    await page.goto("/")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()


async def test_keys_lead_to_where_one_goes_on(house: House) -> None:
    page = await house.window.page()
    await page.keyboard.press("n")
    await page.wait_for_url("**/submit#prompt")
    await expect(page.get_by_label("What is to be done")).to_be_focused()
    await page.keyboard.type("n is a letter here")
    assert await page.get_by_label("What is to be done").input_value() == "n is a letter here"

    await page.goto("/approvals?all=1")
    await Approvals(house.database).decide(house.scene.approval, True, actor="somebody else")
    await page.reload()
    await page.keyboard.press("j")
    card = page.locator("section[data-row]").first
    assert await card.evaluate("card => card.contains(document.activeElement)"), "j does not reach the call"
    await page.keyboard.press("o")
    await page.wait_for_url(f"**/tickets/{house.scene.asking}")

    await page.goto("/settings")
    for key in ("j", "j", "k", "o"):
        await page.keyboard.press(key)
    await expect(page.locator("details.section").first).to_have_attribute("open", "")


async def test_who_may_only_look_is_not_led_to_forms(house: House) -> None:
    page = await house.window.page(Role.VIEWER)
    await expect(page.locator("tr[data-row]")).to_have_count(10)
    await expect(page.get_by_role("link", name="New task")).to_have_count(0)
    await page.keyboard.press("n")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await expect(page.get_by_role("dialog").get_by_text("new task")).to_have_count(0)
    assert page.url.endswith("/")


async def test_a_label_is_found_as_it_is_written(house: House) -> None:
    page = await house.window.page()
    await page.get_by_role("searchbox").fill("team=storage")
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    await expect(page.locator(f"#t-{house.scene.waiting}")).to_be_visible()
    await page.get_by_role("searchbox").fill("team=stor")
    await expect(page.get_by_role("heading", name="No ticket is like that")).to_be_visible()
    await page.get_by_role("searchbox").fill("team=stor*")
    await expect(page.locator("tr[data-row]")).to_have_count(1)


async def test_wrong_addresses_still_have_the_way_back(house: House) -> None:
    page = await house.window.page(path="/nowhere")
    await expect(page.get_by_role("heading", name="Not Found")).to_be_visible()
    await page.get_by_role("navigation", name="Main").get_by_role("link", name="Approvals").click()
    await page.wait_for_url("**/approvals")
    await page.goto("/readyz")
    await expect(page.get_by_role("heading", name="This server is ready")).to_be_visible()
    assert await house.window.violations(page) == []
    await page.context.clear_cookies()
    await page.goto("/nowhere")
    await expect(page.get_by_role("navigation", name="Main")).to_have_count(0)
    await page.get_by_role("link", name="Sign in").click()
    await page.wait_for_url("**/login")


SMALL = """() => [...document.querySelectorAll('a, button, summary, select, input:not([type=hidden])')]
    .filter(e => e.checkVisibility({visibilityProperty: true}) && !e.closest('.sr, .skip') && !e.matches('.sr, .skip'))
    .filter(e => !e.matches('.go') && !e.closest('.prose, .empty, h1, label'))
    .filter(e => !(e.matches('p > a') && e.closest('p').textContent.length > 60))
    .map(e => [e, e.getBoundingClientRect()]).filter(([, r]) => r.width < 24 || r.height < 23.5)
    .map(([e, r]) => `${e.outerHTML.slice(0, 90)} ${r.width}x${r.height}`)"""


async def test_a_phone_has_room_for_fingers_and_shows_what_is_beyond_the_edge(house: House) -> None:
    page = await house.window.page(Role.ADMIN, viewport={"width": 375, "height": 800}, has_touch=True)
    scene = house.scene
    async with house.database.read() as connection:
        found = await connection.execute(select(agent_sessions.c.ticket_id, agent_sessions.c.session_id))
        sessions = {row.ticket_id: row.session_id for row in found}
    paths = ["/approvals", "/settings", "/audit", "/fleet", "/monitor", "/costs", "/nowhere", "/submit"]
    paths += [f"/tickets/{n}" for n in (scene.waiting, scene.asking, scene.running, scene.verified, scene.hostile)]
    paths += [f"/tickets/{scene.escalated}/evidence", f"/sessions/{sessions[scene.verified]}", "/"]
    for path in paths:
        await page.goto(path)
        assert await page.evaluate(SMALL) == [], path
        assert await page.evaluate("document.documentElement.scrollWidth") <= 375, path
    # Where one is among the places is in sight, also when the numbers beside them have come.
    await page.goto("/settings")
    await expect(page.locator("#badge-needs")).to_contain_text("4")
    place = page.locator(".places [aria-current]")
    await expect(place).to_have_text("Settings")
    await expect(place).to_be_in_viewport(ratio=1)
    assert await page.locator(".places").evaluate("e => e.scrollWidth > e.clientWidth")
    assert "gradient" in await page.locator(".places").evaluate("e => getComputedStyle(e).backgroundImage")
    assert await page.evaluate("document.documentElement.scrollHeight") < 1600, "the settings do not end"
    # A table is a list of cards, of which nothing is beyond the edge.
    for path in ("/settings", "/audit"):
        await page.goto(path)
        wide = "e => e.scrollWidth > e.clientWidth"
        assert not await page.locator(".scroll").first.evaluate(wide), path
    await page.goto(f"/sessions/{sessions[scene.verified]}/replay?at=2")
    await page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await page.get_by_role("button", name="Play").click(timeout=5000)


async def test_settings_are_folded_and_found(house: House) -> None:
    page = await house.window.page(Role.VIEWER, path="/settings")
    assert await page.locator("details.section[open]").count() == 0
    await page.goto("/settings#s-web")
    await expect(page.get_by_text("web.max_body_bytes")).to_be_visible()
    await page.get_by_role("link", name="Show everything").click()
    await expect(page.get_by_text("limits.turns", exact=True)).to_be_visible()
    assert await house.window.violations(page) == []
    bare = await house.window.page(Role.VIEWER, path="/settings", java_script_enabled=False)
    await bare.get_by_role("heading", name="limits").click()
    await expect(bare.get_by_text("limits.turns", exact=True)).to_be_visible()


async def test_the_inbox_follows_what_others_answer(house: House) -> None:
    page = await house.window.page(path="/approvals")
    await expect(page.get_by_role("button", name="Allow once")).to_be_visible()
    await Approvals(house.database).decide(house.scene.approval, False, actor="somebody else")
    await expect(page.get_by_role("heading", name="Nothing waits for your word")).to_be_visible()
    await expect(page.locator("#badge-approvals")).to_be_empty()


async def test_light_and_dark_are_kept(house: House) -> None:
    page = await house.window.page(color_scheme="light")
    light = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    await page.get_by_role("button", name="Change between light and dark").click()
    await page.reload()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light


async def test_it_can_be_read_and_used_without_javascript(house: House) -> None:
    page = await house.window.page(java_script_enabled=False)
    await expect(page.locator("tr[data-row]")).to_have_count(10)
    await page.get_by_role("searchbox").fill("storage")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    await page.get_by_role("link", name="disk").click()
    await page.get_by_text("Cancel …").click()
    await page.get_by_role("button", name="Cancel the ticket").click()
    await expect(page.get_by_text("The ticket is canceled.")).to_be_visible()
    await expect(page.get_by_role("button", name="copy")).to_be_hidden()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_text("You are signed out.")).to_be_visible()


@pytest.mark.deep
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark"), (3840, "light")])
async def test_every_page_fits_and_is_accessible(house: House, width: int, scheme: str) -> None:
    page = await house.window.page(
        Role.ADMIN, color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    scene = house.scene
    paths = ["/", "/submit", "/approvals?all=1", "/settings", "/nowhere", "/?q=nothing+like+it"]
    paths += [f"/tickets/{n}" for n in (scene.waiting, scene.asking, scene.running, scene.verified, scene.hostile)]
    paths += [f"/tickets/{n}/evidence" for n in (scene.verified, scene.hostile)]
    for path in paths:
        await page.goto(path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than the window"
        assert await page.locator("h1").count() == 1, path
        # What axe looks at is the same on a wide screen.
        assert width > 1280 or await house.window.violations(page) == [], path
    await page.context.clear_cookies()
    await page.goto("/login")
    assert await house.window.violations(page) == []
