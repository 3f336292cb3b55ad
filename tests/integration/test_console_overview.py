"""Monitor, fleet and costs as they come from the server: what they say and do, and what they never let through."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from operator_core import clock
from operator_core.config import Settings
from operator_core.db import usage
from operator_core.db.fleet import set_draining
from operator_core.db.queue import WorkQueue
from operator_core.db.schema import agent_sessions, second_looks, tickets, usage_totals, workers
from operator_core.db.tickets import TicketDB
from operator_core.model.monitor import MONITOR_BLIND, Light, MonitorState
from operator_core.model.person import Role
from operator_core.model.ticket import InvariantViolation
from operator_core.web.pages import costs, monitor
from tests.support.scene import HOSTILE, attempt
from tests.support.web import WebSite, open_web

PAGES = ("/monitor", "/fleet", "/costs")


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebSite]:
    settings = Settings.model_validate(
        {
            "subject": [
                {
                    "name": "queue",
                    "workspace": str(tmp_path),
                    "invariant": [
                        {"name": "depth", "severity": "critical", "probe": {"type": "tcp", "port": 1}},
                        {"name": "never-seen", "probe": {"type": "tcp", "port": 1}},
                    ],
                }
            ]
        }
    )
    async with open_web(str(tmp_path / "store.db"), settings) as site:
        yield site


async def look(
    web: WebSite, light: Light, value: str | None, *, back_s: float = 0, key: str = "depth", name: str = ""
) -> None:
    at = clock.now() - timedelta(seconds=back_s)
    began = at if light == "red" else None
    state = MonitorState(key, name or key, light, at, began, (), 0, value, at)
    await TicketDB(web.database).save_monitor_states([state])


async def spend(
    web: WebSite, cost: float, *, back_days: int = 0, unpriced: int = 0, model: str = "opus", name: str = ""
) -> int:
    """A ticket whose session used something on that day."""
    ticket = await TicketDB(web.database).open_ticket(name or f"disk-{clock.new_id()[:6]}", "full")
    work = await attempt(web.database, ticket.id or 0, f"box-{ticket.id}")
    day = clock.iso(clock.now() - timedelta(days=back_days))[:10]
    tokens = {"input_tokens": 10, "output_tokens": 5, "cache_read_tokens": 80, "cache_write_tokens": 10}
    async with web.database.begin() as c:
        await c.execute(
            usage_totals.insert(),
            {
                "session_id": work.session_id,
                "phase": "worker_1",
                "model": model,
                "day": day,
                "ticket_id": ticket.id,
                "calls": 3,
                "cost_usd": cost,
                "unpriced": unpriced,
                **tokens,
            },
        )
        await c.execute(agent_sessions.update().values(counted_seq=agent_sessions.c.head_seq))
    return ticket.id or 0


async def page(web: WebSite, path: str, role: Role = Role.VIEWER) -> str:
    answer = await (await web.browser(role)).get(path)
    assert answer.status_code == 200, answer.text
    assert " style=" not in answer.text
    return answer.text


def words(html: str) -> str:
    """What a person reads."""
    html = re.sub(r"<svg class=\"(?:spark|bars|share)\".*?</svg>", "", html, flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def row_of(html: str, name: str) -> str:
    """The row of a table that has that name in it."""
    return next(row for row in re.findall(r"<tr.*?</tr>", html, re.S) if name in row)


def charts(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg class=\"(?:spark|bars)\".*?</svg>", html, re.S)]


async def test_with_nothing_they_say_what_to_do(tmp_path: Path) -> None:
    async with open_web(str(tmp_path / "store.db")) as web:
        assert "Nothing is under watch" in words(await page(web, "/monitor"))
        assert "No worker is there Nothing waits for one" in words(await page(web, "/fleet"))
        assert "Nothing was spent" in words(await page(web, "/costs"))
        await TicketDB(web.database).open_ticket("disk", "full")
        assert "1 ticket waits for one." in words(await page(web, "/fleet"))


async def test_the_fleet_counts_what_is_to_be_judged_again(web: WebSite) -> None:
    ticket = (await TicketDB(web.database).open_ticket("disk", "full")).id or 0
    await TicketDB(web.database).cancel_ticket(ticket)
    row = {
        "id": "look",
        "ticket_id": ticket,
        "checks_only": False,
        "asked_by": "anna",
        "asked_at": clock.iso(clock.now()),
    }
    async with web.database.begin() as c:
        await c.execute(second_looks.insert(), row)
    assert "No worker is there 1 is to be judged again." in words(await page(web, "/fleet"))
    await WorkQueue(web.database).register("w1", 60.0, "box")
    assert "To be judged again 1" in words(await page(web, "/fleet"))


async def test_the_monitor_shows_what_was_seen_and_never_calls_unknown_green(web: WebSite) -> None:
    await look(web, "green", "3", back_s=120)
    await look(web, "red", "12", back_s=60)
    await look(web, "unknown", "12", back_s=30)
    await look(web, "green", "ok", key="load")
    html = await page(web, "/monitor")
    depth = row_of(html, ">depth<")
    assert "s-unknown" in depth
    assert "s-green" not in depth
    assert "critical" in depth
    assert "queue" in depth
    assert "unknown" in words(depth)
    assert ">12<" not in depth, "the value from before the look that failed is shown as if it were from now"
    (chart,) = charts(depth)
    assert {e.get("class") for e in chart.iter()} >= {"green", "red", "unknown"}
    assert "3 looks" in (chart.get("aria-label") or "")
    assert "ok" in words(row_of(html, ">load<"))
    never = row_of(html, "never-seen")
    assert "never" in words(never)
    assert "s-unknown" in never
    assert html.index("never-seen") < html.index(">load<"), "green stands before unknown"
    assert "2 unknown 1 green" in words(html)


async def test_the_monitor_links_the_ticket_and_says_what_is_old(web: WebSite) -> None:
    now = clock.now()
    ticket = await TicketDB(web.database).create_or_update_ticket(InvariantViolation("depth", "12 wait", now, now))
    await look(web, "red", "12", back_s=4000)
    html = await page(web, "/monitor")
    depth = row_of(html, ">depth<")
    assert f'href="/tickets/{ticket.id}"' in depth
    assert "stale" in words(depth)
    assert (charts(depth)[0].get("aria-label") or "").startswith("Nobody looked in 1 h")
    assert "1 look in 6 h" in (
        charts(row_of(await page(web, "/monitor?hours=6"), ">depth<"))[0].get("aria-label") or ""
    )
    await look(web, "red", "refused", key="monitor-blind:depth", name=MONITOR_BLIND)
    assert "The monitor cannot look at depth" in words(await page(web, "/monitor?hours=<script>"))


async def test_what_nobody_looks_at_any_more_is_not_counted_as_green(web: WebSite) -> None:
    await look(web, "green", "1", key="fresh")
    await look(web, "green", "1", key="old", back_s=121)
    await look(web, "red", "9", key="red", back_s=300)
    html = await page(web, "/monitor")
    assert "1 red 2 unknown 1 stale 1 green" in words(html)
    old = row_of(html, ">old<")
    assert "s-stale" in old
    assert "s-green" not in old
    assert html.index(">old<") < html.index(">fresh<"), "what is stale stands behind what is known to be green"
    red = words(row_of(html, ">red<"))
    assert "red" in red
    assert "stale" in red
    found = (await web.client(Role.VIEWER).get("/api/v1/invariants")).json()
    assert {i["key"]: i["stale"] for i in found if i["light"] != "unknown"} == {
        "fresh": False,
        "old": True,
        "red": True,
    }


async def test_what_is_old_follows_from_the_interval_of_the_monitor(tmp_path: Path) -> None:
    settings = Settings.model_validate({"monitor": {"interval_s": 600}})
    async with open_web(str(tmp_path / "store.db"), settings) as web:
        await look(web, "green", "1", back_s=2390)
        await look(web, "green", "1", back_s=2410, key="old")
        assert "1 stale 1 green" in words(await page(web, "/monitor"))


@pytest.mark.parametrize("hours", [1, 6, 24])
@pytest.mark.parametrize("light", ["red", "unknown"])
async def test_one_bad_look_among_thousands_is_drawn(web: WebSite, hours: int, light: Light) -> None:
    tickets = TicketDB(web.database)
    bad, apart = 0.4 * hours * 3600, hours * 3600 / 600
    for i in range(600):
        ago = 0.9 * hours * 3600 - i * apart
        own: Light = light if abs(ago - bad) < apart / 2 else "green"
        at = clock.now() - timedelta(seconds=ago)
        if own == light or i % 10 == 0:
            await tickets.save_monitor_states([MonitorState("depth", "depth", own, at, None, (), 0, "1", at)])
        await tickets.save_monitor_states([MonitorState("load", "load", "green", at, None, (), 0, "1", at)])
    html = await page(web, f"/monitor?hours={hours}")
    (depth,), (load,) = charts(row_of(html, ">depth<")), charts(row_of(html, ">load<"))
    assert [e.get("class") for e in depth.iter() if e.get("class") in ("red", "unknown") and e.tag != "circle"]
    assert f"1 {light}" in (depth.get("aria-label") or "")
    assert not [e for e in load.iter() if e.get("class") in ("red", "unknown")]


async def test_a_fast_monitor_shows_the_whole_hour(web: WebSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(monitor._BACK, "1", monitor._BACK["1"]._replace(single=30))
    for i in range(60):
        await look(web, "red" if i == 2 else "green", str(i), back_s=3500 - 58 * i)
    (chart,) = charts(row_of(await page(web, "/monitor"), ">depth<"))
    said = chart.get("aria-label") or ""
    assert said.startswith("60 looks in 1 h 00 min: 59 green, 1 red; values from 0 to 59")
    assert len([e for e in chart.iter() if e.get("class") == "red"]) == 1


async def test_what_began_just_now_has_the_whole_chart(web: WebSite) -> None:
    def reds(html: str) -> float:
        (chart,) = charts(row_of(html, ">depth<"))
        return sum(float(e.get("width", "0")) for e in chart.iter() if e.get("class") == "red")

    for back in range(60, 0, -10):
        await look(web, "red", "1", back_s=back)
    short = await page(web, "/monitor")
    assert "The last 10 min" in words(short)
    assert 'id="hours-10m" href="/monitor?hours=10m" aria-current="true"' in short
    assert 'hx-get="/monitor"' in short, "it grows with what is seen"
    assert reds(short) > 5 * reds(await page(web, "/monitor?hours=1")) > 0
    await look(web, "green", "1", back_s=1200, key="load")
    assert "The last 1 h" in words(await page(web, "/monitor"))
    assert "The last 10 min" in words(await page(web, "/monitor?hours=10m"))


async def test_more_invariants_than_a_page_holds_are_behind_a_link(web: WebSite) -> None:
    at = clock.now()
    states = [MonitorState(f"k{n:03}", f"k{n:03}", "green", at, None, (), 0, "1", at) for n in range(130)]
    await TicketDB(web.database).save_monitor_states([*states, states[7]._replace(light="red", violation_key="bad")])
    html = await page(web, "/monitor")
    assert len(charts(html)) == 60
    assert "1 red 2 unknown 130 green" in words(html)
    assert html.index("bad") < html.index("k000")
    assert "1 to 60 of 133" in words(html)
    (after,) = re.findall(r'href="([^"]+)">After<', html)
    html = await page(web, unescape(after))
    assert "61 to 120 of 133" in words(html)
    (after,) = re.findall(r'href="([^"]+)">After<', html)
    assert "121 to 133 of 133" in words(await page(web, unescape(after)))
    assert ">After<" not in await page(web, unescape(after))
    assert "1 to 60 of 133" in words(await page(web, "/monitor?start=99999"))


@pytest.mark.deep
async def test_many_looks_and_many_invariants_make_no_large_page(web: WebSite) -> None:
    at = clock.now() - timedelta(minutes=50)
    tickets = TicketDB(web.database)
    for i in range(200):
        moment = at + timedelta(seconds=i)
        light: Light = "red" if i % 2 else "green"
        await tickets.save_monitor_states(
            [MonitorState(f"k{n}", f"k{n}", light, moment, None, (), 0, str(i), moment) for n in range(40)]
        )
    html = await page(web, "/monitor?hours=24")
    assert len(charts(html)) == 42
    assert len(html) < 400_000


async def test_the_fleet_shows_who_works_and_who_does_not(web: WebSite) -> None:
    queue = WorkQueue(web.database)
    await queue.register("w-idle", 600, "alpha", 2)
    await queue.register("w-gone", 600, "gone-box", 2)
    await queue.register("w-drain", 600, "drain-box", 4)
    ticket = await TicketDB(web.database).open_ticket("disk", "full")
    await attempt(web.database, ticket.id or 0, "busy-box")
    await set_draining(web.database, "w-drain", True)
    async with web.database.begin() as c:
        await c.execute(workers.update().where(workers.c.id == "w-gone").values(lease_until=1))
    html = await page(web, "/fleet")
    assert "idle" in words(row_of(html, "alpha"))
    assert "0 of 2" in words(row_of(html, "alpha"))
    assert "gone" in words(row_of(html, "gone-box"))
    assert "ran out" in words(row_of(html, "gone-box"))
    assert "draining" in words(row_of(html, "drain-box"))
    busy = row_of(html, "busy-box")
    assert "working" in words(busy)
    assert f'href="/tickets/{ticket.id}"' in busy
    assert '<form method="post" action="/fleet' not in html, "a viewer has no buttons"


async def test_an_administrator_drains_with_a_form(web: WebSite) -> None:
    queue = WorkQueue(web.database)
    await queue.register("w1", 600, "alpha", 2)
    await TicketDB(web.database).open_ticket("disk", "full")
    browser = await web.browser(Role.ADMIN)
    html = (await browser.get("/fleet")).text
    assert 'action="/fleet/w1/drain"' in html
    form = {"csrf": await web.csrf(browser), "draining": "true"}
    answer = await browser.post("/fleet/w1/drain", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/fleet?said=drained")
    html = (await browser.get(answer.headers["location"])).text
    assert "The worker ends what it has and takes nothing new." in html
    assert "All workers are draining" in words(html)
    assert await queue.claim("w1", name="alpha") == []
    answer = await browser.post("/fleet/w1/drain", data={**form, "draining": "false"})
    assert answer.headers["location"] == "/fleet?said=undrained"
    assert len(await queue.claim("w1", name="alpha")) == 1
    assert (await browser.post("/fleet/nobody/drain", data=form)).status_code == 404
    assert (await browser.post("/fleet/w1/drain", data={"draining": "true"})).status_code == 403
    assert (await browser.post("/fleet/w1/drain", data={**form, "draining": "perhaps"})).status_code == 422
    operator = await web.browser(Role.OPERATOR)
    answer = await operator.post("/fleet/w1/drain", data={"csrf": await web.csrf(operator), "draining": "true"})
    assert answer.status_code == 403


async def test_costs_add_up_by_day_and_by_what_they_were_for(web: WebSite) -> None:
    dear = await spend(web, 12.0, model="opus")
    cheap = await spend(web, 3.0, back_days=2, model="haiku")
    await spend(web, 100.0, back_days=40)
    html = await page(web, "/costs")
    said = words(html)
    assert "Spent $15.00" in said
    assert "80 %" in said
    assert html.index(f"/tickets/{dear}") < html.index(f"/tickets/{cheap}")
    (chart,) = charts(html)
    assert (chart.get("aria-label") or "").endswith("$15.00 in all")
    bars = list(chart.iter("g"))
    assert len(bars) == 30, "a day on which nothing was spent is a day too"
    heights = [float(g[1].get("height") or 0) for g in bars]
    assert heights[29] == pytest.approx(4 * heights[27], rel=0.02)
    assert sum(h > 0 for h in heights) == 2
    by_model = words(await page(web, "/costs?by=model&days=90"))
    assert "Spent $115.00" in by_model
    assert "opus $112.00" in by_model
    assert "haiku $3.00" in by_model
    assert "worker_1" in words(await page(web, "/costs?by=phase"))
    day = clock.iso()[:10]
    assert f"{day} $12.00" in words(await page(web, "/costs?by=day&days=7"))
    assert "Spent $15.00" in words(await page(web, "/costs?by=nonsense&days=-1"))


async def test_where_adding_up_takes_a_while_the_page_says_so_and_comes_back(
    web: WebSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_A_MANY", usage._A_MANY.offset(0))
    monkeypatch.setattr(costs, "_PATIENCE_S", 0.0)
    await spend(web, 12.0)
    answer = await (await web.browser(Role.VIEWER)).get("/costs?by=model&days=90")
    assert answer.status_code == 200
    assert "What was spent in the last 90 days is added up" in words(answer.text)
    assert "Spent" not in words(answer.text)
    again = answer.headers["refresh"].removeprefix("0; url=")
    html = await page(web, again)
    assert "Spent $12.00" in words(html)
    assert "opus $12.00" in words(html)
    assert "wait=1" not in html, "only this page waits"


async def test_what_a_repair_costs_counts_also_the_tickets_that_are_not_listed(web: WebSite) -> None:
    for _ in range(102):
        await spend(web, 1.0)
    async with web.database.begin() as c:
        await c.execute(tickets.update().values(status="resolved", reason="verified"))
    for by in ("ticket", "model"):
        assert "For each verified repair $1.00 102 verified" in words(await page(web, f"/costs?by={by}"))


async def test_a_price_that_is_not_known_is_said(web: WebSite) -> None:
    await spend(web, 2.0, unpriced=1)
    html = await page(web, "/costs")
    assert "Spent ≥ $2.00" in words(html)
    assert "The price of 1 call is not known" in words(html)
    (bar,) = [g for g in charts(html)[0].iter("g") if g.get("class") == "bar open"]
    assert "at least $2.00" in "".join(bar.itertext())


async def test_hostile_texts_stay_texts(web: WebSite) -> None:
    await look(web, "red", HOSTILE, key=HOSTILE, name=HOSTILE)
    await look(web, "red", HOSTILE, key=f"monitor-blind:{HOSTILE}", name=MONITOR_BLIND)
    await WorkQueue(web.database).register("w1", 600, HOSTILE)
    await spend(web, 1.0, model=HOSTILE, name=HOSTILE)
    for path in (*PAGES, "/costs?by=model", "/monitor?hours=24"):
        html = await page(web, path, Role.ADMIN)
        assert "<script>document" not in html
        assert "<img src=x" not in html
        assert "\x1b" not in html
        assert "\u202e" not in html


@pytest.mark.parametrize("path", PAGES)
async def test_htmx_gets_the_part_that_it_puts_in_place(web: WebSite, path: str) -> None:
    await look(web, "green", "1")
    await WorkQueue(web.database).register("w1", 600, "alpha")
    answer = await (await web.browser(Role.VIEWER)).get(path, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "<html" not in answer.text
    assert re.match(r'\s*<div id="(watched|workers|costs)"', answer.text)
