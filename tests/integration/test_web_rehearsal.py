"""A server has done what its first visitors would wait for, and starts also when that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from operator_core.db.engine import Database
from operator_core.model.person import Role
from operator_core.web import rehearsal
from operator_core.web import serve as serving
from operator_core.web.app import ROUTERS
from operator_core.web.rehearsal import rehearse
from operator_core.web.site import Site, make_site
from operator_core.web.templates import environment
from tests.support import wait_until_async
from tests.support.scene import furnish
from tests.support.store import column_of
from tests.support.web import open_web, web_settings

PAGES = [route for router in ROUTERS for route in router.routes]


async def test_all_templates_are_compiled(tmp_path: Path) -> None:
    environment.cache_clear()
    async with open_web(tmp_path / "operator.db") as web:
        await furnish(web.database)
        await rehearse(web.site, PAGES)
        jinja = environment()
        assert jinja.cache is not None
        compiled = {name for _, name in jinja.cache}
        assert compiled == set(jinja.list_templates())


async def test_a_store_that_cannot_be_read_is_told_where_it_is_asked(tmp_path: Path) -> None:
    store = tmp_path / "operator.db"
    async with open_web(store) as web:
        await column_of(str(store), "DROP TABLE monitor_states")
        await rehearse(web.site, PAGES)
        assert (await web.client(Role.VIEWER).get("/api/v1/invariants")).status_code >= 500
        assert (await web.client(Role.VIEWER).get("/api/v1/tickets")).status_code == 200


async def test_what_comes_first_compiles_nothing_any_more(tmp_path: Path) -> None:
    async with open_web(tmp_path / "operator.db") as web:
        scene = await furnish(web.database)
        await rehearse(web.site, PAGES)
        compiled: Any = web.database._ro.sync_engine._compiled_cache
        known = set(compiled)
        client = web.client(Role.VIEWER)
        newest = (await web.site.api.sessions(limit=1)).items[0]
        own = f"/sessions/{newest.session_id}"
        paths = ["/", "/?order=newest", "/monitor", "/monitor?hours=24", "/fleet", "/approvals", "/audit", "/settings"]
        paths += ["/submit", own, f"{own}?at=0", f"{own}/replay", f"{own}/replay/ticks", f"/tickets/{newest.ticket_id}"]
        for path in paths:
            answer = await client.get(path, headers={"Accept": "text/html"})
            assert answer.status_code == 200, path
        fresh = [str(key[1]) for key in set(compiled) - known]
        assert len(known) > 30
        assert fresh == [], scene


async def test_a_server_answers_while_it_rehearses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = asyncio.Event()

    async def for_ever(site: Site, *others: object) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(serving, "rehearse", for_ever)
    monkeypatch.setattr(serving, "_REHEARSAL_S", 1.0)
    settings = web_settings(tmp_path / "operator.db")
    async with Database.open(settings.store.url) as database:
        listener, stop, lines = serving.listen("127.0.0.1", 0), asyncio.Event(), list[str]()
        url = serving.address_of(listener)
        task = asyncio.create_task(serving.serve(make_site(settings, database), stop, lines.append, listener=listener))
        async with httpx2.AsyncClient(base_url=url) as client:
            await began.wait()
            assert (await client.get("/livez")).status_code == 200
            assert lines == []
            await wait_until_async(lambda: bool(lines), 20)
            assert lines == [f"Console and API at {url}"]
        stop.set()
        await asyncio.wait_for(task, 20)


async def test_a_server_that_is_ended_while_it_rehearses_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def for_ever(site: Site, *others: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(serving, "rehearse", for_ever)
    monkeypatch.setattr(serving, "_REHEARSAL_S", 60.0)
    settings = web_settings(tmp_path / "operator.db")
    async with Database.open(settings.store.url) as database:
        stop, lines = asyncio.Event(), list[str]()
        task = asyncio.create_task(serving.serve(make_site(settings, database), stop, lines.append))
        await asyncio.sleep(0)
        stop.set()
        await asyncio.wait_for(task, 20)
        assert lines == []


async def test_who_is_being_answered_goes_first_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_web(tmp_path / "operator.db") as web:
        compiled: Any = web.database._ro.sync_engine._compiled_cache
        busy = True
        task = asyncio.create_task(rehearse(web.site, PAGES, lambda: busy))
        await wait_until_async(lambda: len(compiled) >= 2, 20)
        await asyncio.sleep(0.2)
        assert len(compiled) < 6, "it went on"
        busy = False
        await asyncio.wait_for(task, 30)
        assert len(compiled) > 15
        monkeypatch.setattr(rehearsal, "_TURN_S", 0.0)
        await asyncio.wait_for(rehearse(web.site, PAGES, lambda: True), 30)
