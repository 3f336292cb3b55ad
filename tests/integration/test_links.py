"""Links of other systems' rows to tickets, one ticket for each; and the sources beside a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.db.links import Links
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, OperatorError
from operator_core.model.ticket import TicketStatus
from operator_core.work.sources import look_everywhere, work_beside
from operator_core.work.submit import submit_task

ROW = ("elsewhere", "row-1")


def more(state: dict[str, Any]) -> Mapping[str, Any]:
    return {"n": state.get("n", 0) + 1}


async def test_two_submissions_with_one_link_open_one_ticket(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as other:
        tickets = await asyncio.gather(
            *(submit_task(d, Settings(), "Say hello.", link=ROW) for d in (one, other) for _ in range(6))
        )
        assert len({ticket.id for ticket in tickets}) == 1
        assert len(await TicketDB(one).list_tickets()) == 1
        link = await Links(one).get(*ROW)
        assert link is not None
        assert link.ticket_id == tickets[0].id


async def test_tasks_without_a_link_stay_apart(store_url: str) -> None:
    async with Database.open(store_url) as database:
        first = await submit_task(database, Settings(), "Say hello.")
        assert (await submit_task(database, Settings(), "Say hello.")).id != first.id


async def test_a_link_survives_a_submission_that_is_refused(store_url: str) -> None:
    async with Database.open(store_url) as database:
        links = Links(database)
        assert await links.begin(*ROW, "box", {"mark": "m"})
        with pytest.raises(ConfigError):
            await submit_task(database, Settings(), "x" * 200_000, link=ROW)
        link = await links.get(*ROW)
        assert link is not None
        assert (link.ticket_id, link.owner, link.state) == (None, "box", {"mark": "m"})
        ticket = await submit_task(database, Settings(), "x", link=ROW)
        link = await links.get(*ROW)
        assert link is not None
        assert (link.ticket_id, link.owner, link.state) == (ticket.id, "box", {"mark": "m"})


async def test_no_change_of_a_link_is_lost(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as other:
        await Links(one).begin(*ROW, "box", {})
        await asyncio.gather(*(Links(d).change(*ROW, more) for d in (one, other) for _ in range(10)))
        link = await Links(one).get(*ROW)
        assert link is not None
        assert link.state == {"n": 20}


async def test_a_link_is_made_once_and_found_by_what_is_known_of_it(store_url: str) -> None:
    async with Database.open(store_url) as database:
        links = Links(database)
        assert await links.begin(*ROW, "box", {"n": 1})
        assert not await links.begin(*ROW, "other", {"n": 2})
        assert await links.begin("elsewhere", "row-2", "other", {})
        assert await links.begin("chat", "row-1", "box", {})
        ticket = await submit_task(database, Settings(), "Say hello.", link=ROW)
        assert [link.external_id for link in await links.list("elsewhere", owner="box")] == ["row-1"]
        assert [link.external_id for link in await links.list("elsewhere", without_ticket=True)] == ["row-2"]
        assert [link.source for link in await links.list("chat", ids=["row-1", "row-2"])] == ["chat"]
        assert await links.list("elsewhere", ids=[]) == []
        (found,) = await links.tickets("elsewhere", owner="box")
        assert (found.ticket_id, found.status, found.head_seq, found.session_id) == (
            ticket.id,
            TicketStatus.OPEN,
            -1,
            None,
        )
        await links.change(*ROW, lambda state: state, settled=True)
        assert await links.tickets("elsewhere") == []
        assert len(await links.tickets("elsewhere", settled=True)) == 1
        assert await links.list("elsewhere", owner="box", unsettled=True) == []
        assert not await links.forget(*ROW)
        assert await links.forget("elsewhere", "row-2")
        assert await links.change("elsewhere", "row-2", more) is None


class Source:
    """A source that notes what happens to it."""

    def __init__(self, fails: str = "") -> None:
        self.seen: list[str] = []
        self.fails = fails

    async def start(self) -> None:
        self.seen.append("start")
        if self.fails == "start":
            raise OperatorError("It is not configured.")

    async def look(self) -> bool:
        self.seen.append("look")
        return True

    async def trouble(self, error: OperatorError) -> None:
        self.seen.append(str(error))

    async def run(self, stop: asyncio.Event) -> None:
        self.seen.append("run")
        if self.fails == "run":
            raise OperatorError("It broke.")
        await stop.wait()
        self.seen.append("drained")


async def test_sources_run_as_long_as_the_work_and_then_drain() -> None:
    source, stop = Source(), asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        source.seen.append("worked")

    await asyncio.wait_for(work_beside([source], stop, work), 5)
    assert source.seen == ["start", "run", "worked", "drained"]
    assert not stop.is_set()
    assert await look_everywhere([source])
    assert not await look_everywhere([])


async def test_a_source_that_is_not_usable_ends_the_work_before_it_begins() -> None:
    worked = []

    async def work() -> None:
        worked.append(1)

    with pytest.raises(OperatorError, match="not configured"):
        await work_beside([Source("start")], asyncio.Event(), work)
    assert not worked


async def test_a_source_that_fails_stops_the_work_in_good_order() -> None:
    stop = asyncio.Event()
    ended = []

    async def work() -> None:
        await stop.wait()
        ended.append("in good order")

    with pytest.raises(OperatorError, match="It broke"):
        await asyncio.wait_for(work_beside([Source(), Source("run")], stop, work), 5)
    assert ended == ["in good order"]


async def test_a_source_that_ends_asks_the_worker_to_leave() -> None:
    class Updated(Source):
        async def run(self, stop: asyncio.Event) -> None:
            self.seen.append("updated")

    stop, source = asyncio.Event(), Updated()

    async def work() -> None:
        await stop.wait()
        source.seen.append("left")

    await asyncio.wait_for(work_beside([Source(), source], stop, work), 5)
    assert source.seen == ["start", "updated", "left"]


async def test_work_that_fails_lets_the_sources_drain() -> None:
    source = Source()

    async def work() -> None:
        await asyncio.sleep(0)
        raise OperatorError("No model.")

    with pytest.raises(OperatorError, match="No model"):
        await work_beside([source], asyncio.Event(), work)
    assert source.seen == ["start", "run", "No model.", "drained"]


async def test_a_cancelled_caller_leaves_nothing_running() -> None:
    source = Source()
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    task = asyncio.create_task(work_beside([source], asyncio.Event(), work))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert (ends, source.seen[-1]) == (["cancelled"], "drained")


async def test_whoever_leaves_does_not_wait_for_a_source_that_does_not_start() -> None:
    class Silent(Source):
        async def start(self) -> None:
            await asyncio.Event().wait()

    stop, seen = asyncio.Event(), []

    async def work() -> None:
        seen.append(stop.is_set())

    task = asyncio.create_task(work_beside([Silent()], stop, work))
    await asyncio.sleep(0.05)
    stop.set()
    await asyncio.wait_for(task, 5)
    assert seen == [True]
