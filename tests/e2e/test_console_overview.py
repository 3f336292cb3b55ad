"""Monitor, fleet and costs in a real browser at a real server: live, by keyboard, on a phone, without scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import expect

from operator_core import clock
from operator_core.db.engine import Database
from operator_core.db.queue import WorkQueue
from operator_core.db.schema import agent_sessions, usage_totals
from operator_core.db.tickets import TicketDB
from operator_core.db.tokens import Tokens
from operator_core.model.monitor import Light, MonitorState
from operator_core.model.person import Role
from operator_core.model.ticket import InvariantViolation
from tests.support.browser import Window, browsing
from tests.support.scene import HOSTILE, attempt
from tests.support.web import served

PAGES = ("/monitor", "/fleet", "/costs")


class House(NamedTuple):
    """A store with something to show, a server on it, and a browser."""

    database: Database
    window: Window


async def look(database: Database, light: Light, value: str | None, *, back_s: float = 0, key: str = "depth") -> None:
    at = clock.now() - timedelta(seconds=back_s)
    state = MonitorState(key, key, light, at, at if light == "red" else None, (), 0, value, at)
    await TicketDB(database).save_monitor_states([state])


async def fill(database: Database) -> None:
    for back in range(60, 0, -1):
        light: Light = "red" if 20 < back < 30 else "unknown" if 40 < back < 50 else "green"
        await look(database, light, str(back % 7), back_s=50 * back)
    await look(database, "red", HOSTILE, key=HOSTILE)
    await look(database, "unknown", None, key="disk")
    await WorkQueue(database).register("w-alpha", 3600, "alpha", 4)
    now = clock.now()
    ticket = await TicketDB(database).create_or_update_ticket(InvariantViolation("depth", "12 wait", now, now))
    work = await attempt(database, ticket.id or 0, HOSTILE[:80])
    tokens = dict.fromkeys(("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"), 1000)
    rows = [
        {
            "session_id": work.session_id,
            "phase": "worker_1",
            "model": "opus",
            "day": clock.iso(clock.now() - timedelta(days=back))[:10],
            "ticket_id": ticket.id,
            "calls": 3,
            "cost_usd": 1.0 + back % 5,
            "unpriced": int(back == 4),
            **tokens,
        }
        for back in range(0, 30, 2)
    ]
    async with database.begin() as c:
        await c.execute(usage_totals.insert(), rows)
        await c.execute(agent_sessions.update().values(counted_seq=agent_sessions.c.head_seq))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    store = tmp_path / "store.db"
    async with Database.open(str(store)) as database:
        await fill(database)
        with served(store) as server:
            async with browsing(server) as window:
                yield House(database, window)


@pytest.mark.deep
async def test_the_monitor_follows_and_the_focus_stays(house: House) -> None:
    page = await house.window.page(path="/monitor")
    row = page.locator("tr", has=page.get_by_text("depth", exact=True))
    await expect(row).to_contain_text("green")
    link = row.get_by_role("link")
    await link.focus()
    before = await row.locator("svg").get_attribute("aria-label")
    await look(house.database, "red", "99")
    await expect(row).to_contain_text("99", timeout=20_000)
    await expect(row).to_contain_text("red")
    assert await row.locator("svg").get_attribute("aria-label") != before
    assert await page.evaluate("document.activeElement.tagName") == "A", "a person who used the keyboard lost the place"
    await expect(page.locator("tbody tr").first).to_contain_text("red")


@pytest.mark.deep
async def test_a_server_that_was_away_is_said_and_then_caught_up_with(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with Database.open(str(store)) as database:
        await WorkQueue(database).register("w1", 3600, "alpha", 4)
        with served(store) as first:
            async with browsing(first) as window:
                page = await window.page(path="/fleet")
                await expect(page.locator("tr", has_text="alpha")).to_be_visible()
                first.stop()
                await expect(page.locator("#offline")).to_be_visible(timeout=20_000)
                await WorkQueue(database).register("w2", 3600, "beta", 4)
                with served(store, tokens=first.tokens, port=first.port) as again:
                    await expect(page.locator("tr", has_text="beta")).to_be_visible(timeout=20_000)
                    await expect(page.locator("#offline")).to_be_hidden()
                    (token,) = [t for t in await Tokens(database).list() if t.role is Role.OPERATOR]
                    await Tokens(database).revoke(token.id, by="test")
                    await expect(page.get_by_label("Token")).to_be_visible(timeout=20_000)
                    assert again.url == first.url
                # What htmx writes of the answer to somebody whose token is revoked is meant.
                window.errors = [error for error in window.errors if "Code 401 from /fleet" not in error]


async def test_a_worker_is_drained_and_let_to_take_again(house: House) -> None:
    page = await house.window.page(Role.ADMIN, "/fleet")
    row = page.locator("tr", has_text="alpha")
    await expect(row).to_contain_text("idle")
    await page.get_by_role("button", name="Drain alpha").click()
    await expect(page.get_by_role("status").filter(has_text="takes nothing new")).to_be_visible()
    await expect(row).to_contain_text("draining")
    await page.get_by_role("button", name="Take again alpha").click()
    await expect(row).to_contain_text("idle")
    await WorkQueue(house.database).retire("w-alpha")
    await expect(row).to_have_count(0, timeout=15_000)

    viewer = await house.window.page(Role.OPERATOR, "/fleet")
    await expect(viewer.get_by_role("button", name="Drain")).to_have_count(0)


async def test_everything_is_reached_by_keys(house: House) -> None:
    page = await house.window.page()
    for key, name in (("m", "Monitor"), ("f", "Fleet"), ("c", "Costs")):
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)
    await page.get_by_role("navigation", name="Added up by").get_by_role("link", name="model").click()
    await expect(page.get_by_role("heading", name="By model")).to_be_visible()
    assert "by=model" in page.url
    await expect(page.get_by_role("img", name="Cost by day in the last 30 days: at least")).to_be_visible()


@pytest.mark.broad
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nobody_is_shut_out_and_nothing_is_too_wide(house: House, scheme: str) -> None:
    for width in (360, 1280, 3840):
        options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
        page = await house.window.page(Role.ADMIN, "/monitor", **options)
        for path in PAGES:
            await page.goto(path)
            assert await page.title() != "pwned"
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
            # What axe looks at is the same on a wide screen.
            assert width > 1280 or await house.window.violations(page) == [], path
            styles = await page.evaluate("[...document.querySelectorAll('main [style]')].length")
            assert styles == 0, path
        await page.context.close()


async def test_they_are_read_and_used_without_scripts(house: House) -> None:
    page = await house.window.page(Role.ADMIN, "/monitor", java_script_enabled=False)
    await expect(page.get_by_role("img", name="60 looks in")).to_be_visible()
    await page.get_by_role("link", name="24 h").click()
    await expect(page.get_by_role("columnheader", name="The last 24 h")).to_be_visible()
    await page.goto("/fleet")
    await page.get_by_role("button", name="Drain alpha").click()
    await expect(page.locator("tr", has_text="alpha")).to_contain_text("draining")
