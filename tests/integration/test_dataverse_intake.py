"""Rows of the double become tickets, stay ours, and change with what people do to them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest

from operator_core.db.fleet import set_draining
from operator_core.db.links import Links
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.ticket import TicketStatus
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.errors import SchemaProblem, Unreachable
from operator_dataverse.intake.claims import claim_task, queue_task
from operator_dataverse.intake.leases import is_task_canceled
from operator_dataverse.intake.poll import pending_here, poll_pending_tasks
from operator_dataverse.intake.rounds import Rounds
from operator_dataverse.intake.state import SOURCE, LinkState
from tests.support.dataverse import double, plain_double
from tests.support.intake import ALICE, TASKS, Site, here, site
from tests.support.waiting import wait_until_async

__all__ = ["double", "here", "plain_double"]

# ---- taking


async def test_a_pending_row_becomes_a_ticket_of_this_worker(here: Site) -> None:
    row_id = here.seed(cr_name="O'Brien's <b>task</b>", cr_prompt="Make it so.")
    assert await here.look() == 1
    row, ticket = here.row(row_id), await here.ticket(row_id)
    assert (row["cr_status"], row["cr_statusmessage"], row["crb3b_devbox"]) == (5, "Claimed by box-1", "box-1")
    assert row["crb3b_leaseowner"].startswith("box-1/")
    assert row["crb3b_heartbeat"]
    assert (ticket.message, ticket.pinned_to, ticket.invariant_name) == (
        "Make it so.",
        "box-1",
        "O'Brien's <b>task</b>",
    )
    assert ticket.violation_key.startswith(f"task:{row_id[:8]}")
    state = await here.state(row_id)
    assert (state.claiming, state.status, state.attempt, state.user) == (False, 5, 1, ALICE)
    assert await here.look() == 0
    assert here.codes(row_id) == [5]


async def test_without_optional_columns_a_claim_is_still_known_by_its_mark(
    plain_double: Double, tmp_path: Path
) -> None:
    async with site(plain_double, str(tmp_path / "a.db")) as here:
        row_id = here.seed()
        plain_double.faults.drop_answer(method="PATCH", path=TASKS)
        assert await here.look() == 1
        assert here.row(row_id)["cr_statusmessage"].startswith("Claimed by box-1 (")


@pytest.mark.parametrize(
    "values",
    [
        {"crb3b_useremail": None},
        {"crb3b_useremail": "bob@example.com"},
        {"crb3b_useremail": "bob@example.com", "crb3b_devbox": "box-1"},
        {"crb3b_useremail": None, "crb3b_devbox": "box-1"},
        {"crb3b_devbox": "box-2"},
        {"cr_status": 3, "crb3b_devbox": "box-2"},
        {"cr_status": 5},
        {"cr_status": 9},
    ],
)
async def test_rows_of_others_are_never_taken(here: Site, values: dict[str, Any]) -> None:
    row_id = here.seed(**values)
    before = here.row(row_id)
    assert await here.look() == 0
    assert here.row(row_id) == before
    assert await TicketDB(here.desk.database).list_tickets() == []


async def test_the_question_itself_is_for_rows_of_the_person_only(here: Site) -> None:
    """Row B-003, without the null user of the seed (D-42)."""
    here.seed(crb3b_devbox="box-1")
    await here.look()
    await here.look()
    whoami = await here.desk.dataverse.whoami()
    person = " or ".join(f"{name} eq '{who}'" for name in ("crb3b_useremail", "cr_userid") for who in (ALICE, whoami))
    asked = [
        unquote_plus(request.path) for request in here.server.history if "cr_status eq" in unquote_plus(request.path)
    ]
    assert len(asked) >= 4
    for path in asked:
        assert f" and ({person}) and " in path
        assert "cr_status eq 1" in path or "cr_status eq 3" in path
        assert "crb3b_devbox eq 'box-1'" in path


async def test_a_box_that_drains_takes_no_row_and_waits_for_none(here: Site) -> None:
    """Nobody would work on it here, and it could not go to another box any more."""
    queue = WorkQueue(here.desk.database)
    await queue.register("w1", 600, "box-1", 1)
    await set_draining(here.desk.database, "w1", True)
    theirs, ours, waits = here.seed(), here.seed(crb3b_devbox="box-1"), here.seed(cr_status=3, crb3b_devbox="box-1")
    before = [here.row(row_id) for row_id in (theirs, ours, waits)]
    assert await here.look() == 0
    assert [here.row(row_id) for row_id in (theirs, ours, waits)] == before
    assert await TicketDB(here.desk.database).list_tickets() == []
    await set_draining(here.desk.database, "w1", False)
    assert await here.look() == 1


async def test_what_a_draining_process_still_works_on_takes_no_slot_of_another(here: Site) -> None:
    queue = WorkQueue(here.desk.database)
    await queue.register("w1", 600, "box-1", 1)
    first = here.seed()
    assert await here.look() == 1
    (claim,) = await queue.claim("w1", 1, "box-1")
    await set_draining(here.desk.database, "w1", True)
    await queue.register("w2", 600, "box-1", 1)
    second = here.seed()
    assert await here.look() == 1
    assert (await here.ticket(second)).status is TicketStatus.OPEN
    assert (await here.ticket(first)).owner == claim.worker


@pytest.mark.parametrize(
    "values", [{"crb3b_useremail": "bob@example.com"}, {"crb3b_devbox": "box-2"}, {"cr_status": 3}]
)
async def test_a_row_of_others_is_not_claimed_even_if_it_was_found(here: Site, values: dict[str, Any]) -> None:
    row = await here.desk.row(here.seed(**values))
    assert row is not None
    assert not await claim_task(here.desk, row)
    assert here.server.tables[TASKS].etag(row.id) == row.etag


async def test_of_two_who_saw_a_row_pending_the_second_gets_nothing(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db")) as one, site(double, str(tmp_path / "b.db"), box="box-2") as other:
        row_id = one.seed()
        (seen,) = [row async for row in poll_pending_tasks(other.desk)]
        assert await one.look() == 1
        assert not await claim_task(other.desk, seen)
        assert one.row(row_id)["crb3b_devbox"] == "box-1"
        assert await TicketDB(other.desk.database).list_tickets() == []
        assert await Links(other.desk.database).list(SOURCE) == []


async def test_of_two_stores_that_call_their_box_alike_one_gets_the_row(plain_double: Double, tmp_path: Path) -> None:
    async with site(plain_double, str(tmp_path / "a.db")) as one, site(plain_double, str(tmp_path / "b.db")) as other:
        one.seed()
        (seen,) = [row async for row in poll_pending_tasks(other.desk)]
        assert await one.look() == 1
        assert not await claim_task(other.desk, seen)
        assert await TicketDB(other.desk.database).list_tickets() == []


@pytest.mark.parametrize(
    "values", [{"crb3b_useremail": "ALICE@Example.com"}, {"crb3b_useremail": None, "cr_userid": ALICE}]
)
async def test_the_person_is_known_by_either_column(here: Site, values: dict[str, Any]) -> None:
    row_id = here.seed(**values)
    assert await here.look() == 1
    assert here.row(row_id)["cr_status"] == 5


async def test_an_apostrophe_in_the_address_changes_no_question(double: Double, tmp_path: Path) -> None:
    mail = "o'brien' or cr_status eq 1 or '@example.com"
    async with site(double, str(tmp_path / "a.db"), user=mail, box="o'box") as here:
        theirs, mine = here.seed(), here.seed(crb3b_useremail=mail)
        assert await here.look() == 1
        assert (here.row(theirs)["cr_status"], here.row(mine)["cr_status"]) == (1, 5)


@pytest.mark.parametrize("prompt", ["", "   \n", None])
async def test_what_cannot_become_a_ticket_fails_and_says_why(here: Site, prompt: str | None) -> None:
    bad, good = here.seed(cr_prompt=prompt), here.seed()
    await here.look()
    await here.look()
    row = here.row(bad)
    assert row["cr_status"] == 8
    assert "prompt" in row["cr_statusmessage"]
    assert row["cr_result"].startswith("Error: ")
    assert here.codes(bad) == [5, 8]
    assert here.row(good)["cr_status"] == 5
    assert await Links(here.desk.database).get(SOURCE, bad) is None


async def test_a_row_that_was_refused_can_be_mended_and_tried_again(here: Site) -> None:
    row_id = here.seed(cr_prompt="")
    await here.look()
    here.server.change(TASKS, row_id, cr_status=1, cr_prompt="Say hello.")
    assert await here.look() == 1
    assert (await here.ticket(row_id)).message == "Say hello."


async def test_a_row_that_may_not_be_written_holds_up_no_other(here: Site) -> None:
    locked, free = here.seed(createdon="2026-01-01T00:00:00Z"), here.seed()
    here.server.faults.add(_refusing(locked))
    assert await here.look() == 1
    assert await here.look() == 0
    assert (here.row(locked)["cr_status"], here.row(free)["cr_status"]) == (1, 5)
    assert len([line for line in here.said if "cannot be taken" in line]) == 1
    assert await Links(here.desk.database).get(SOURCE, locked) is None


async def test_a_row_that_may_not_be_written_any_more_keeps_no_other_from_its_sign_of_life(
    double: Double, tmp_path: Path
) -> None:
    async with site(double, str(tmp_path / "a.db"), slots=3, lease_s=0.4) as here:
        locked, running = here.seed(createdon="2026-01-01T00:00:00Z"), here.seed()
        assert await here.look() == 2
        here.server.faults.add(_refusing(locked))
        before, fresh = (await here.state(running)).beat_ms, here.seed()
        await asyncio.sleep(0.15)
        assert await here.look() == 1
        assert await here.look() == 0
        assert (await here.state(running)).beat_ms > before
        assert here.row(fresh)["cr_status"] == 5
        assert len([line for line in here.said if "cannot be kept" in line]) == 1


async def test_a_claim_that_cannot_be_ended_holds_up_no_other(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db"), slots=3, lease_s=0.1) as here:
        stuck = here.seed()
        (row,) = [row async for row in poll_pending_tasks(here.desk)]
        state = LinkState(mark="box-1/0", claiming=True, attempt=1, etag=row.etag, taken_by="the dead")
        assert await Links(here.desk.database).begin(SOURCE, stuck, here.desk.box, state.model_dump(mode="json"))
        here.server.faults.add(_refusing(stuck))
        fresh = here.seed()
        assert await here.look() == 1
        assert here.row(fresh)["cr_status"] == 5


async def test_a_claim_that_cannot_be_ended_keeps_no_slot(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db"), slots=1, lease_s=0.1) as here:
        stuck = here.seed()
        state = LinkState(mark="box-1/0", claiming=True, attempt=1, taken_by="the dead")
        assert await Links(here.desk.database).begin(SOURCE, stuck, here.desk.box, state.model_dump(mode="json"))
        # Given to somebody else, and out of our sight with it.
        here.server.change(TASKS, stuck, crb3b_useremail="bob@example.com")
        hidden = _refusing(stuck)
        hidden.method = "GET"
        here.server.faults.add(hidden)
        fresh = here.seed()
        assert await here.look() == 1
        assert here.row(fresh)["cr_status"] == 5


def _refusing(row_id: str) -> Any:
    from operator_dataverse.double import Fault

    return Fault("forbidden", method="PATCH", path=row_id)


# ---- no more than can be done


async def test_a_busy_box_queues_its_rows_and_promotes_exactly_the_oldest(here: Site) -> None:
    first = here.seed()
    assert await here.look() == 1
    (claim,) = await here.begin()
    rows = [here.seed(crb3b_devbox="box-1", createdon=f"2026-01-0{n}T00:00:00Z") for n in (3, 1, 2)]
    anywhere = here.seed()
    for _ in range(2):
        await here.look()
        assert [here.row(one)["cr_status"] for one in rows] == [3, 3, 3]
    assert here.row(anywhere)["cr_status"] == 1
    assert "Queued on box-1" in here.row(rows[0])["cr_statusmessage"]
    await here.end(claim)
    await here.report(first, 7)
    assert await here.look() == 1
    assert [here.codes(one) for one in rows] == [[3], [3, 1, 5], [3]]
    assert here.row(anywhere)["cr_status"] == 1
    assert (await here.ticket(rows[1])).status is TicketStatus.OPEN


async def test_as_many_rows_are_taken_as_there_are_slots(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db"), slots=3) as here:
        rows = [here.seed(crb3b_devbox="box-1") for _ in range(5)]
        assert await here.look() == 3
        assert sorted(here.row(one)["cr_status"] for one in rows) == [3, 3, 5, 5, 5]


async def test_other_work_of_this_worker_counts_too(here: Site) -> None:
    from operator_core.work.submit import submit_task

    await submit_task(here.desk.database, here.desk.settings, "Something else.", pinned_to="box-1")
    row_id = here.seed(crb3b_devbox="box-1")
    assert await here.look() == 0
    assert here.row(row_id)["cr_status"] == 3


async def test_a_row_that_changed_meanwhile_is_not_queued(here: Site) -> None:
    """The queue of the seed turned another worker's running row into a queued one (D-39)."""
    row_id = here.seed(crb3b_devbox="box-1")
    (seen,) = [row async for row in pending_here(here.desk)]
    here.server.change(TASKS, row_id, cr_status=5)
    assert not await queue_task(here.desk, seen)
    assert here.row(row_id)["cr_status"] == 5


