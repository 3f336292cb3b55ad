"""Lists of any length: every row once, in order, whatever happens between two pages, and never by a walk over all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from typing import Any, Literal

import pytest

from operator_core import clock
from operator_core.api.digest import _LINES, _Line
from operator_core.api.local import LocalApi
from operator_core.api.models import TicketView
from operator_core.db.board import ATTENTION
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, NotFound, StoreError
from operator_core.model.entry import Draft
from operator_core.model.person import Role
from operator_core.model.ticket import Reason, TicketStatus
from tests.support.api import open_api, statements
from tests.support.crowd import Crowd, make_crowd
from tests.support.store import start_work
from tests.support.waiting import wait_until_async
from tests.support.web import open_web

Order = Literal["attention", "newest"]


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[LocalApi]:
    async with open_api(store_url) as found:
        yield found


async def all_pages(api: LocalApi, *, limit: int, **wanted: Any) -> list[TicketView]:
    found: list[TicketView] = []
    cursor: str | None = None
    while True:
        page = await api.tickets(limit=limit, cursor=cursor, **wanted)
        assert len(page.items) <= limit
        assert page.items or cursor is None, "a page that was announced is never empty"
        found += page.items
        cursor = page.next
        if cursor is None:
            return found
        assert len(page.items) == limit, "only the last page may be short"


def in_order(crowd: Crowd, order: Order, *statuses: str) -> list[int]:
    if order == "newest":
        return crowd.of(*(statuses or crowd.statuses.values()))
    return [n for group in ATTENTION for n in crowd.of(*group) if not statuses or crowd.statuses[n] in statuses]


@pytest.mark.parametrize("order", ["attention", "newest"])
async def test_pages_show_every_ticket_once_and_in_order(store_url: str, order: Order) -> None:
    crowd = await make_crowd(store_url, count=1030, entries=40)
    async with open_api(store_url) as api:
        found = await all_pages(api, limit=97, order=order)
        assert [t.id for t in found] == in_order(crowd, order)
        some = ("resolved", "queued", "running")
        found = await all_pages(api, limit=50, order=order, status=some)
        assert [t.id for t in found] == in_order(crowd, order, *some)
        mine = await all_pages(api, limit=1, order=order, needs_me=True)
        assert [t.id for t in mine] == in_order(crowd, order, "waiting_for_input", "escalated")
        assert {t.needs for t in mine} == {"answer", "decision"}
        tasks = await all_pages(api, limit=3, order=order, kind="task", severity="info", label={"team": "team-3"})
        assert [t.id for t in tasks] == [n for n in in_order(crowd, order) if n % 10 == 9 and n % 4 == 3 and n % 7 == 3]
        assert len(tasks) > 3
        sessions, cursor = [], None
        while True:
            page = await api.sessions(limit=100, cursor=cursor)
            sessions += [session.ticket_id for session in page.items]
            if (cursor := page.next) is None:
                break
        assert sessions == [n for n in in_order(crowd, "newest") if crowd.statuses[n] not in ("open", "queued")]


@pytest.mark.parametrize("order", ["attention", "newest"])
async def test_what_does_not_move_between_two_pages_is_shown_exactly_once(store_url: str, order: Order) -> None:
    crowd = await make_crowd(store_url, count=520, entries=40)
    async with open_api(store_url) as api:
        db, moved, seen, cursor = TicketDB(api.database), set[int](), list[int](), None
        movable = crowd.of("open", "escalated", "queued", "waiting_for_input")
        while True:
            page = await api.tickets(limit=41, order=order, cursor=cursor)
            seen += [ticket.id for ticket in page.items]
            if (cursor := page.next) is None:
                break
            await db.open_ticket("disk", "a new one, which may be missed")
            for number in movable[len(moved) : len(moved) + 1]:
                await db.cancel_ticket(number)
                moved.add(number)
        assert len(moved) > 5
        still = [number for number in seen if number not in moved and number <= 520]
        assert still == [number for number in in_order(crowd, order) if number not in moved]


async def test_a_row_says_what_is_done_and_what_is_needed(api: LocalApi) -> None:
    running = await start_work(api.database, entries=1)
    command = Draft("tool_call", "shell: ls", tool_name="shell", tool_params={"command": "ls\n  -la"}, phase="worker_2")
    await running.journal.append(command)
    asks = await start_work(api.database)
    asked = Draft("outcome", "blocked: May I?", "May I\nrestart it?", meta={"outcome": "blocked"}, phase="worker_1")
    await asks.journal.append(asked)
    assert await asks.queue.park(asks.claim, asks.claim.wake)
    failed = await start_work(api.database)
    verdict = Draft("verdict", "verified: a lie", body={"kind": "refuted", "why": "it fell again", "clauses": []})
    await failed.journal.append(verdict)
    await failed.queue.finish(
        failed.claim,
        TicketStatus.ESCALATED,
        Reason.REFUTED,
        diagnosis="ESCALATED: refuted:\nit fell again",
        session_id=failed.session_id,
        session_status="escalated",
    )
    rows = (await api.tickets(order="attention")).items
    said = [(t.id, t.status, t.needs, t.phase, t.doing, t.verdict) for t in rows]
    assert said == [
        (2, "waiting_for_input", "answer", "worker_1", "May I restart it?", None),
        (3, "escalated", "decision", None, "it fell again", "refuted"),
        (1, "running", None, "worker_2", "ls -la", None),
    ]
    board = await api.board()
    assert (board.needs_me, board.workers) == (2, 3)
    assert board.counts == {"waiting_for_input": 1, "escalated": 1, "running": 1}
    (page,) = [await api.ticket(2)]
    assert page.question == "May I\nrestart it?"
    at_work = {worker.id: worker.tickets for worker in await api.workers()}
    assert at_work == {running.claim.worker: [1], asks.claim.worker: [], failed.claim.worker: []}


async def test_search_means_the_letters_that_were_typed(api: LocalApi) -> None:
    db = TicketDB(api.database)
    await db.open_ticket("disk", "the disk is full", labels={"state": "New York"})
    await db.open_ticket("cpu", "at 100% for an hour", labels={"team": "blue", 'we"ird': 'a"b'})
    await db.open_ticket("a_b", "\N{GREEK SMALL LETTER OMEGA} is wrong", labels={"team": "blu"})
    await db.open_ticket("axb", 'C:\\temp, and "x" with limit=5', labels={"say": '"x"'})
    for search, found in SEARCHES:
        assert [t.id for t in (await api.tickets(search=search)).items] == found, search
        assert [t.id for t in (await api.tickets(search=search, order="attention")).items] == found, search


SEARCHES: list[tuple[str, list[int]]] = [
    ("disk", [1]),
    ("DISK full", [1]),
    ("full nothing", []),
    ("100%", [2]),
    ("_b", [3]),
    ("\\", [4]),
    ("'; drop table tickets; --", []),
    ("#3", [3]),
    ("3", [3]),
    ("#99999999999999999999", []),
    ('say "x"', [4]),
    ("blue", [2]),
    ("team=blue", [2]),
    ("team=Blue", [2]),
    ("team=blu", [3]),
    ("team=blu*", [3, 2]),
    ("team=", [3, 2]),
    ("eam=blue", []),
    ("team=blue #2", [2]),
    ("team=blue #3", []),
    ('state="New York"', [1]),
    ('state="new york" disk', [1]),
    ('state="York"', []),
    ("state=New", []),
    ("state=100%", []),
    ("=blue", []),
    ("limit=5", [4]),
    ('"', [4, 2]),
    ('x="', []),
    ("   ", [4, 3, 2, 1]),
    ("\N{GREEK SMALL LETTER OMEGA}", [3]),
]


async def test_a_label_is_its_name_and_its_whole_value(api: LocalApi) -> None:
    db = TicketDB(api.database)
    await db.open_ticket("a", "m", labels={"team": "blue", 'we"ird': 'a"b'})
    await db.open_ticket("b", "m", labels={"team": "blues", "x": '"team":"red"'})
    for wanted, found in (
        ({"team": "blue"}, [1]),
        ({"team": "Blue"}, []),
        ({"team": "red"}, []),
        ({'we"ird': 'a"b', "team": "blue"}, [1]),
        ({"team": "blue%"}, []),
        ({"x": '"team":"red"'}, [2]),
    ):
        assert [t.id for t in (await api.tickets(label=wanted)).items] == found, wanted
    assert (await api.ticket(1)).labels == {"team": "blue", 'we"ird': 'a"b'}


async def test_arguments_from_outside_are_refused_with_a_sentence(api: LocalApi) -> None:
    for wanted in (
        {"status": ["gone"]},
        {"kind": "bug"},
        {"order": "random"},
        {"limit": 0},
        {"limit": 10**9},
        {"search": "x" * 1000},
        {"search": "a b c d e f g h i j"},
        {"search": "\0"},
        {"search": "\ud800"},
        {"severity": "\0"},
        {"label": {"a": "\ud800"}},
        {"cursor": "nonsense"},
    ):
        with pytest.raises(ConfigError):
            await api.tickets(**wanted)
    for number in (0, -1, 2**31, 10**30):
        with pytest.raises(NotFound):
            await api.ticket(number)
        with pytest.raises(NotFound):
            await api.cancel(number)
    for name in ("", "\0", "\ud800", "x" * 10_000, "../../etc/passwd", "'"):
        with pytest.raises(NotFound):
            await api.session(name)
        with pytest.raises(NotFound):
            await api.entries(name)
        with pytest.raises(NotFound):
            await api.audit(session_id=name)
    with pytest.raises(NotFound):
        await api.session("2026-01-01T00-00-00-00000000")
    with pytest.raises(ConfigError):
        await api.costs("moon")  # type: ignore[arg-type]


async def test_a_page_asks_as_many_questions_for_two_rows_as_for_many(store_url: str) -> None:
    await make_crowd(store_url, count=300, entries=40)
    async with open_api(store_url) as api:
        counts = []
        await api.tickets()
        for limit in (2, 200):
            with statements(api.database) as asked:
                await api.tickets(limit=limit)
            counts.append(len(asked))
        assert counts[0] == counts[1] <= 5


async def test_nothing_is_found_by_walking_over_all_rows(tmp_path: Any) -> None:
    """Each statement of a page or of a session's screen goes along an index, as SQLite itself says."""
    store = str(tmp_path / "operator.db")
    crowd = await make_crowd(store, count=600, entries=2000)
    async with open_api(store) as api:
        with statements(api.database) as asked:
            await api.board()
            page = await api.tickets(order="attention")
            await api.tickets(order="attention", cursor=page.next)
            await api.tickets(status=["resolved", "canceled"])
            await api.ticket(600)
            await api.sessions()
            await api.session(crowd.long_session)
            await api.entries(crowd.long_session, after=1000)
            await api.entries(crowd.long_session, kinds=["verdict", "error"])
            await api.ticks(crowd.long_session)
    assert len(asked) > 30
    walks = []
    with closing(sqlite3.connect(store)) as connection:
        for statement, parameters in asked:
            for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters):
                if step.startswith("SCAN") and step.split()[1] in ("tickets", "agent_sessions", "agent_log_entries"):
                    walks.append((step, statement))
                # A part of the index alone says nothing: all entries of a session would be walked along it, too.
                if "(session_id=?)" in step and "agent_log_entries" in step and "_failed" not in step:
                    walks.append((step, statement))
    allowed = "SCAN tickets USING COVERING INDEX idx_tickets_status"
    assert [walk for walk in walks if walk[0] != allowed] == []


