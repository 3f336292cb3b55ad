"""Every button of the console does what it says, pressed in a real browser.

Those that belong to a story of their own (replay, workers, judging again) are pressed where that story is told.
"""

from __future__ import annotations

import re
from pathlib import Path

from playwright.async_api import Locator, Page, expect

from operator_core.api.approval_links import ApprovalLinks
from operator_core.db.approvals import Approvals
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.tokens import Tokens
from operator_core.model.person import Role
from operator_core.model.ticket import TicketStatus
from operator_core.web import templates
from tests.e2e.test_console_board import House, house, stores

__all__ = ["house", "stores"]

TEMPLATES = Path(templates.__file__).parent / "templates"
STATIC = TEMPLATES.parent / "static"
PRESSED = re.compile(r'(?:\("button", name=|button\(page, )f?"([^"]+)"[^\n]*?\)\.(?:click|dblclick)\(')


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def names() -> set[str]:
    """What is written on the buttons, as the templates and scripts have it."""
    text = "\n".join(path.read_text() for path in sorted(TEMPLATES.glob("*.html")))
    found = set(re.findall(r'\bact\("\w+", "([^"]+)"', text))
    for attributes, inside in re.findall(r"<button\b([^>]*(?:{{[^}]*}}[^>]*)*)>(.*?)</button>", text, re.S):
        if said := re.search(r'aria-label="([^"{]+)"', attributes):
            found.add(said[1])
        elif words := re.findall(r"\"([^\"]+)\"(?= if| else| }})", inside):
            found.update(words)
        elif plain := re.sub(r"{[%{].*?[%}]}|<kbd>.*?</kbd>|<[^>]*>", "", inside, flags=re.S).strip(" ,"):
            found.add(plain.partition(",")[0].strip())
    found.update(re.findall(r'button\.textContent = "([^"]+)"', (STATIC / "page.js").read_text()))
    return found


def test_each_is_pressed_by_a_test() -> None:
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_console_*.py"))
    tests += (Path(__file__).parents[1] / "support" / "browser.py").read_text()
    pressed = {name.partition(" {")[0] for name in PRESSED.findall(tests)}
    assert len(names()) > 20
    assert {name for name in names() if not any(one.startswith(name) for one in pressed)} == set()


async def test_of_a_ticket(house: House) -> None:
    page = await house.window.page(path=f"/tickets/{house.scene.escalated}")
    await button(page, "Reopen").click()
    await expect(page.get_by_text("The ticket is open again")).to_be_visible()
    assert (await house.tickets.get_ticket(house.scene.escalated)).status is TicketStatus.OPEN
    await button(page, "Keep workers away").click()
    await button(page, "Give it back to the workers").click()
    await expect(button(page, "Keep workers away")).to_be_visible()
    assert not (await house.tickets.get_ticket(house.scene.escalated)).held
    await page.goto(f"/tickets/{house.scene.running}")
    await page.get_by_label("Tell it something").fill("Look at the last commit.")
    await button(page, "Send").click()
    await expect(page.get_by_role("status").filter(has_text="The message was stored")).to_be_visible()


async def test_of_a_session_that_asks(house: House) -> None:
    (session,) = await AuditLogDB(house.database).sessions(ticket_id=house.scene.waiting)
    page = await house.window.page(path=f"/sessions/{session.session_id}")
    await page.get_by_label("Your answer").fill("Yes, delete them.")
    await button(page, "Answer").click()
    await expect(page.get_by_role("status").filter(has_text="The answer was stored")).to_be_visible()
    assert (await house.tickets.get_ticket(house.scene.waiting)).status is TicketStatus.OPEN


async def test_of_a_session_that_is_followed(house: House) -> None:
    (session,) = await AuditLogDB(house.database).sessions(ticket_id=house.scene.running)
    page = await house.window.page(path=f"/sessions/{session.session_id}")
    follow = page.get_by_role("button", name="Follow")
    await expect(follow).to_have_attribute("aria-pressed", "true")
    await page.get_by_role("button", name="Follow").click()
    await expect(follow).to_have_attribute("aria-pressed", "false")


async def test_a_call_is_denied_with_a_word(house: House) -> None:
    page = await house.window.page(path="/approvals")
    await page.get_by_label("A word with it").fill("Not before six.")
    await button(page, "Deny").click()
    await expect(page.get_by_role("heading", name="Nothing waits for your word")).to_be_visible()
    found = await Approvals(house.database).get(house.scene.approval)
    assert (found.state, found.note, found.answered_by) == ("denied", "Not before six.", "test operator (console)")


async def test_a_call_is_allowed_by_its_link(house: House) -> None:
    url = await ApprovalLinks(house.database).make(house.scene.approval, house.window.served.url, "ops")
    assert url is not None
    page = await house.window.page(None, url, viewport={"width": 360, "height": 800})
    assert await house.window.violations(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    await button(page, "Allow once").click()
    await expect(page.get_by_text("by somebody (link)")).to_be_visible()
    assert (await Approvals(house.database).get(house.scene.approval)).state == "approved"


async def test_an_incident_is_opened(house: House) -> None:
    page = await house.window.page(path="/submit")
    form = page.get_by_role("form", name="An incident")
    await form.get_by_label("What it is about, in a word").fill("shop")
    await form.get_by_label("What is wrong").fill("The shop does not answer.")
    await button(page, "Open the incident").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("shop")
    assert [t.message for t in await house.tickets.list_tickets() if t.invariant_name == "shop"] == [
        "The shop does not answer."
    ]


async def test_a_token_is_made_copied_and_revoked(house: House) -> None:
    page = await house.window.page(Role.ADMIN, "/settings", permissions=["clipboard-read", "clipboard-write"])
    await page.get_by_label("New token").fill("dashboard")
    await button(page, "Make it").click()
    made = page.get_by_role("status").filter(has_text="never shown again")
    shown = await made.locator("code").inner_text()
    await button(page, "Copy the command").click()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == shown
    found = await Tokens(house.database).check(copied)
    assert found is not None
    assert (found.name, found.created_by) == ("dashboard", "test admin (console)")
    row = page.locator("tr", has_text="dashboard")
    await row.get_by_text("Revoke …").click()
    await page.get_by_role("button", name="Revoke dashboard").click()
    await expect(row).to_contain_text("revoked")
    assert await Tokens(house.database).check(copied) is None


async def test_the_keys_are_shown_and_put_away(house: House) -> None:
    page = await house.window.page()
    await button(page, "Keys").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    assert await house.window.violations(page) == []
    await button(page, "Close").click()
    await expect(page.get_by_role("dialog")).to_be_hidden()


async def test_an_output_is_saved(house: House) -> None:
    (session,) = await AuditLogDB(house.database).sessions(ticket_id=house.scene.verified)
    entries = await AuditLogDB(house.database).entries(session.session_id)
    entry = next(e for e in entries if e.entry_type == "tool_result")
    page = await house.window.page(Role.VIEWER, f"/sessions/{session.session_id}/entries/{entry.seq}")
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Save the text").click()
    assert Path(await (await download.value).path()).read_text() == entry.raw_content
    await page.goto("/audit")
    for form in ("JSON", "Markdown"):
        async with page.expect_download() as download:
            await page.get_by_role("link", name=f"{form} of {session.session_id}", exact=True).click()
        assert Path(await (await download.value).path()).stat().st_size > 100
