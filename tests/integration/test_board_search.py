"""A search of a large store: it may stop early, and then says so; going on misses nothing and repeats nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from operator_core.api.local import LocalApi
from operator_core.config import Settings
from operator_core.db import board
from operator_core.db.engine import Database
from operator_core.model.person import Actor, Role
from operator_core.web.pages import board as board_page
from tests.support.crowd import make_crowd
from tests.support.web import open_web

COUNT = 700


@pytest.fixture
async def api(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalApi]:
    monkeypatch.setattr(board, "_WINDOW", 50)
    await make_crowd(store_url, count=COUNT, entries=20)
    async with Database.open(store_url) as database:
        yield LocalApi(database, Settings(), Actor("test", Role.VIEWER))


async def pages(api: LocalApi, limit: int, within_s: float | None, **wanted: object) -> list[list[int]]:
    """Numbers on each page, to the last one."""
    found, cursor = [], None
    for _ in range(COUNT):
        page = await api.tickets(**wanted, limit=limit, cursor=cursor, within_s=within_s)  # type: ignore[arg-type]
        found.append([ticket.id for ticket in page.items])
        cursor = page.next
        if cursor is None:
            return found
    raise AssertionError("there is no last page")


@pytest.mark.broad
@pytest.mark.parametrize("order", ["attention", "newest"])
@pytest.mark.parametrize(
    "wanted",
    [
        {"search": "disk"},
        {"search": "host-69"},
        {"search": "#7"},
        {"search": "nothing like it"},
        {"label": {"team": "team-3"}},
        {"severity": "critical"},
        {"search": "host", "status": ["resolved"]},
        {"search": "host", "status": ["canceled", "open"]},
        {"search": "host", "needs_me": True},
        {},
    ],
    ids=str,
)
async def test_going_on_finds_what_one_long_look_finds(api: LocalApi, order: str, wanted: dict[str, object]) -> None:
    whole = [number for part in await pages(api, 500, None, order=order, **wanted) for number in part]
    for within_s in (0.0, 60.0):
        parts = await pages(api, 20, within_s, order=order, **wanted)
        assert [number for part in parts for number in part] == whole
    if wanted == {"search": "nothing like it"}:
        assert whole == []
        assert len(await pages(api, 20, 0.0, order=order, **wanted)) > 5, "it stopped, and said where"
        assert len(await pages(api, 20, 60.0, order=order, **wanted)) == 1
    elif not wanted:
        assert sorted(whole) == list(range(1, COUNT + 1))


async def test_a_window_is_one_walk_and_no_wider_than_the_time_allows(api: LocalApi) -> None:
    first = await api.tickets(search="nothing like it", order="newest", within_s=0.0)
    assert first.items == []
    assert board_page._unsearched(first, "newest") == COUNT + 1 - 50
    in_time = await api.tickets(search="nothing like it", order="newest", within_s=60.0)
    assert in_time.next is None


async def test_what_needs_people_is_searched_before_the_time_counts(api: LocalApi) -> None:
    whole = await api.tickets(search="host", order="attention", limit=500)
    needed = [t.id for t in whole.items if t.status.value not in ("resolved", "canceled")]
    soon = await api.tickets(search="host", order="attention", limit=500, within_s=0.0)
    assert [t.id for t in soon.items][: len(needed)] == needed
    assert soon.next is not None


async def test_the_page_says_that_it_stopped_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = str(tmp_path / "store.db")
    await make_crowd(store, count=COUNT, entries=20)
    monkeypatch.setattr(board, "_WINDOW", 300)
    monkeypatch.setattr(board_page, "_SEARCH_S", 0.0)
    async with open_web(store) as web:
        browser = await web.browser(Role.VIEWER)

        async def shown(path: str) -> tuple[str, str | None]:
            html = (await browser.get(path)).text
            found = re.findall(r'href="([^"]+)">Search further back<', html)
            assert len(found) <= 1
            assert not found or ">Next part<" not in html
            return " ".join(re.sub(r"<[^>]+>", " ", html).split()), unescape(found[0]) if found else None

        said, more = await shown("/?q=nothing+like+it")
        assert "Nothing was found up to here Tickets that are not closed were all searched." in said
        assert "closed tickets before #401 were not searched." in said
        assert more is not None
        said, more = await shown(more)
        assert "before #101 were" in said
        assert more is not None
        said, more = await shown(more)
        assert "No ticket is like that" in said
        assert more is None
        said, more = await shown("/?q=nothing+like+it&order=newest")
        assert ": tickets before #401 were not searched." in said
        assert "not closed" not in said
        assert more is not None
        said, more = await shown("/")
        assert "not searched" not in said
        said, more = await shown("/?view=resolved")
        assert "not searched" not in said