async def test_digests_are_read_one_after_the_other(api: LocalApi) -> None:
    """One over a year reads most of the ledger; many at once would leave the server no time for anything else."""
    since, line = clock.now() - timedelta(days=7), _LINES.setdefault(api.database, _Line())
    async with line.turn:
        same = [asyncio.create_task(api.as_(api.actor).digest(since)) for _ in range(50)]
        others = [asyncio.create_task(api.digest(since - timedelta(days=n))) for n in (1, 2, 3)]
        done, _ = await asyncio.wait([*same, *others], timeout=0.5)
        assert not done
        with pytest.raises(StoreError, match="ask again"):
            await api.digest(since - timedelta(days=4))
        same.pop(0).cancel()
        opened = await TicketDB(api.database).open_ticket("disk", "full")
    found = await asyncio.gather(*same)
    assert all(one is found[0] for one in found), "it was made more than once"
    assert (found[0].opened, opened.id) == (1, 1), "it knows what happened before it was begun"
    await asyncio.gather(*others)
    assert (await api.digest(since)) is not found[0]
    assert not line.waiting


async def test_a_crowd_that_asks_for_a_digest_is_answered_together(store_url: str) -> None:
    async with open_web(store_url) as web:
        client, line = web.client(Role.VIEWER), _LINES.setdefault(web.database, _Line())
        async with line.turn:
            asking = [asyncio.create_task(client.get("/api/v1/digest")) for _ in range(20)]
            await wait_until_async(lambda: line.waiting)
            for n in range(1, 5):
                path = f"/api/v1/digest?since={(clock.now() - timedelta(days=n)).date()}T00:00:00Z"
                asking.append(asyncio.create_task(client.get(path)))
            done, _ = await asyncio.wait(asking[20:], timeout=20, return_when=asyncio.FIRST_COMPLETED)
            refused = done.pop().result()
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        answers = await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers[:20]} == {200}
    assert len({answer.content for answer in answers[:20]}) <= 2  # another minute may have begun meanwhile
