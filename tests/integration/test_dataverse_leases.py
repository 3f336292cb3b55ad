"""Rows that became tickets: what people and other boxes do to them has its effect here, and they show signs of life."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from operator_core.db.links import Links
from operator_core.db.queue import WorkQueue
from operator_core.model.ticket import TicketStatus
from operator_dataverse.double import Double, Fault
from operator_dataverse.intake.leases import Watch
from operator_dataverse.intake.state import SOURCE
from tests.support.dataverse import double, plain_double
from tests.support.intake import ALICE, TASKS, Site, here, site
from tests.support.waiting import wait_until_async

__all__ = ["double", "here", "plain_double"]

# ---- what others do to the row


async def test_a_canceled_row_cancels_its_ticket(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    here.server.change(TASKS, row_id, cr_status=9)
    await here.look()
    ticket = await here.ticket(row_id)
    assert (ticket.cancel_requested, ticket.cancel_now) == (True, False)
    await here.end(claim)
    assert (await here.ticket(row_id)).status is TicketStatus.CANCELED
    await here.look()
    assert here.codes(row_id) == [5]


@pytest.mark.parametrize(
    "values",
    [
        {"crb3b_devbox": "box-2", "crb3b_leaseowner": "box-2/1"},
        {"crb3b_leaseowner": "box-1/somebody-else"},
        {"cr_status": 1},
        {"cr_status": 3},
        {"cr_status": 7},
        {"cr_status": 8},
    ],
)
async def test_a_row_that_others_took_stops_the_session_and_is_left_alone(here: Site, values: dict[str, Any]) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    here.server.change(TASKS, row_id, **values)
    before = here.row(row_id)
    await here.look()
    ticket = await here.ticket(row_id)
    assert (ticket.cancel_requested, ticket.cancel_now) == (True, True)
    assert (await here.state(row_id)).lost
    await here.end(claim)
    await here.look()
    link = await Links(here.desk.database).get(SOURCE, row_id)
    assert link is not None
    if values.get("cr_status") in (1, 3):  # it may be done here all the same, in another attempt
        assert (await here.state(row_id)).attempt == 2
    else:
        assert link.settled
        assert here.row(row_id) == before
    assert any("lost" in line for line in here.said)


async def test_a_deleted_row_stops_its_session(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    await here.begin()
    await _delete(here, row_id)
    await here.look()
    assert (await here.ticket(row_id)).cancel_now


async def _delete(here: Site, row_id: str) -> None:
    assert await here.desk.dataverse.delete(TASKS, row_id, etag=here.server.tables[TASKS].etag(row_id)) is None


async def test_a_row_taken_back_is_done_again_once_its_session_has_ended(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    here.server.change(TASKS, row_id, cr_status=1)
    await here.look()
    assert here.row(row_id)["cr_status"] == 1
    await here.end(claim)
    await here.look()
    await here.look()
    assert (await here.ticket(row_id)).status is TicketStatus.OPEN
    state = await here.state(row_id)
    assert (state.lost, state.attempt, here.codes(row_id)) == ("", 2, [5])


async def test_work_goes_on_when_its_row_was_given_back_and_nobody_took_it(here: Site) -> None:
    """As the fleet manager gives it back, when this box was off for longer than a lease."""
    row_id = here.seed()
    await here.look()
    await here.begin()
    freed = {"crb3b_devbox": None, "crb3b_leaseowner": None, "crb3b_heartbeat": None}
    here.server.change(TASKS, row_id, cr_status=1, **freed)
    await here.look()
    row, ticket, state = here.row(row_id), await here.ticket(row_id), await here.state(row_id)
    assert (row["cr_status"], row["crb3b_devbox"], row["crb3b_leaseowner"]) == (5, "box-1", state.mark)
    assert (ticket.status, ticket.cancel_requested, state.lost) == (TicketStatus.RUNNING, False, "")
    assert state.etag == here.server.tables[TASKS].etag(row_id)


async def test_signs_of_life_come_four_times_in_a_lease(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db"), lease_s=0.4) as here:
        row_id = here.seed()
        await here.look()
        await here.begin()
        await asyncio.sleep(0.15)
        await here.look()
        assert here.server.history.values(TASKS, row_id, "crb3b_heartbeat")
        state = await here.state(row_id)
        assert state.etag == double.tables[TASKS].etag(row_id)
        assert here.codes(row_id) == [5]


@pytest.mark.parametrize("fault", [Fault("delay", seconds=8), Fault("busy", retry_after=None), Fault("gateway")])
async def test_rows_that_get_no_answer_keep_no_other_from_its_signs_of_life(
    double: Double, tmp_path: Path, fault: Fault
) -> None:
    lease_s = 4.0
    async with site(double, str(tmp_path / "a.db"), slots=6, lease_s=lease_s, poll_s=0.1, retry_s=60) as here:
        stuck, well = [here.seed() for _ in range(3)], here.seed()
        assert await here.look() == 4
        for row_id in stuck:
            double.faults.add(replace(fault, method="PATCH", path=row_id))
        stop = asyncio.Event()
        running = asyncio.create_task(here.rounds.run(stop))
        beats: list[float] = []
        seen = (await here.state(well)).beat_ms
        while len(beats) < 5:
            now = (await here.state(well)).beat_ms
            if now != seen:
                beats.append(now / 1000)
            seen = now
            assert not running.done()
            await asyncio.sleep(0.05)
        fresh = here.seed()
        await wait_until_async(lambda: here.row(fresh)["cr_status"] == 5, 10)
        stop.set()
        await asyncio.wait_for(running, 10)
        assert beats[-1] - beats[0] < 1.3 * lease_s
        assert not any([(await here.ticket(row_id)).cancel_requested for row_id in stuck])
        assert len([line for line in here.said if "cannot be kept" in line]) <= 3


@pytest.mark.deep
async def test_rows_that_get_no_answer_keep_no_other_from_being_taken(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db"), slots=6, lease_s=16, poll_s=0.1, retry_s=60) as here:
        stuck = [here.seed(createdon=f"2026-01-0{day}T00:00:00Z") for day in (1, 2)]
        for row_id in stuck:
            double.faults.add(Fault("busy", method="PATCH", path=row_id, retry_after=None))
        well = here.seed()
        stop = asyncio.Event()
        running = asyncio.create_task(here.rounds.run(stop))
        await wait_until_async(lambda: here.row(well)["cr_status"] == 5, 60)
        asked = [request.path for request in double.history.requests("GET")]
        assert not any(row_id in path for row_id in stuck for path in asked), "one was tried again before the other"
        double.faults.clear()
        await wait_until_async(lambda: {here.row(row_id)["cr_status"] for row_id in stuck} == {5}, 30)
        stop.set()
        await asyncio.wait_for(running, 10)


async def test_one_row_is_looked_at_by_one_at_a_time(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db"), slots=3, lease_s=0.1) as here:
        row_id = here.seed()
        await here.look()
        await asyncio.sleep(0.1)
        fault = double.faults.add(Fault("delay", method="PATCH", path=row_id, seconds=0.5))
        watch = Watch(here.desk)
        for _ in range(3):
            await watch.begin()
        await watch.settle()
        assert fault.hits == 1
        await watch.close()


async def test_without_a_column_for_it_a_sign_of_life_touches_the_row(plain_double: Double, tmp_path: Path) -> None:
    async with site(plain_double, str(tmp_path / "a.db"), lease_s=0.2) as here:
        row_id = here.seed()
        await here.look()
        said, etag = here.row(row_id)["cr_statusmessage"], plain_double.tables[TASKS].etag(row_id)
        await asyncio.sleep(0.1)
        await here.look()
        assert plain_double.tables[TASKS].etag(row_id) != etag
        assert here.row(row_id)["cr_statusmessage"] == said


async def test_whoever_waits_for_a_person_shows_no_sign_of_life(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db"), lease_s=0.2) as here:
        row_id = here.seed()
        await here.look()
        (claim,) = await here.begin()
        await here.ask(row_id, claim)
        etag = double.tables[TASKS].etag(row_id)
        await asyncio.sleep(0.1)
        await here.look()
        assert double.tables[TASKS].etag(row_id) == etag


# ---- answers and restarts


async def test_an_answer_goes_to_the_session_that_asked(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    await here.ask(row_id, claim)
    await here.look()
    here.answer(row_id, "not from the person", cr_from="mallory@example.com")
    here.answer(row_id, "not to the worker", cr_to=ALICE)
    here.answer("00000000-0000-0000-0000-000000000001", "about another task")
    here.answer(row_id, "Use the blue one.")
    here.server.change(TASKS, row_id, cr_status=1)
    assert await here.look() == 1
    ticket = await here.ticket(row_id)
    assert (ticket.id, ticket.status) == (claim.ticket_id, TicketStatus.OPEN)
    assert here.row(row_id)["cr_status"] == 5
    assert await _heard(here) == ["Use the blue one."]
    assert await here.look() == 0
    assert await _heard(here) == []


async def _heard(here: Site) -> list[str]:
    heard: list[str] = []
    for claim in await here.begin():
        async with here.desk.database.begin() as c:
            messages, _ = await WorkQueue(here.desk.database).letters(c, claim)
        heard += [message.text for message in messages]
    return heard


async def test_an_answer_is_used_for_one_question_only(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    await here.ask(row_id, claim)
    here.answer(row_id, "First.")
    here.server.change(TASKS, row_id, cr_status=1)
    await here.look()
    (claim,) = await here.begin()
    async with here.desk.database.begin() as c:
        _, wake = await WorkQueue(here.desk.database).letters(c, claim)
    assert await WorkQueue(here.desk.database).park(claim, wake)
    here.server.change(TASKS, row_id, cr_status=6)
    await here.look()
    here.server.change(TASKS, row_id, cr_status=1)
    await here.look()
    assert here.row(row_id)["cr_status"] == 6
    here.answer(row_id, "Second.")
    here.server.change(TASKS, row_id, cr_status=1)
    await here.look()
    assert await _heard(here) == ["Second."]


async def test_without_an_answer_the_question_stands(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    await here.ask(row_id, claim)
    here.server.change(TASKS, row_id, cr_status=1)
    assert await here.look() == 0
    assert here.row(row_id)["cr_status"] == 6
    assert "No answer" in here.row(row_id)["cr_statusmessage"]
    assert (await here.ticket(row_id)).status is TicketStatus.WAITING_FOR_INPUT


async def test_a_waiting_row_that_is_canceled_ends_at_once(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    await here.ask(row_id, claim)
    here.server.change(TASKS, row_id, cr_status=9)
    await here.look()
    assert (await here.ticket(row_id)).status is TicketStatus.CANCELED


@pytest.mark.parametrize("code", [7, 8, 9])
async def test_an_ended_row_that_becomes_pending_is_done_again(here: Site, code: int) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    first = await here.ticket(row_id)
    if code == 9:
        here.server.change(TASKS, row_id, cr_status=9)
        await here.look()
    await here.end(claim, TicketStatus.ESCALATED if code == 8 else TicketStatus.RESOLVED)
    await here.report(row_id, code)
    await here.look()
    here.server.change(TASKS, row_id, cr_status=1)
    assert await here.look() == 1
    ticket, state = await here.ticket(row_id), await here.state(row_id)
    assert (ticket.id, ticket.status, ticket.reopen_count) == (first.id, TicketStatus.OPEN, 1)
    assert (state.attempt, here.row(row_id)["cr_status"]) == (2, 5)
    link = await Links(here.desk.database).get(SOURCE, row_id)
    assert link is not None
    assert not link.settled


async def test_what_is_asked_for_in_other_words_is_another_ticket(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    first = await here.ticket(row_id)
    await here.end(claim, TicketStatus.ESCALATED)
    await here.report(row_id, 8)
    here.server.change(TASKS, row_id, cr_status=1, cr_prompt="Say goodbye.")
    assert await here.look() == 1
    ticket = await here.ticket(row_id)
    assert ticket.id != first.id
    assert ticket.message == "Say goodbye."


async def test_a_restart_waits_for_a_free_slot(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    (claim,) = await here.begin()
    await here.end(claim)
    await here.report(row_id, 7)
    here.seed()
    await here.look()
    here.server.change(TASKS, row_id, cr_status=1)
    assert await here.look() == 0
    assert here.row(row_id)["cr_status"] == 3
