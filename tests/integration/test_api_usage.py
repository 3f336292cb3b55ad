"""What was spent: the sums are those of the journal, whoever counts, however often, and whenever it dies."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operator_core import clock
from operator_core.api.local import LocalApi
from operator_core.api.models import Spent
from operator_core.db import usage
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.retention import prune
from operator_core.db.usage import UsageTotals
from operator_core.model.entry import Draft
from tests.support.api import open_api
from tests.support.store import Work, column_of, finish, start_work
from tests.support.waiting import wait_until_async


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[LocalApi]:
    async with open_api(store_url) as found:
        yield found


def paid(
    tokens: int = 10, cost: float | None = 0.5, *, kind: str = "message", model: str | None = "m", **more: Any
) -> Draft:
    used = {"input_tokens": tokens, "output_tokens": 1, "cache_read_tokens": 2, "cache_write_tokens": 3}
    meta = {"usage": {**used, "cost_usd": cost}, **({"model": model} if model else {})}
    return Draft(kind, "a call", body={"role": "assistant", "content": []}, meta=meta, **more)


By = Literal["ticket", "model", "phase", "day"]


async def work_with(database: Database, *drafts: Draft) -> Work:
    work = await start_work(database)
    if drafts:
        await work.journal.append(*drafts)
    return work


async def test_what_was_just_written_is_in_what_is_shown(api: LocalApi) -> None:
    calls = paid(phase="worker_1"), paid(20, None, phase="worker_1"), paid(5, 1.0, phase="v")
    work = await work_with(api.database, *calls)
    expected = Spent(
        calls=3,
        input_tokens=35,
        output_tokens=3,
        cache_read_tokens=6,
        cache_write_tokens=9,
        cost_usd=1.5,
        unpriced=1,
    )
    assert (await api.ticket(1)).spent == expected
    assert (await api.session(work.session_id)).spent == expected
    assert (await api.sessions()).items[0].spent == expected
    assert (await api.tickets()).items[0].spent == expected
    await work.journal.append(paid(1, 0.25, phase="v"))
    assert (await api.session(work.session_id)).spent.cost_usd == 1.75
    assert (await api.session(work.session_id)).turns == 4
    assert (await api.board()).spent_today.cost_usd == 1.75
    assert (await verify(api.database)).ok


async def test_costs_are_added_up_by_ticket_model_phase_and_day(api: LocalApi) -> None:
    database = api.database
    big, small = paid(1, 2.0, model="big", phase="worker_1"), paid(1, 0.5, model="small", phase="v_1")
    await finish(await work_with(database, big, small))
    await work_with(database, paid(1, 1.0, model="small", phase="worker_1"), paid(1, None, model=None))
    today = clock.iso()[:10]
    by: dict[str, list[tuple[str, float, int, int]]] = {}
    for what in get_args(By):
        by[what] = [(r.key, r.spent.cost_usd, r.sessions, r.verified) for r in await api.costs(what)]
    assert by["ticket"] == [("1", 2.5, 1, 1), ("2", 1.0, 1, 0)]
    assert by["model"] == [("big", 2.0, 1, 1), ("small", 1.5, 2, 1), ("unknown", 0.0, 1, 0)]
    assert by["phase"] == [("worker_1", 3.0, 2, 1), ("v_1", 0.5, 1, 1), ("", 0.0, 1, 0)]
    assert by["day"] == [(today, 3.5, 2, 1)]
    labels = [row.label for row in await api.costs("ticket", limit=1)]
    assert labels == ["#1 disk"]
    await column_of(api.settings.store.url, "UPDATE usage_totals SET day = '2020-01-01' WHERE ticket_id = 2")
    assert [row.key for row in await api.costs("ticket", days=2)] == ["1"]
    assert [row.key for row in await api.costs("day", days=3660)] == [today, "2020-01-01"]


async def test_summaries_and_cut_replies_cost_money_and_are_no_answers(api: LocalApi) -> None:
    work = await work_with(api.database, paid(), paid(kind="usage"), paid(kind="retry"), paid(kind="task"))
    spent = (await api.session(work.session_id)).spent
    assert (spent.calls, spent.cost_usd) == (2, 2.0)


async def test_many_who_count_at_once_count_each_call_once(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as other:
        works = [await work_with(one, *[paid(1, 0.25)] * 20) for _ in range(6)]
        stop = asyncio.Event()

        async def count(database: Database) -> None:
            while not stop.is_set():
                await UsageTotals(database).catch_up()

        counting = [asyncio.create_task(count(database)) for database in (one, other)]
        for _ in range(5):
            await asyncio.gather(*(work.journal.append(paid(1, 0.25), paid(1, 0.25)) for work in works))
        stop.set()
        await asyncio.gather(*counting)
        assert await UsageTotals(one).catch_up()
        assert await column_of(store_url, "SELECT sum(calls) FROM usage_totals") == [6 * 30]
        assert await column_of(store_url, "SELECT sum(cost_usd) FROM usage_totals") == [6 * 30 * 0.25]


async def test_reading_waits_for_nobody_who_writes(tmp_path: Path) -> None:
    """On SQLite; on PostgreSQL a writer locks only what it writes."""
    store = tmp_path / "store.db"
    async with open_api(str(store)) as api:
        work = await work_with(api.database, paid(1, 1.0))
        with closing(sqlite3.connect(store, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(15):
                assert (await api.board()).counts == {"running": 1}
                assert (await api.session(work.session_id)).entries == 1
                assert len((await api.tickets()).items) == len((await api.sessions()).items) == 1
            other.execute("ROLLBACK")

        async def spent() -> bool:
            return (await api.session(work.session_id)).spent.cost_usd == 1.0

        await wait_until_async(spent)


async def test_a_count_that_waits_is_over_when_the_store_is_closed(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        async with open_api(str(store)) as api:
            work = await work_with(api.database, paid(1, 1.0))
            other.execute("BEGIN IMMEDIATE")
            assert (await api.session(work.session_id)).spent.cost_usd == 0.0
            asyncio.get_running_loop().call_later(0.3, other.execute, "ROLLBACK")
    assert threading.active_count() == 1, "a connection is left open"


async def test_a_stretch_that_was_counted_is_not_counted_as_a_part_of_a_longer_one(api: LocalApi) -> None:
    work = await work_with(api.database, *[paid(1, 1.0)] * 6)
    totals = UsageTotals(api.database)
    assert await totals._count(work.session_id, 1, -1, 3)
    assert not await totals._count(work.session_id, 1, -1, 5), "another process was here first"
    assert await totals._count(work.session_id, 1, 3, 5)
    assert (await totals.of_sessions([work.session_id]))[work.session_id].calls == 6


async def test_counting_that_breaks_off_goes_on_where_it_was(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_WINDOW", 7)
    async with Database.open(store_url) as database:
        await work_with(database, *[paid(1, 1.0)] * 50)
        totals = UsageTotals(database)
        assert not await totals.catch_up(within_s=0)
        counting = asyncio.create_task(totals.catch_up())

        async def begun() -> list[int]:
            return await column_of(store_url, "SELECT calls FROM usage_totals")

        (first,) = await wait_until_async(begun, every=0.0)
        assert first > 0
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        assert await totals.catch_up()
        assert await column_of(store_url, "SELECT sum(calls) FROM usage_totals") == [50]


@pytest.mark.deep
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["usage", "model", "cost_usd", "input_tokens", "x"]), inner, max_size=4)
        ),
        max_leaves=8,
    )
)
async def test_whatever_an_entry_says_of_its_usage_is_a_number_or_nothing(tmp_path: Path, meta: Any) -> None:
    async with open_api(str(tmp_path / f"{clock.new_id()}.db")) as api:
        drafts = [Draft("message", "x", meta=meta if isinstance(meta, dict) else {"usage": meta})]
        work = await work_with(api.database, *drafts, paid(3, 0.5))
        spent = (await api.session(work.session_id)).spent
        assert math.isfinite(spent.cost_usd)
        assert spent.input_tokens >= 3


async def test_what_was_spent_outlives_the_journal(api: LocalApi, tmp_path: Path) -> None:
    work = await work_with(api.database, paid(1, 2.0))
    await finish(work)
    await prune(api.database, older_than=timedelta(0), keep=None, state_dir=tmp_path / "state")
    assert (await api.ticket(1)).spent.cost_usd == 2.0
    assert (await api.session(work.session_id)).entries == 1
    page = await api.entries(work.session_id)
    assert (page.items, page.ended) == ([], True)


async def test_what_is_not_counted_yet_is_not_deleted(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    async with open_api(store) as api:
        work = await work_with(api.database, paid(1, 2.0))
        await finish(work)
        # As if another process were faster each time, and had not come to the end.
        faster = "CREATE TRIGGER faster BEFORE UPDATE OF counted_seq ON agent_sessions BEGIN SELECT RAISE(IGNORE); END"
        await column_of(store, faster)
        state = tmp_path / "state"
        assert (await prune(api.database, older_than=timedelta(0), keep=None, state_dir=state)).sessions == ()
        await column_of(store, "DROP TRIGGER faster")
        pruned = await prune(api.database, older_than=timedelta(0), keep=None, state_dir=state)
        assert pruned.sessions == (work.session_id,)
        assert (await api.ticket(1)).spent.cost_usd == 2.0
