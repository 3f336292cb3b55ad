"""Costs in a store where adding them up takes a while: nobody waits, and nobody is shown what is long past."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from operator_core.api import costs
from operator_core.api.local import LocalApi
from operator_core.db import usage
from operator_core.model.entry import Draft
from tests.support.api import open_api
from tests.support.store import Work, start_work


@pytest.fixture
async def api(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalApi]:
    """Over a store that counts as large as soon as something was spent."""
    monkeypatch.setattr(usage, "_A_MANY", usage._A_MANY.offset(0))
    async with open_api(store_url) as found:
        yield found


async def spend(work: Work, usd: float) -> None:
    used = {"input_tokens": 1, "output_tokens": 1, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost_usd": usd}
    await work.journal.append(Draft("message", "a call", body={}, meta={"usage": used, "model": "m"}))


async def shown(api: LocalApi) -> float:
    return sum(row.spent.cost_usd for row in await api.costs("ticket"))


async def test_an_answer_serves_while_a_newer_one_is_made(api: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_SERVES", 0.0)
    work = await start_work(api.database)
    await spend(work, 1.0)
    assert await shown(api) == 1.0
    await spend(work, 2.0)
    assert await shown(api) == 1.0, "somebody waited for the sums"
    await asyncio.gather(*costs._OF[api.database].asking.values())
    assert await shown(api) == 3.0


async def test_an_answer_serves_for_longer_than_it_took(api: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_SERVES", 1e9)
    work = await start_work(api.database)
    await spend(work, 1.0)
    first = await api.costs("model")
    await spend(work, 2.0)
    assert await api.costs("model") is first
    assert (await api.costs("phase"))[0].spent.cost_usd == 3.0, "another question has another answer"


async def test_nobody_is_shown_what_is_long_past(api: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_SERVES", 0.0)
    monkeypatch.setattr(costs, "_STALE_S", 0.0)
    work = await start_work(api.database)
    for total in (1.0, 2.0, 3.0):
        await spend(work, 1.0)
        assert await shown(api) == total


async def test_those_who_ask_at_the_same_time_get_one_answer(api: LocalApi) -> None:
    await spend(await start_work(api.database), 1.0)
    asked = [asyncio.create_task(api.costs("day")) for _ in range(20)]
    await asyncio.sleep(0)
    asked[0].cancel()
    await asyncio.gather(asked[0], return_exceptions=True)
    answers = await asyncio.gather(*asked[1:])
    assert len({id(rows) for rows in answers}) == 1
    assert answers[0][0].spent.cost_usd == 1.0


async def test_what_is_asked_first_is_at_hand(api: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_SERVES", 1e9)
    await costs.expect_costs(api.database)
    assert await api.costs("ticket") == [], "nothing was spent, and a small store needs no answers at hand"
    await spend(await start_work(api.database), 1.0)
    await usage.UsageTotals(api.database).catch_up()
    await costs.expect_costs(api.database)
    answers = costs._OF[api.database]
    assert len(answers.known) == 4
    kept = [answer.rows for answer in answers.known.values()]
    for by, days, limit in costs._EXPECTED:
        rows = await api.costs(by, days=days, limit=limit)  # type: ignore[arg-type]
        assert any(rows is one for one in kept), by


async def test_an_answer_that_fails_is_asked_for_again(api: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    await spend(await start_work(api.database), 1.0)
    with monkeypatch.context() as broken:
        broken.setattr(usage, "_BY_TICKET", None)
        with pytest.raises(Exception, match="execut"):
            await api.costs("ticket")
    assert await shown(api) == 1.0
