"""The check of the chain from a server: it says what is wrong, and nobody waits for it but those who asked."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from operator_core import clock
from operator_core.api import checking
from operator_core.errors import NotFound, StoreError
from tests.support.api import open_api
from tests.support.crowd import make_crowd
from tests.support.store import finish, start_work


async def test_an_intact_store_is_said_to_be(store_url: str) -> None:
    async with open_api(store_url) as api:
        work = await start_work(api.database, entries=3)
        await finish(work)
        found = await api.audit()
        assert (found.ok, found.sessions, found.entries, found.problems) == (True, 1, 3, [])
        assert "intact: 1 session(s) with 3 entries" in found.summary
        history = (await api.ticket(1)).history
        assert found.head_seq == max(event.seq for event in history)
        one = await api.audit(session_id=work.session_id)
        assert (one.ok, one.head_hash) == (True, found.head_hash)
        with pytest.raises(NotFound):
            await api.audit(session_id="2026-01-01T00-00-00-00000000")


async def test_the_first_altered_row_is_named(tmp_path: Path) -> None:
    store = str(tmp_path / "operator.db")
    async with open_api(store) as api:
        work = await start_work(api.database, entries=5)
        with closing(sqlite3.connect(store)) as connection:
            connection.execute("DROP TRIGGER agent_log_entries_frozen")
            connection.execute("UPDATE agent_log_entries SET raw_content = 'nothing happened' WHERE seq = 2")
            connection.commit()
        found = await api.audit()
        assert not found.ok
        (problem,) = found.problems
        assert (problem["where"], problem["seq"], problem["what"]) == (work.session_id, 2, "altered")
        assert found.summary == problem["sentence"]


async def test_the_loop_goes_on_meanwhile_and_the_result_is_for_all_who_asked(store_url: str) -> None:
    crowd = await make_crowd(store_url, count=500, entries=6000)
    async with open_api(store_url) as api:
        waits: list[float] = []
        asked = [asyncio.create_task(api.audit()) for _ in range(20)]
        while not all(task.done() for task in asked):
            began = clock.monotonic()
            await asyncio.sleep(0.001)
            waits.append(clock.monotonic() - began)
        views = [task.result() for task in asked]
        assert all(view.ok for view in views)
        assert len({view.at for view in views}) == 1, "one check for all of them"
        assert len(waits) > 20, "the loop did not get on meanwhile"
        assert views[0].entries >= crowd.entries
        again = await api.audit()
        assert again.at > views[0].at


async def test_one_who_stops_waiting_does_not_stop_the_check_for_the_others(store_url: str) -> None:
    await make_crowd(store_url, count=50, entries=2000)
    async with open_api(store_url) as api:
        first = asyncio.create_task(api.audit())
        second = asyncio.create_task(api.audit())
        await asyncio.sleep(0.01)
        first.cancel()
        assert (await second).ok
        assert first.cancelled()
        assert not any(checking._RUNNING.get(api.database, {}).values())


async def test_a_store_that_is_gone_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    store = tmp_path / "operator.db"
    async with open_api(str(store)) as api:
        for name in ("operator.db", "operator.db-wal", "operator.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        store.mkdir()
        with pytest.raises(StoreError, match="check the file"):
            await api.audit()
        store.rmdir()
