"""A session in a real browser: live while an agent works, over a restart of the server, replayed, without scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.async_api import Page, expect
from sqlalchemy import select, text

from operator_core.db.engine import Database
from operator_core.db.schema import inbox
from operator_core.model.entry import Draft
from operator_core.model.person import Role
from operator_core.scripted import Reply, ScriptBrain
from tests.support.browser import Window, browsing
from tests.support.rig import PROPOSE, command, open_rig
from tests.support.store import Work, finish, start_work
from tests.support.waiting import wait_until_async
from tests.support.web import served

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

HOSTILE = "<img src=x onerror=alert(1)> \u202egpj.exe \x1b[31mred\x1b[0m\r\x1b]0;title\x07 " + "x" * 3000


def call(n: int, line: str = "") -> Draft:
    params = {"command": line or f"echo step {n}", "reasoning": "to see whether it holds"}
    return Draft(
        "tool_call", f"shell: {n}", tool_name="shell", tool_params=params, tool_use_id=f"t{n}", phase="worker_1"
    )


def result(n: int, stdout: str = "", code: int = 0) -> Draft:
    raw = json.dumps({"stdout": stdout or f"output {n}\n", "stderr": "", "exit_code": code, "timed_out": False})
    return Draft(
        "tool_result", f"exit {code}", raw, tool_name="shell", exit_code=code, tool_use_id=f"t{n}", phase="worker_1"
    )


def steps(first: int, count: int) -> list[Draft]:
    """Two entries for each of so many calls."""
    return [draft for n in range(first, first + count) for draft in (call(n), result(n))]


async def sequence(page: Page) -> list[int]:
    """The entries on the page, from top to bottom, hidden ones left out."""
    return list(
        await page.eval_on_selector_all(
            "#steps > li", "rows => rows.filter(r => !r.hidden).map(r => Number(r.dataset.seq))"
        )
    )


class Room(NamedTuple):
    """A session that somebody works on, on a server, before a browser."""

    work: Work
    window: Window

    @property
    def path(self) -> str:
        return f"/sessions/{self.work.session_id}"


@asynccontextmanager
async def opened(store: Path, *drafts: Draft) -> AsyncIterator[Room]:
    with served(store) as server:
        async with Database.open(str(store)) as database:
            work = await start_work(database, lease_s=600.0)
            if drafts:
                await work.journal.append(*drafts)
            async with browsing(server) as window:
                yield Room(work, window)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with opened(tmp_path / "store.db", *steps(0, 6)) as made:
        yield made


# ---- live


async def test_a_person_watches_an_agent_work_and_talks_to_it(tmp_path: Path) -> None:
    gate, other = tmp_path / "gate", tmp_path / "other"
    slow = f"echo begun; until test -e {gate}; do sleep 0.05; done; echo 'all done'; exit 7"
    later = f"until test -e {other}; do sleep 0.05; done; touch fixed"
    brain = ScriptBrain(
        [
            Reply(text="I look at the service first.", calls=(command(slow, "to see the log"),)),
            Reply(calls=(command(later, "to mend it"),)),
            PROPOSE,
        ]
    )
    async with open_rig(brain, tmp_path) as rig:
        ticket = await rig.incident()
        with served(tmp_path / "operator.db") as server:
            async with browsing(server) as window:
                working = asyncio.ensure_future(rig.work())
                sessions = await wait_until_async(lambda: rig.audit.sessions(ticket_id=ticket))
                page = await window.page(path=f"/sessions/{sessions[0].session_id}")
                await expect(page.get_by_text("I look at the service first.")).to_be_visible()
                await expect(page.get_by_text("to see the log")).to_be_visible()
                await expect(page.locator(".k-tool-call .command").first).to_contain_text("echo begun")
                # What the command prints is there before it ends, and goes when its result comes.
                await expect(page.locator("#output .out")).to_have_text("begun\n")
                await expect(page.locator(".sandbox").first).to_contain_text("open")
                await page.get_by_label("Tell the agent something").fill("Look at <b>the disk</b>.")
                await page.keyboard.press("Enter")
                await expect(page.get_by_label("Tell the agent something")).to_have_value("")
                gate.touch()
                done = page.locator(".k-tool-result").first
                await expect(done).to_contain_text("all done")
                await expect(done.locator(".exit")).to_have_text("exit 7")
                await expect(page.locator("#output .running")).to_have_count(0)
                await expect(page.locator(".k-note")).to_contain_text("Look at <b>the disk</b>.")
                await expect(page.locator(".k-note")).to_contain_text("test operator (console)")
                other.touch()
                await expect(page.locator("#status")).to_contain_text("completed", timeout=30_000)
                await expect(page.locator(".k-verdict")).to_contain_text("verified")
                await expect(page.get_by_label("Tell the agent something")).to_have_count(0)
                await expect(page.locator(".gauge", has_text="Commands")).to_contain_text("3")
                head = (await rig.audit.session(sessions[0].session_id)).entries
                assert await sequence(page) == list(range(head)), "a line was lost or doubled"
                await working


@pytest.mark.deep
async def test_a_restart_of_the_server_loses_and_doubles_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with served(store) as first:
        tokens, port = first.tokens, first.port
        async with Database.open(str(store)) as database, browsing(first) as window:
            work = await start_work(database, lease_s=600.0)
            await work.journal.append(*steps(0, 5))
            page = await window.page(path=f"/sessions/{work.session_id}")
            await expect(page.locator("#steps > li")).to_have_count(10)
            await work.journal.append(*steps(5, 5))
            await expect(page.locator("#steps > li")).to_have_count(20)
            first.stop()
            await work.journal.append(*steps(10, 120))
            with served(store, tokens=tokens, port=port):
                await expect(page.locator("#steps > li")).to_have_count(260, timeout=30_000)
                await work.journal.append(*steps(130, 5))
                await expect(page.locator("#steps > li")).to_have_count(270)
                assert await sequence(page) == list(range(270))
                await page.goto("about:blank")


async def test_what_could_not_be_sent_is_still_there(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with served(store) as first:
        async with Database.open(str(store)) as database, browsing(first) as window:
            work = await start_work(database, lease_s=600.0)
            page = await window.page(path=f"/sessions/{work.session_id}")
            say, unsent = page.get_by_label("Tell the agent something"), page.locator(".unsent")
            await expect(page.locator("#follow")).to_be_visible()
            first.stop()
            await say.fill("Mind the disk.")
            await say.press("Enter")
            await expect(unsent).to_contain_text("the server is away")
            await expect(say).to_have_value("Mind the disk.")
            with served(store, tokens=first.tokens, port=first.port):
                await say.press("Enter")
                await expect(say).to_have_value("")
                await expect(unsent).to_be_hidden()
                (sent,) = await database.fetch(select(inbox.c.body))
                assert "Mind the disk." in str(sent)
                await page.context.clear_cookies()
                await say.fill("And the memory.")
                await say.press("Enter")
                await expect(unsent).to_contain_text("you are signed out")
                await expect(say).to_have_value("And the memory.")
                await page.goto("about:blank")


async def test_whoever_reads_above_is_left_there_until_he_follows_again(room: Room) -> None:
    page = await room.window.page(path=room.path, viewport={"width": 1100, "height": 500})
    follow = page.get_by_role("button", name="Follow")
    await expect(follow).to_have_attribute("aria-pressed", "true")
    for n in range(6, 26):
        await room.work.journal.append(*steps(n, 1))
    await expect(page.locator("#steps > li")).to_have_count(52)
    assert await page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
    await page.mouse.move(300, 250)
    await page.mouse.wheel(0, -900)
    await expect(follow).to_have_attribute("aria-pressed", "false")
    place = await page.evaluate("scrollY")
    await room.work.journal.append(*steps(26, 10))
    await expect(page.locator("#steps > li")).to_have_count(72)
    assert await page.evaluate("scrollY") == place, "what a person reads moved away"
    await page.keyboard.press("f")
    assert await page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
    await expect(follow).to_have_attribute("aria-pressed", "true")


@pytest.mark.deep
async def test_many_lines_at_once_come_in_order(room: Room) -> None:
    page = await room.window.page(path=room.path)
    for n in range(6, 606, 20):
        await room.work.journal.append(*steps(n, 20))
    await expect(page.locator("#e1211")).to_be_attached(timeout=30_000)
    # The newest thousand stay on the page; where the others are is said.
    assert await sequence(page) == list(range(212, 1212))
    await page.get_by_role("link", name="212 earlier entries").click()
    await expect(page.locator("#e211")).to_be_visible()
    assert await sequence(page) == list(range(112, 212))


async def test_an_end_is_shown_where_one_reads(room: Room) -> None:
    page = await room.window.page(path=room.path)
    await page.get_by_label("Tell the agent something").fill("half a sen")
    await finish(room.work)
    await expect(page.locator("#status")).to_contain_text("completed")
    await expect(page.get_by_role("button", name="Send")).to_have_count(0)


async def test_a_ticket_is_canceled_from_its_session(room: Room) -> None:
    page = await room.window.page(path=room.path)
    await page.get_by_text("Cancel…").click()
    await page.get_by_role("button", name="Cancel the ticket").click()
    await expect(page.get_by_text("The cancellation was stored")).to_be_visible()
    assert (await room.work.tickets.get_ticket(room.work.claim.ticket_id)).cancel_requested


# ---- replay


async def test_a_session_is_replayed_by_scrubber_keys_and_play(tmp_path: Path) -> None:
    drafts = [
        Draft("phase_start", "worker", phase="worker_1", body={"engine": "scripted", "model": "m"}),
        *steps(0, 80),
        call(80),
        result(80, "no such file\n", code=2),
        Draft("error", "it broke", "it broke", phase="worker_1"),
        *steps(81, 80),
        Draft("verdict", "verified", body={"kind": "verified", "why": "seen", "clauses": []}, phase="verify"),
        Draft("snapshot", "kept", "kept", phase="verify"),
        *steps(161, 20),
    ]
    error, verdict, head = 162, 324, len(drafts) - 1
    async with opened(tmp_path / "store.db", *drafts) as room:
        page = await room.window.page(path=f"{room.path}/replay")
        scrub = page.get_by_label("Place in the journal")
        where = page.locator("#where")
        await expect(where).to_contain_text(f"0 of {head}, ")
        assert await sequence(page) == [0]
        await expect(page.locator(".ticks .t-verdict")).to_have_count(1)
        await expect(page.locator(".ticks .t-error")).to_have_count(1)
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("Shift+ArrowRight")
        await expect(where).to_contain_text("11 of ")
        assert await sequence(page) == list(range(12))
        await scrub.fill("250")
        await expect(page.locator(".step.now")).to_have_attribute("data-seq", "250")
        assert await sequence(page) == list(range(100, 251))
        await page.get_by_role("link", name="first error").click()
        await expect(page.locator(".step.now")).to_have_attribute("data-seq", str(error))
        await page.get_by_role("link", name="first change").click()
        await expect(page.locator(".step.now")).to_have_attribute("data-seq", str(verdict + 1))
        await page.keyboard.press("v")
        await expect(page.locator(".step.now")).to_have_attribute("data-seq", str(verdict))
        await page.keyboard.press("c")
        await expect(page.locator(".step.now")).to_have_attribute("data-seq", str(verdict + 1))
        await page.keyboard.press("v")
        await page.wait_for_url(f"**/replay?at={verdict}")
        await page.reload()
        await expect(page.locator(".step.now")).to_have_attribute("data-seq", str(verdict))
        await page.get_by_label("Speed").select_option("50")
        await page.locator("h1").click()
        await page.keyboard.press("Space")
        await expect(page.get_by_role("button", name="Pause")).to_be_visible()
        await expect(where).to_contain_text(f"{head} of {head}", timeout=20_000)
        await expect(page.get_by_role("button", name="Play")).to_be_visible()
        await page.keyboard.press("Home")
        await expect(where).to_contain_text("0 of ")
        await page.goto(room.path)
        await expect(page.locator(".rail li").first).to_contain_text("worker_1")
        await expect(page.locator(".rail [aria-current=step]")).to_have_count(1)


# ---- reading without scripts, every size, every eye


async def test_everything_can_be_read_without_javascript(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db", *steps(0, 110), call(110), result(110, "a line\n" * 60, 1)) as room:
        page = await room.window.page(path=room.path, java_script_enabled=False)
        assert await sequence(page) == list(range(122, 222))
        await page.get_by_role("link", name="122 earlier entries").click()
        assert await sequence(page) == list(range(22, 122))
        await page.get_by_role("link", name="Next entries").click()
        await expect(page.locator("#e221")).to_contain_text("exit 1")
        await page.locator("#e221 summary").click()
        await expect(page.locator("#e221 pre")).to_contain_text("a line")
        await page.get_by_role("link", name="Entry 221").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Entry 221")
        await page.get_by_role("link", name="Previous").click()
        await expect(page.locator("pre").first).to_contain_text("echo step 110")
        await page.get_by_role("link", name="Replay to here").click()
        assert await sequence(page) == list(range(181, 221))
        await page.get_by_label("Entry", exact=True).fill("5")
        await page.get_by_role("button", name="Go").click()
        assert await sequence(page) == list(range(6))
        await page.get_by_role("link", name="One entry ahead").click()
        assert (await sequence(page))[-1] == 6
        await page.goto(room.path)
        await page.get_by_label("Tell the agent something").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("The message was stored")).to_be_visible()


async def test_the_audit_names_the_first_broken_link(room: Room) -> None:
    page = await room.window.page(Role.VIEWER, "/audit")
    await page.get_by_role("button", name="Check now").click()
    await expect(page.get_by_text("The journal is intact")).to_be_visible()
    async with room.work.audit.database.begin() as c:
        await c.execute(text("DROP TRIGGER agent_log_entries_frozen"))
        await c.execute(text("UPDATE agent_log_entries SET raw_content = 'never happened' WHERE seq = 3"))
    await page.get_by_role("button", name="Check again").click()
    await expect(page.get_by_role("heading", name="broken")).to_be_visible()
    await page.get_by_role("link", name="entry 3 of").click()
    await expect(page.get_by_text("never happened")).to_be_visible()
    await page.goto("/audit")
    async with page.expect_download() as download:
        await page.get_by_role("link", name="JSONL of").click()
    saved = await (await download.value).path()
    assert len(Path(saved).read_text().splitlines()) == 12


@pytest.mark.deep
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark"), (3840, "light")])
async def test_every_page_fits_and_is_accessible(tmp_path: Path, width: int, scheme: str) -> None:
    report = {
        "backend": "bubblewrap 0.8.0",
        "level": "open",
        "controls": {"network": {"state": "not_enforced", "how": HOSTILE}, "files": {"state": "verified", "how": "-"}},
    }
    verdict: dict[str, Any] = {"kind": "refuted", "why": HOSTILE, "clauses": []}
    drafts = [
        Draft("sandbox_report", "open", body=report, phase="prepare"),
        Draft("phase_start", HOSTILE, phase="worker_1"),
        Draft("message", "to the agent", HOSTILE),
        Draft("reasoning", HOSTILE, HOSTILE),
        call(1, HOSTILE),
        result(1, HOSTILE, 1),
        call(2),
        result(2, "\n".join(f"\x1b[{30 + n % 8};{40 + n % 8}mcolour {n}\x1b[0m" for n in range(20)), 0),
        Draft("note", "somebody", HOSTILE, meta={"actor": HOSTILE}),
        Draft("error", HOSTILE, HOSTILE),
        Draft("verdict", HOSTILE, body=verdict, phase="verify"),
        Draft("snapshot", HOSTILE, HOSTILE),
    ]
    async with opened(tmp_path / "store.db", *drafts) as room:
        page = await room.window.page(
            color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
        )
        paths = [room.path, f"{room.path}/replay?at=7", "/audit", f"{room.path}?at=0"]
        paths += [f"{room.path}/entries/{seq}" for seq in (0, 4, 5, 7)]
        for path in paths:
            await page.goto(path)
            await page.wait_for_load_state("networkidle") if "replay" in path else None
            await page.eval_on_selector_all("details", "all => all.forEach(d => d.open = !d.matches('.act'))")
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is too wide"
            assert await page.locator("h1").count() == 1, path
            assert await room.window.violations(page) == [], path
