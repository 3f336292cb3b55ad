"""Rows of the double become tickets, stay ours, and change with what people do to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest

from operator_core.config import Settings, StoreSettings, WorkerSettings
from operator_core.db.engine import Database
from operator_core.db.links import Links
from operator_core.db.queue import Claim, WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.ticket import Reason, Ticket, TicketStatus
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.errors import SchemaProblem, Unreachable
from operator_dataverse.intake.claims import claim_task, queue_task
from operator_dataverse.intake.desk import Desk, open_desk
from operator_dataverse.intake.leases import is_task_canceled
from operator_dataverse.intake.poll import pending_here, poll_pending_tasks
from operator_dataverse.intake.rounds import Rounds
from operator_dataverse.intake.state import SOURCE, LinkState
from operator_dataverse.settings import DataverseSettings
from tests.support.dataverse import double, plain_double
from tests.support.waiting import wait_until_async

__all__ = ["double", "plain_double"]

TASKS, MESSAGES = "cr_shraga_tasks", "cr_shragamessages"
ALICE = "alice@example.com"


class Site:
    """One dev box: its store, its rounds, and what a worker on it does."""

    def __init__(self, desk: Desk, server: Double, said: list[str]) -> None:
        self.desk, self.server, self.said = desk, server, said
        self.rounds = Rounds(desk)
        self.worker = ""

    async def look(self) -> int:
        return await self.rounds.look()

    def seed(self, **values: Any) -> str:
        given = {"cr_name": "Try", "cr_prompt": "Say hello.", "cr_status": 1, "crb3b_useremail": ALICE}
        return self.server.seed(TASKS, **(given | values))

    def row(self, row_id: str) -> dict[str, Any]:
        return self.server.tables[TASKS][row_id]

    def codes(self, row_id: str) -> list[Any]:
        return self.server.history.values(TASKS, row_id, "cr_status")

    async def state(self, row_id: str) -> LinkState:
        link = await Links(self.desk.database).get(SOURCE, row_id)
        assert link is not None
        return LinkState.model_validate(link.state)

    async def ticket(self, row_id: str) -> Ticket:
        link = await Links(self.desk.database).get(SOURCE, row_id)
        assert link is not None
        assert link.ticket_id is not None
        return await TicketDB(self.desk.database).get_ticket(link.ticket_id)

    async def begin(self) -> list[Claim]:
        """As a worker: claim what can be claimed."""
        queue, name = WorkQueue(self.desk.database), self.desk.settings.worker.name
        if not self.worker:
            self.worker = "w1"
            await queue.register("w1", 3600, name)
        return await queue.claim("w1", 10, name)

    async def end(self, claim: Claim, status: TicketStatus = TicketStatus.RESOLVED) -> None:
        reason = Reason.VERIFIED if status is TicketStatus.RESOLVED else Reason.GAVE_UP
        await WorkQueue(self.desk.database).finish(
            claim, status, reason, diagnosis="d", session_id=None, session_status="completed"
        )

    async def ask(self, row_id: str, claim: Claim) -> None:
        """As a worker and its reporter: the session rests, and the row says so."""
        assert await WorkQueue(self.desk.database).park(claim, claim.wake)
        self.server.change(TASKS, row_id, cr_status=6)

    async def report(self, row_id: str, code: int) -> None:
        """As the reporter: the row says how it ended, and nothing is left to be said."""
        self.server.change(TASKS, row_id, cr_status=code)
        await self.desk.remember(row_id, settled=True, status=code)

    def answer(self, row_id: str, text: str, **values: Any) -> str:
        given = {"cr_name": text[:50], "cr_content": text, "cr_from": ALICE, "cr_to": self.desk.box}
        return self.server.seed(MESSAGES, **(given | {"crb3b_taskid": row_id} | values))


@asynccontextmanager
async def site(
    server: Double, store: str, *, box: str = "box-1", slots: int = 1, token: str | None = None, **mine: Any
) -> AsyncIterator[Site]:
    said: list[str] = []
    settings = Settings(store=StoreSettings(url=store), worker=WorkerSettings(name=box, concurrency=slots))
    own = DataverseSettings(**({"url": server.url, "user": ALICE, "box": box, "retry_s": 20, "poll_s": 0.2} | mine))
    async with (
        Database.open(store) as database,
        Dataverse(server.url, StaticToken(token or server.token), retry_s=own.retry_s) as client,
    ):
        yield Site(await open_desk(settings, own, database, client, said.append), server, said)


@pytest.fixture
async def here(double: Double, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(double, str(tmp_path / "a.db")) as found:
        yield found


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