async def test_an_older_pending_row_goes_before_a_younger_queued_one(here: Site) -> None:
    queued = here.seed(cr_status=3, crb3b_devbox="box-1", createdon="2026-01-02T00:00:00Z")
    older = here.seed(createdon="2026-01-01T00:00:00Z")
    assert await here.look() == 1
    assert (here.row(queued)["cr_status"], here.row(older)["cr_status"]) == (3, 5)


# ---- claims that were begun and not ended


async def begun(here: Site, row_id: str, *, hold_ms: int = 0) -> LinkState:
    """As a process of this box that died: its link claims, and nothing more is known here."""
    now = await here.desk.links.now_ms()
    state = LinkState(mark=here.desk.new_mark(), attempt=1, claiming=True, taken_by="dead", taken_until=now + hold_ms)
    assert await here.desk.links.begin(SOURCE, row_id, here.desk.box, state.model_dump(mode="json"))
    return state


async def arrived(here: Site, row_id: str, state: LinkState) -> None:
    here.server.change(TASKS, row_id, **here.desk.claim_values(state.mark))


async def test_a_claim_that_had_arrived_is_adopted_even_without_a_free_slot(here: Site) -> None:
    row_id, other = here.seed(createdon="2026-01-02T00:00:00Z"), here.seed(createdon="2026-01-01T00:00:00Z")
    assert await here.look() == 1
    assert here.row(other)["cr_status"] == 5
    await arrived(here, row_id, await begun(here, row_id))
    assert await here.look() == 1
    assert (await here.ticket(row_id)).status is TicketStatus.OPEN
    assert not (await here.state(row_id)).claiming
    assert here.codes(row_id) == []


