"""The seeding of large stores, on which other tests and the benchmark rely."""

from __future__ import annotations

from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.db.usage import UsageTotals
from tests.support.crowd import make_crowd
from tests.support.store import column_of, start_work


async def test_a_crowd_is_what_the_product_would_have_written(store_url: str) -> None:
    crowd = await make_crowd(store_url, count=700, entries=500)
    async with Database.open(store_url) as database:
        report = await verify(database)
        assert report.ok, report.problem
        assert report.append_only
        assert report.sessions == 700 - len(crowd.of("open", "queued"))
        assert set(crowd.statuses.values()) == {
            *("open", "queued", "running", "waiting_for_input", "resolved", "escalated", "canceled")
        }
        # The next one goes on behind the last one.
        assert (await TicketDB(database).open_ticket("disk", "full")).id == 701
        work = await start_work(database, entries=1)
        assert (await verify(database)).ok
        assert work.session_id not in (crowd.long_session, "")


async def test_its_sums_are_those_that_counting_finds(store_url: str) -> None:
    crowd = await make_crowd(store_url, count=60, entries=300)
    before = await column_of(store_url, "SELECT sum(cost_usd) FROM usage_totals")
    calls = await column_of(store_url, "SELECT sum(calls) FROM usage_totals")
    await column_of(store_url, "DELETE FROM usage_totals")
    await column_of(store_url, "UPDATE agent_sessions SET counted_seq = -1")
    async with Database.open(store_url) as database:
        assert await UsageTotals(database).catch_up()
    assert await column_of(store_url, "SELECT sum(calls) FROM usage_totals") == calls
    after = await column_of(store_url, "SELECT sum(cost_usd) FROM usage_totals")
    assert abs(after[0] - before[0]) < 1e-9
    assert abs(after[0] - crowd.cost_usd) < 1e-9
