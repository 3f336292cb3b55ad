"""The fleet: who is alive, what is taken back, where work goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from operator_core import clock
from operator_core.clock import Clock
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.double.faults import Fault
from operator_dataverse.errors import DataverseError, Unauthorized
from operator_dataverse.fleet.devboxes import DevBoxes
from operator_dataverse.fleet.manager import FleetManager
from operator_dataverse.fleet.mirrors import mirror_id
from operator_dataverse.fleet.orchestrator import Orchestrator
from operator_dataverse.fleet.presence import survey
from operator_dataverse.fleet.reclaim import Judged, Reclaim, cleanup
from operator_dataverse.fleet.tasks import Tasks
from operator_dataverse.fleet.users import Users
from operator_dataverse.settings import DataverseSettings
from tests.support.dataverse import double, plain_double

__all__ = ["double", "plain_double"]

TASKS, MESSAGES, USERS, CHATS = "cr_shraga_tasks", "cr_shragamessages", "crb3b_shragausers", "cr_shraga_conversations"
ALICE, BOB, ADMIN = "alice@example.com", "bob@example.com", "pool@example.com"
LEASE_S = 300.0
POOL = dict.fromkeys(("pool-1", "Pool-2", "pool-3"), ADMIN)


@pytest.fixture
async def client(double: Double) -> AsyncIterator[Dataverse]:
    async with Dataverse(double.url, StaticToken(double.token), retry_s=60) as opened:
        yield opened


def ago(seconds: float) -> str:
    return f"{clock.now() - timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def running(
    double: Double, beat: float | None, *, box: str = "box-1", modified: float | None = None, **more: Any
) -> str:
    values = {"cr_name": "Try", "crb3b_useremail": ALICE, "crb3b_devbox": box, **more}
    if beat is not None:
        values |= {"crb3b_heartbeat": ago(beat), "crb3b_leaseowner": f"{box}/w1"}
    touched = modified if modified is not None else beat if beat is not None else 0
    return double.seed(TASKS, cr_status=5, createdon=ago(90_000), modifiedon=ago(touched), **values)


def person(double: Double, email: str, box: str | None = None, seen: float | None = None, **more: Any) -> str:
    values = {"crb3b_useremail": email, "crb3b_devboxname": box, **more}
    if seen is not None:
        values["crb3b_workerseen"] = ago(seen)
    return double.seed(USERS, **{name: value for name, value in values.items() if value is not None})


async def judge(client: Dataverse, reclaim: Reclaim | None = None) -> dict[str, Judged]:
    fleet = await survey(client, TASKS, lease_s=LEASE_S, now=clock.now())
    return {one.task.id: one for one in (reclaim or Reclaim(client, TASKS, LEASE_S)).judge(fleet)}


async def take_back(client: Dataverse) -> dict[str, bool | None]:
    reclaim = Reclaim(client, TASKS, LEASE_S)
    done = await reclaim.take_back((await judge(client, reclaim)).values())
    return {one.task.id: one.taken for one in done}


async def test_only_a_lease_that_ended_is_taken_back(double: Double, client: Dataverse) -> None:
    # All rows are a day old: the age of a row says nothing.
    dead, living = running(double, LEASE_S * 2), running(double, LEASE_S / 2)
    unknown, close = running(double, None, modified=80_000), running(double, LEASE_S + 10)
    before = {task: double.tables[TASKS].etag(task) for task in (living, unknown, close)}
    assert await take_back(client) == {dead: True, unknown: None}
    row = double.tables[TASKS][dead]
    assert (row["cr_status"], row["crb3b_devbox"], row["crb3b_leaseowner"], row["crb3b_heartbeat"]) == (
        1,
        None,
        None,
        None,
    )
    assert row["cr_statusmessage"].startswith("Taken back from box-1: no sign of life since ")
    assert {task: double.tables[TASKS].etag(task) for task in before} == before


async def test_without_the_column_nothing_is_taken_back(plain_double: Double) -> None:
    task = plain_double.seed(
        TASKS, cr_name="Try", cr_status=5, crb3b_devbox="box-1", createdon=ago(90_000), modifiedon=ago(90_000)
    )
    async with Dataverse(plain_double.url, StaticToken(plain_double.token)) as client:
        assert await take_back(client) == {task: None}
    assert plain_double.tables[TASKS][task]["cr_status"] == 5


async def test_a_clock_that_is_slow_kills_no_worker(double: Double, client: Dataverse) -> None:
    # The box's clock is an hour behind; the service saw the beat just now.
    task = running(double, 3600, modified=5)
    judged = (await judge(client))[task]
    assert judged.verdict == "doubtful"
    assert await take_back(client) == {task: None}


async def test_a_heartbeat_from_the_future_does_not_live_for_ever(double: Double, client: Dataverse) -> None:
    task = running(double, -86_400, modified=0)
    fast = Clock(rate=20_000)
    reclaim = Reclaim(client, TASKS, LEASE_S, fast)
    assert task not in await judge(client, reclaim)
    while fast.monotonic() - reclaim._watched[task][1] < LEASE_S + 60:
        await fast.sleep(60)
    assert (await judge(client, reclaim))[task].verdict == "expired"
    # The service's clock knows better: the row was not touched for long.
    silent = running(double, -86_400, modified=LEASE_S * 2)
    assert (await judge(client))[silent].verdict == "expired"


async def test_what_stands_still_while_others_write_is_dead(double: Double, client: Dataverse) -> None:
    task = running(double, 3600, modified=0)
    fast = Clock(rate=20_000)
    reclaim = Reclaim(client, TASKS, LEASE_S, fast)
    assert (await judge(client, reclaim))[task].verdict == "doubtful"
    await fast.sleep(LEASE_S + 60)
    assert (await judge(client, reclaim))[task].verdict == "expired"
    row = await client.row(TASKS, task)
    assert row is not None
    beat = {"crb3b_heartbeat": f"{clock.now():%Y-%m-%dT%H:%M:%SZ}"}
    await client.update(TASKS, task, beat, etag=row.etag or "")
    assert task not in await judge(client, reclaim)


async def test_a_beat_in_the_last_moment_wins(double: Double, client: Dataverse) -> None:
    task = running(double, LEASE_S * 2)
    reclaim = Reclaim(client, TASKS, LEASE_S)
    judged = await judge(client, reclaim)
    row = await client.row(TASKS, task)
    assert row is not None
    await client.update(TASKS, task, {"crb3b_heartbeat": clock.now()}, etag=row.etag or "")
    assert [one.taken for one in await reclaim.take_back(judged.values())] == [False]
    assert double.tables[TASKS][task]["cr_status"] == 5


async def test_many_managers_take_a_row_back_once(double: Double) -> None:
    dead = [running(double, LEASE_S * 2, box=f"box-{n}") for n in range(20)]
    double.faults.storm(0.2)
    double.faults.add(Fault("drop_answer", rate=0.1, method="PATCH"))

    async def manager() -> dict[str, bool | None]:
        async with Dataverse(double.url, StaticToken(double.token), retry_s=60) as client:
            return await take_back(client)

    await asyncio.gather(*(manager() for _ in range(4)))
    double.faults.clear()
    for task in dead:
        assert double.history.values(TASKS, task, "cr_status") == [1]


async def test_what_waits_on_a_dead_box_is_freed_but_not_what_a_person_put_there(
    double: Double, client: Dataverse
) -> None:
    person(double, ALICE, "box-1", LEASE_S * 3)
    person(double, BOB, "box-2", 1)
    values = {"cr_name": "Try", "crb3b_useremail": ALICE}
    queued = double.seed(TASKS, cr_status=3, crb3b_devbox="box-1", **values)
    placed = double.seed(TASKS, cr_status=1, crb3b_devbox="box-1", cr_statusmessage="Assigned to box-1", **values)
    labelled = double.seed(TASKS, cr_status=3, crb3b_devbox="BOX-1", crb3b_label="gpu", **values)
    wanted = double.seed(TASKS, cr_status=1, crb3b_devbox="box-1", **values)
    living = double.seed(TASKS, cr_status=3, crb3b_devbox="box-2", **values)
    unknown = double.seed(TASKS, cr_status=3, crb3b_devbox="box-3", **values)
    assert await take_back(client) == {queued: True, placed: True, labelled: True}
    rows = double.tables[TASKS]
    assert [(rows[t]["cr_status"], rows[t].get("crb3b_devbox")) for t in (queued, placed, labelled)] == [
        (1, None),
        (1, None),
        (3, None),
    ]
    assert [rows[t]["crb3b_devbox"] for t in (wanted, living, unknown)] == ["box-1", "box-2", "box-3"]


async def test_boxes_are_alive_gone_or_unknown(double: Double, client: Dataverse) -> None:
    person(double, ALICE, "box-1", 5, crb3b_capacity=2, crb3b_labels="GPU, big")
    person(double, BOB, "box-2", LEASE_S * 2)
    person(double, "carol@example.com", "box-3")
    running(double, 5, box="Box-1")
    running(double, 5, box="box-4")
    running(double, None, box="box-5")
    fleet = await survey(client, TASKS, lease_s=LEASE_S, now=clock.now())
    assert {box.name.lower(): box.life for box in fleet.boxes} == {
        "box-1": "alive",
        "box-2": "gone",
        "box-3": "unknown",
        "box-4": "alive",
        "box-5": "unknown",
    }
    first = fleet.box("BOX-1")
    assert first is not None
    assert (first.capacity, first.free, first.labels) == (2, 1, {"gpu", "big"})


async def test_only_the_configured_person_of_a_shared_box_gets_what_is_meant_for_it(
    double: Double, client: Dataverse
) -> None:
    person(double, BOB, "POOL-1", 0, crb3b_labels="gpu", crb3b_capacity=100)
    person(double, ADMIN.upper(), "pool-1", 200)
    task, other = waiting(double), waiting(double)
    fancy = waiting(double, crb3b_label="gpu")
    placed = await place(client)
    assert (placed.handed, placed.waiting) == (((task, "pool-1"),), (other, fancy))
    assert double.tables[TASKS][mirror_id(task)]["crb3b_useremail"] == ADMIN.upper()


async def test_nobody_makes_a_box_a_shared_one_by_saying_so(double: Double, client: Dataverse) -> None:
    account = double.add_account("mallory@example.com", reach="own")
    async with Dataverse(double.url, StaticToken(account.token)) as mallory:
        users = Users(mallory)
        for box in ("mallory-box", "pool-1"):
            claim = {"labels": "shared", "capacity": "100", "devbox_name": box}
            await users.set("mallory@example.com", claim)
            await users.worker_seen("mallory@example.com", box)
            task = waiting(double)
            assert task in (await place(client)).waiting
    assert not [row for row in double.tables[TASKS].where() if row.get("cr_ismirror")]
    assert not double.history.effects(TASKS)


async def test_a_worker_shows_that_it_lives(double: Double, client: Dataverse) -> None:
    await Users(client).worker_seen(ALICE, "box-1")
    await Users(client).worker_seen(ALICE, "box-2")  # a second box of hers is no news about the first
    assert len(double.history.effects(USERS)) == 1
    (row,) = double.tables[USERS].where()
    assert row["crb3b_devboxname"] == "box-1"
    assert row.get("crb3b_lastseen") is None  # that is the personal manager's
    fleet = await survey(client, TASKS, lease_s=LEASE_S, now=clock.now())
    assert [(box.name, box.life) for box in fleet.boxes] == [("box-1", "alive")]


@pytest.mark.parametrize("dry_run", [True, False])
async def test_replies_that_nobody_fetched_expire(double: Double, client: Dataverse, dry_run: bool) -> None:
    def reply(age: float, direction: str = "Outbound", status: str = "Unclaimed", email: str = ALICE) -> str:
        return double.seed(
            CHATS, cr_name="x", cr_direction=direction, cr_status=status, cr_useremail=email, createdon=ago(age)
        )

    old, others = reply(700), [reply(500), reply(700, "Inbound"), reply(700, status="Delivered"), reply(700, email=BOB)]
    done = await cleanup(client, older_s=600, email=ALICE.upper(), dry_run=dry_run)
    assert (done.stale, done.expired) == ((old,), () if dry_run else (old,))
    assert double.tables[CHATS][old]["cr_status"] == ("Unclaimed" if dry_run else "Expired")
    assert all(double.tables[CHATS][row]["cr_status"] != "Expired" for row in others)


# ---- placing


def waiting(double: Double, email: str = ALICE, code: int = 1, **more: Any) -> str:
    return double.seed(TASKS, cr_name="Try", cr_prompt="Do it", crb3b_useremail=email, cr_status=code, **more)


async def place(client: Dataverse, **more: Any) -> Any:
    fleet = await survey(client, TASKS, lease_s=LEASE_S, now=clock.now(), shared=POOL)
    return await Orchestrator(client, TASKS, **more).round(fleet)


async def test_a_task_with_a_label_goes_to_the_box_of_its_person_that_offers_it(
    double: Double, client: Dataverse
) -> None:
    person(double, ALICE, "box-1", 1, crb3b_labels="cpu")
    person(double, ALICE, "box-2", 1, crb3b_labels="gpu, big")
    person(double, BOB, "box-3", 1, crb3b_labels="gpu", crb3b_capacity=9)
    task = (await Tasks(client, user=ALICE).create("Train", label="GPU")).id
    other = (await Tasks(client, user=ALICE).create("Train", label="gpu")).id
    placed = await place(client)
    assert placed.assigned == ((task, "box-2"),)
    assert placed.waiting == (other,)  # the box has room for one
    row = double.tables[TASKS][task]
    assert (row["cr_status"], row["crb3b_devbox"], row["crb3b_useremail"]) == (1, "box-2", ALICE)


async def test_what_the_own_worker_takes_is_left_alone(double: Double, client: Dataverse) -> None:
    person(double, ALICE, "box-1", 1)
    person(double, ADMIN, "pool-1", 1, crb3b_capacity=9)
    waiting(double)
    waiting(double, email="")  # a row of nobody is nobody's (D-42)
    assert (await place(client)).to_dict() == {
        "assigned": [],
        "handed": [],
        "waiting": [],
        "synced": [],
        "provisioned": None,
    }
    assert not double.history.effects()


async def test_capacity_and_age_decide(double: Double, client: Dataverse) -> None:
    person(double, ADMIN, "pool-1", 1, crb3b_capacity=2)
    person(double, ADMIN, "pool-2", 1, crb3b_capacity=1)
    person(double, ADMIN, "pool-3", LEASE_S * 2, crb3b_capacity=9)
    running(double, 1, box="pool-2", crb3b_useremail=ADMIN)
    tasks = [waiting(double, createdon=f"2026-01-0{day}T00:00:00Z") for day in (3, 1, 2)]
    placed = await place(client)
    assert [task for task, _ in placed.handed] == [tasks[1], tasks[2]]
    assert {box for _, box in placed.handed} == {"pool-1"}
    assert placed.waiting == (tasks[0],)


async def finished(double: Double, client: Dataverse, row_id: str, **values: Any) -> None:
    row = await client.row(TASKS, row_id)
    assert row is not None
    await client.update(TASKS, row_id, values, etag=row.etag or "")


async def test_a_mirror_from_its_making_to_its_end(double: Double, client: Dataverse) -> None:
    person(double, ADMIN, "pool-1", 1)
    task = waiting(double)
    assert (await place(client)).handed == ((task, "pool-1"),)
    mirror = mirror_id(task)
    row = double.tables[TASKS][mirror]
    assert (row["crb3b_useremail"], row["crb3b_devbox"], row["cr_status"], row["cr_prompt"]) == (
        ADMIN,
        "pool-1",
        1,
        "Do it",
    )
    assert (row["cr_ismirror"], row["cr_mirroroftaskid"]) == (True, task)
    assert double.tables[TASKS][task]["cr_status"] == 3
    assert (await place(client)).handed == ()

    await finished(double, client, mirror, cr_status=5, cr_statusmessage="Claimed by pool-1")
    await place(client)
    assert double.tables[TASKS][task]["cr_status"] == 5
    assert task not in await judge(client)  # its worker is the mirror's

    said = {"cr_name": "x", "cr_from": "Integrated Task Worker", "cr_to": ADMIN, "crb3b_taskid": mirror}
    double.seed(MESSAGES, cr_content="Worker blocked: shall it be blue or green?", **said)
    await finished(double, client, mirror, cr_status=6, cr_statusmessage="Blue or green?")
    await place(client)
    await place(client)
    (question,) = double.tables[MESSAGES].where(crb3b_taskid=task)
    assert (question["cr_to"], question["cr_content"]) == (ALICE, "Worker blocked: shall it be blue or green?")
    assert (double.tables[TASKS][task]["cr_status"], double.tables[TASKS][task]["cr_statusmessage"]) == (
        6,
        "Blue or green?",
    )
    await Tasks(client, user=ALICE).answer(task, "Blue")
    await place(client)
    (passed,) = double.tables[MESSAGES].where(crb3b_taskid=mirror, cr_from=ADMIN)
    assert (passed["cr_from"], passed["cr_to"], passed["cr_content"]) == (ADMIN, "pool-1", "Blue")
    assert double.tables[TASKS][mirror]["cr_status"] == 1
    assert double.tables[TASKS][task]["cr_status"] == 3

    await finished(double, client, mirror, cr_status=5, cr_statusmessage="Claimed by pool-1")
    await place(client)
    assert double.tables[TASKS][task]["cr_status"] == 5
    long = {
        "cr_result": "Done: it's <b>blue</b>",
        "cr_transcript": "x" * 1_000_000,
        "crb3b_onedriveurl": "https://example.com/x",
    }
    await finished(double, client, mirror, cr_status=7, cr_statusmessage="Completed", **long)
    await place(client)
    done = double.tables[TASKS][task]
    assert (done["cr_status"], done["cr_statusmessage"]) == (7, "Completed")
    assert {name: done[name] for name in long} == long
    assert (await place(client)).synced == ()

    await Tasks(client, user=ALICE).reopen(task)
    await place(client)
    assert double.tables[TASKS][mirror]["cr_status"] == 1
    assert double.tables[TASKS][task]["cr_status"] == 3
    await Tasks(client, user=ALICE).cancel(task)
    await place(client)
    assert double.tables[TASKS][mirror]["cr_status"] == 9
    assert double.tables[TASKS][task]["cr_status"] == 9


async def test_a_task_does_not_end_before_the_texts_of_its_mirror_are_there(double: Double, client: Dataverse) -> None:
    """A worker writes the state first; a task that ended between the two would never be looked at again."""
    person(double, ADMIN, "pool-1", 1)
    task = waiting(double)
    await place(client)
    mirror = mirror_id(task)
    await finished(double, client, mirror, cr_status=7, cr_statusmessage="Completed")
    await place(client)
    assert double.tables[TASKS][task]["cr_status"] == 3
    await finished(double, client, mirror, cr_result="Done")
    await place(client)
    assert double.tables[TASKS][task]["cr_status"] == 3
    await finished(double, client, mirror, cr_transcript="{}")
    await place(client)
    done = double.tables[TASKS][task]
    assert (done["cr_status"], done["cr_result"], done["cr_transcript"]) == (7, "Done", "{}")


async def test_the_texts_of_a_worker_that_died_are_not_waited_for_for_ever(double: Double, client: Dataverse) -> None:
    person(double, ADMIN, "pool-1", 1)
    task = waiting(double)
    await place(client)
    double.clock.advance(-120)
    await finished(double, client, mirror_id(task), cr_status=8, cr_statusmessage="Failed")
    await place(client)
    assert double.tables[TASKS][task]["cr_status"] == 8


async def test_a_box_of_the_person_that_comes_in_between_wins(double: Double, client: Dataverse) -> None:
    person(double, ADMIN, "pool-1", 1)
    task = waiting(double)
    await place(client)
    await finished(double, client, task, cr_status=5, crb3b_devbox="box-1")
    await place(client)
    assert double.tables[TASKS][mirror_id(task)]["cr_status"] == 9
    assert double.tables[TASKS][task]["cr_status"] == 5


async def test_a_hand_over_that_was_interrupted_is_completed(double: Double, client: Dataverse) -> None:
    person(double, ADMIN, "pool-1", 1)
    task = waiting(double)
    double.faults.add(Fault("busy", method="PATCH", path=mirror_id(task), retry_after=None))
    async with Dataverse(double.url, StaticToken(double.token), retry_s=0) as hasty:
        with pytest.raises(DataverseError):
            await place(hasty)
    assert double.tables[TASKS][task]["cr_status"] == 3
    double.faults.clear()
    assert (await place(client)).handed == ((task, "pool-1"),)
    assert len(double.tables[TASKS]) == 2


async def test_many_orchestrators_make_one_mirror(double: Double) -> None:
    person(double, ADMIN, "pool-1", 1, crb3b_capacity=50)
    tasks = [waiting(double) for _ in range(8)]
    double.faults.storm(0.2)

    async def one() -> None:
        async with Dataverse(double.url, StaticToken(double.token), retry_s=60) as client:
            await place(client)

    await asyncio.gather(*(one() for _ in range(4)))
    double.faults.clear()
    await one()
    assert len(double.tables[TASKS]) == 16
    for task in tasks:
        assert double.history.values(TASKS, task, "cr_status") == [3]


async def test_a_forged_mirror_is_not_believed(double: Double, client: Dataverse) -> None:
    person(double, ADMIN, "pool-1", 1)
    mallory = double.add_account("mallory@example.com", reach="own")
    task = waiting(double, code=6)
    secret = double.seed(
        MESSAGES, cr_name="x", cr_content="secret", cr_from=ALICE, cr_to="Integrated Task Worker", crb3b_taskid=task
    )
    for row_id, account, code in ((mirror_id(task), mallory, 6), (None, mallory, 7), (None, double.admin, 5)):
        double.seed(
            TASKS,
            account=account,
            row_id=row_id,
            cr_name="x",
            cr_status=code,
            cr_ismirror=True,
            cr_mirroroftaskid=task,
            crb3b_useremail="mallory@example.com",
            cr_result="all yours",
        )
    await place(client)
    await Tasks(client, user=ALICE).answer(task, "more secrets")
    placed = await place(client)
    assert placed.handed == ()  # the id of its mirror is taken; nothing is given away for that
    assert double.tables[TASKS][task].get("cr_result") is None
    assert len(double.tables[MESSAGES]) == 2
    assert secret in double.tables[MESSAGES]


async def test_without_the_columns_nothing_is_handed_over(plain_double: Double) -> None:
    plain_double.seed(USERS, crb3b_useremail=ADMIN, crb3b_devboxname="pool-1", crb3b_lastseen=ago(1))
    task = plain_double.seed(TASKS, cr_name="Try", crb3b_useremail=ALICE, cr_status=1)
    async with Dataverse(plain_double.url, StaticToken(plain_double.token)) as client:
        assert (await place(client)).waiting == (task,)
    assert not plain_double.history.effects()


async def test_too_many_waiting_tasks_ask_for_one_box(double: Double, client: Dataverse) -> None:
    double.devcenter.takes_s = 0.3
    settings = DataverseSettings(
        devcenter_url=double.devcenter_url, devcenter_project="example", devcenter_pool="example-pool"
    )
    async with DevBoxes.open(settings, StaticToken(double.token), poll_s=0.1) as boxes:
        for _ in range(5):
            waiting(double)
        assert (await place(client, devboxes=boxes)).provisioned is None
        waiting(double)
        rounds = await asyncio.gather(*(place(client, devboxes=boxes) for _ in range(3)))
        assert sorted(str(one.provisioned) for one in rounds) == ["None", "None", "shraga-box-01"]
        assert (await place(client, devboxes=boxes)).provisioned is None  # one is on its way
        assert len(await boxes.list()) == 1


# ---- the loop


def manager(client: Dataverse, say: list[str], **more: Any) -> FleetManager:
    return FleetManager(client, TASKS, lease_s=LEASE_S, say=say.append, **more)


async def test_the_manager_says_what_is_new_and_waits_out_trouble(double: Double, client: Dataverse) -> None:
    person(double, ALICE, "box-1", 1)
    unknown = running(double, None, box="box-9", cr_name="Try\u202e\nthis")
    said: list[str] = []
    stop = asyncio.Event()
    async with Dataverse(double.url, StaticToken(double.token), retry_s=0) as hasty:
        working = asyncio.ensure_future(manager(hasty, said, poll_s=0.05).run(stop))
        try:
            await until(lambda: any(unknown[:8] in line for line in said))
            fault = double.faults.add(Fault("busy", retry_after=None))
            await until(lambda: fault.hits >= 4)
            assert sum("pause" in line for line in said) == 1
            dead = running(double, LEASE_S * 2)
            double.faults.clear()
            await until(lambda: double.tables[TASKS][dead]["cr_status"] == 1)
            await until(lambda: any("taken back" in line for line in said))
        finally:
            stop.set()
            await working
    assert len(said) == len(set(said)), said
    assert not any("\u202e" in line or "\n" in line for line in said)


async def test_an_account_that_is_refused_ends_the_manager(double: Double) -> None:
    async with Dataverse(double.url, StaticToken("wrong"), retry_s=0) as client:
        with pytest.raises(Unauthorized):
            await manager(client, []).run(asyncio.Event())


async def test_a_service_that_is_away_at_first_is_waited_for(double: Double) -> None:
    dead = running(double, LEASE_S * 2)
    fault = double.faults.add(Fault("busy", retry_after=None, times=3))
    stop = asyncio.Event()
    async with Dataverse(double.url, StaticToken(double.token), retry_s=0) as hasty:
        working = asyncio.ensure_future(manager(hasty, [], poll_s=0.02).run(stop))
        try:
            await until(lambda: double.tables[TASKS][dead]["cr_status"] == 1)
        finally:
            stop.set()
            await working
    assert fault.hits == 3


async def test_a_look_changes_nothing(double: Double, client: Dataverse) -> None:
    dead = running(double, LEASE_S * 2)
    found = await manager(client, []).look()
    assert [(one.task.id, one.verdict) for one in found.judged] == [(dead, "expired")]
    assert not double.history.effects()


async def until(condition: Any) -> None:
    deadline = clock.monotonic() + 30
    while not condition():
        assert clock.monotonic() < deadline
        await asyncio.sleep(0.02)