async def test_a_claim_that_had_not_arrived_is_made_again(here: Site) -> None:
    row_id = here.seed()
    state = await begun(here, row_id)
    assert await here.look() == 1
    assert here.row(row_id)["crb3b_leaseowner"] == state.mark
    assert (await here.ticket(row_id)).status is TicketStatus.OPEN


@pytest.mark.parametrize("status", [1, 5, 9])
async def test_a_claim_that_others_won_is_released(here: Site, status: int) -> None:
    row_id = here.seed()
    await begun(here, row_id)
    here.server.change(TASKS, row_id, cr_status=status, crb3b_devbox="box-2")
    before = here.row(row_id)
    assert await here.look() == 0
    assert here.row(row_id) == before
    assert await Links(here.desk.database).get(SOURCE, row_id) is None


async def test_a_claim_of_a_process_that_lives_is_left_to_it(here: Site) -> None:
    row_id = here.seed()
    state = await begun(here, row_id, hold_ms=60_000)
    await arrived(here, row_id, state)
    assert await here.look() == 0
    assert await here.state(row_id) == state


async def test_a_row_that_is_gone_releases_its_claim(here: Site) -> None:
    row_id = "00000000-0000-0000-0000-000000000001"
    await begun(here, row_id)
    assert await here.look() == 0
    assert await Links(here.desk.database).get(SOURCE, row_id) is None


# ---- looking itself


async def test_canceled_is_yes_no_or_not_known(here: Site) -> None:
    row_id, dataverse = here.seed(), here.desk.dataverse
    for code in (1, 3, 5, 6, 7, 8, 9):
        here.server.change(TASKS, row_id, cr_status=code)
        assert await is_task_canceled(dataverse, TASKS, row_id) is (code == 9)
    assert await is_task_canceled(dataverse, TASKS, "00000000-0000-0000-0000-000000000001") is None
    here.server.stop()
    async with Dataverse(here.server.url, StaticToken("t"), retry_s=0) as gone:
        assert await is_task_canceled(gone, TASKS, row_id) is None


async def test_a_table_without_its_columns_is_said_at_once(double: Double, tmp_path: Path) -> None:
    with pytest.raises(SchemaProblem, match="cr_prompt"):
        async with site(double, str(tmp_path / "a.db"), table="systemusers"):
            pass


async def test_trouble_is_said_once_and_over_when_it_is_over(here: Site) -> None:
    from operator_dataverse.double import Fault

    row_id = here.seed()
    fault = here.server.faults.add(Fault("forbidden"))
    stop = asyncio.Event()
    running = asyncio.create_task(here.rounds.run(stop))
    await wait_until_async(lambda: fault.hits > 3)
    assert len([line for line in here.said if "answers again" not in line]) == 1
    here.server.faults.clear()
    await wait_until_async(lambda: here.row(row_id)["cr_status"] == 5)
    await wait_until_async(lambda: any("answers again" in line for line in here.said))
    stop.set()
    await asyncio.wait_for(running, 10)


async def test_the_end_of_a_session_makes_room_at_once(double: Double, tmp_path: Path) -> None:
    async with site(double, str(tmp_path / "a.db"), poll_s=3600) as here:
        first, second = here.seed(), here.seed(crb3b_devbox="box-1")
        stop = asyncio.Event()
        running = asyncio.create_task(here.rounds.run(stop))
        await wait_until_async(lambda: here.row(second)["cr_status"] == 3)
        (claim,) = await here.begin()
        await here.report(first, 7)
        await here.end(claim)
        await wait_until_async(lambda: here.row(second)["cr_status"] == 5)
        stop.set()
        await asyncio.wait_for(running, 10)


async def test_a_service_that_is_gone_stops_no_work(here: Site) -> None:
    row_id = here.seed()
    await here.look()
    await here.begin()
    async with Dataverse(here.server.url, StaticToken(here.server.token), retry_s=0) as client:
        from dataclasses import replace

        alone = Rounds(replace(here.desk, dataverse=client))
        here.server.stop()
        with pytest.raises(Unreachable):
            await alone.look()
    ticket = await here.ticket(row_id)
    assert (ticket.status, ticket.cancel_requested) == (TicketStatus.RUNNING, False)


@pytest.mark.deep
@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_storm_claims_every_row_once(double: Double, tmp_path: Path, times: int) -> None:
    async with site(double, str(tmp_path / "a.db"), slots=20) as here:
        rows = [here.seed() for _ in range(8)]
        double.faults.storm(0.3)
        double.faults.drop_answer(times=times, method="PATCH")
        async with asyncio.timeout(60):
            while any(here.row(one)["cr_status"] != 5 for one in rows):
                await here.look()
        double.faults.clear()
        await here.look()
        assert [here.codes(one) for one in rows] == [[5]] * 8
        assert len(await TicketDB(here.desk.database).list_tickets()) == 8
