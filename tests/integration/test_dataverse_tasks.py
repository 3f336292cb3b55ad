"""Tasks and people in Dataverse, from the side of the people who give them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.double.faults import Fault
from operator_dataverse.errors import DataverseError, Refused, SchemaProblem
from operator_dataverse.fleet.tasks import Tasks
from operator_dataverse.fleet.users import Users, known_of
from operator_dataverse.tables.task import TaskCode
from tests.support.dataverse import double, plain_double

__all__ = ["double", "plain_double"]

TASKS, MESSAGES, USERS = "cr_shraga_tasks", "cr_shragamessages", "crb3b_shragausers"
ALICE, BOB = "alice@example.com", "bob@example.com"
HOSTILE = "o'brien') or (cr_status eq 1 or crb3b_useremail ne '@example.com"


@pytest.fixture
async def client(double: Double) -> AsyncIterator[Dataverse]:
    async with Dataverse(double.url, StaticToken(double.token), retry_s=60) as opened:
        yield opened


def seed(double: Double, code: int, user: str = ALICE, **values: object) -> str:
    columns = {"cr_name": "Try", "cr_prompt": "Do it", "crb3b_useremail": user, **values}
    return double.seed(TASKS, cr_status=code, **columns)


async def test_a_task_is_made_as_workers_look_for_it(double: Double, client: Dataverse) -> None:
    task = await Tasks(client, user=ALICE).create("  \nFix the O'Brien login\nSoon.", box="box-1")
    row = double.tables[TASKS][task.id]
    assert (row["cr_status"], row["crb3b_useremail"], row["crb3b_devbox"]) == (1, ALICE, "box-1")
    assert row["cr_name"] == "Fix the O'Brien login"
    assert row["cr_prompt"] == "  \nFix the O'Brien login\nSoon."
    assert task.status is TaskCode.PENDING


async def test_a_name_of_astral_characters_fits_its_column(double: Double, client: Dataverse) -> None:
    task = await Tasks(client, user=ALICE).create("\U0001f600" * 300)
    assert len(double.tables[TASKS][task.id]["cr_name"].encode("utf-16-le")) // 2 <= 100


@pytest.mark.parametrize("prompt", ["", " \n\t", "x" * 100_001, "\U0001f600" * 50_001])
async def test_a_prompt_that_would_be_lost_is_refused(double: Double, client: Dataverse, prompt: str) -> None:
    with pytest.raises(Refused):
        await Tasks(client, user=ALICE).create(prompt)
    assert not double.tables[TASKS]


@pytest.mark.parametrize("words", [{"box": "x" * 201}, {"box": " "}, {"label": ""}, {"label": "\U0001f600" * 101}])
async def test_a_name_that_would_be_cut_is_refused(double: Double, client: Dataverse, words: dict[str, str]) -> None:
    with pytest.raises(Refused):
        await Tasks(client, user=ALICE).create("Do it", **words)
    assert not double.tables[TASKS]


async def test_the_same_key_makes_one_task(double: Double, client: Dataverse) -> None:
    tasks = Tasks(client, user=ALICE)
    made = await asyncio.gather(*(tasks.create("Once", key="row-7") for _ in range(6)))
    assert len({task.id for task in made}) == 1
    assert len(double.tables[TASKS]) == 1
    assert (await Tasks(client, user=BOB).create("Once", key="row-7")).id != made[0].id


async def test_a_task_with_a_label_waits_for_the_fleet(double: Double, client: Dataverse) -> None:
    task = await Tasks(client, user=ALICE).create("Train it", label="gpu")
    row = double.tables[TASKS][task.id]
    assert (row["cr_status"], row["crb3b_label"], row.get("crb3b_devbox")) == (3, "gpu", None)
    placed = await Tasks(client, user=ALICE).create("Train it", label="gpu", box="box-1")
    assert placed.status is TaskCode.PENDING


async def test_labels_need_their_column(plain_double: Double) -> None:
    async with Dataverse(plain_double.url, StaticToken(plain_double.token)) as client:
        with pytest.raises(Refused, match="schema create"):
            await Tasks(client, user=ALICE).create("Train it", label="gpu")
        assert (await Tasks(client, user=ALICE).create("Do it")).status is TaskCode.PENDING


@pytest.mark.parametrize("code", [1, 3, 5, 6])
async def test_whatever_has_not_ended_can_be_canceled_by_its_id(double: Double, client: Dataverse, code: int) -> None:
    older, newer = seed(double, code), seed(double, 5)
    task = await Tasks(client).cancel(older, author=ALICE)
    assert task.status is TaskCode.CANCELED
    assert double.tables[TASKS][older]["cr_statusmessage"] == f"Canceled by {ALICE}"
    assert double.tables[TASKS][newer]["cr_status"] == 5
    assert (await Tasks(client).cancel(older)).status is TaskCode.CANCELED
    assert double.history.values(TASKS, older, "cr_status") == [9]


@pytest.mark.parametrize("code", [7, 8])
async def test_what_has_ended_is_not_canceled(double: Double, client: Dataverse, code: int) -> None:
    task = seed(double, code)
    with pytest.raises(Refused, match="ended"):
        await Tasks(client).cancel(task)
    assert double.tables[TASKS][task]["cr_status"] == code


async def test_a_cancellation_wins_over_a_worker_that_writes_all_the_time(double: Double, client: Dataverse) -> None:
    task = seed(double, 5)
    going = True

    async def worker() -> None:
        while going:
            row = await client.row(TASKS, task)
            assert row is not None
            if row["cr_status"] != 5:
                return
            await client.update(TASKS, task, {"cr_statusmessage": "busy"}, etag=row.etag or "")

    writing = asyncio.ensure_future(worker())
    try:
        assert (await Tasks(client).cancel(task)).status is TaskCode.CANCELED
    finally:
        going = False
        await writing
    assert double.tables[TASKS][task]["cr_status"] == 9


async def test_an_answer_is_a_message_first_and_then_the_status(double: Double, client: Dataverse) -> None:
    task = seed(double, 6, crb3b_devbox="box-1")
    found = await Tasks(client, user=ALICE).answer(task, "Use the <b>blue</b> one; it's safe")
    assert found.status is TaskCode.PENDING
    (message,) = double.tables[MESSAGES].where(crb3b_taskid=task)
    assert (message["cr_from"], message["cr_to"]) == (ALICE, "box-1")
    assert message["cr_content"] == "Use the <b>blue</b> one; it's safe"
    assert [effect.table for effect in double.history.effects()] == [MESSAGES, TASKS]


async def test_an_answer_that_is_repeated_after_a_crash_is_one_answer(double: Double, client: Dataverse) -> None:
    task = seed(double, 6)
    tasks = Tasks(client, user=ALICE)
    await tasks.answer(task, "Yes", key="row-1")
    assert (await tasks.answer(task, "Yes", key="row-1")).status is TaskCode.PENDING
    assert len(double.tables[MESSAGES]) == 1
    assert double.history.values(TASKS, task, "cr_status") == [1]


async def test_an_answer_that_was_interrupted_halfway_is_completed(double: Double, client: Dataverse) -> None:
    task = seed(double, 6)
    double.faults.add(Fault("busy", method="PATCH", path=TASKS, retry_after=None))
    async with Dataverse(double.url, StaticToken(double.token), retry_s=0) as hasty:
        with pytest.raises(DataverseError):
            await Tasks(hasty, user=ALICE).answer(task, "Yes", key="row-1")
    assert double.tables[TASKS][task]["cr_status"] == 6
    double.faults.clear()
    await Tasks(client, user=ALICE).answer(task, "Yes", key="row-1")
    assert double.tables[TASKS][task]["cr_status"] == 1
    assert len(double.tables[MESSAGES]) == 1


async def test_an_answer_stays_when_only_the_news_of_it_was_lost(double: Double, client: Dataverse) -> None:
    task = seed(double, 6)
    double.faults.drop_answer(method="PATCH", path=TASKS)
    assert (await Tasks(client).answer(task, "Yes")).status is TaskCode.PENDING
    assert [message["cr_content"] for message in double.tables[MESSAGES].where()] == ["Yes"]
    assert double.history.values(TASKS, task, "cr_status") == [1]


@pytest.mark.parametrize("code", [1, 3, 5, 7, 8, 9])
async def test_an_answer_that_nobody_asked_for_leaves_nothing(double: Double, client: Dataverse, code: int) -> None:
    task = seed(double, code)
    with pytest.raises(Refused, match="waits for no answer"):
        await Tasks(client).answer(task, "Yes")
    assert double.tables[TASKS][task]["cr_status"] == code
    assert not double.tables[MESSAGES]


@pytest.mark.parametrize("code", [7, 8, 9])
async def test_an_ended_task_begins_again_on_its_box(double: Double, client: Dataverse, code: int) -> None:
    lease = {"crb3b_leaseowner": "box-1/w1", "crb3b_heartbeat": "2026-01-01T00:00:00Z"}
    task = seed(double, code, crb3b_devbox="box-1", **lease)
    await Tasks(client).reopen(task, author=BOB)
    row = double.tables[TASKS][task]
    assert (row["cr_status"], row["crb3b_devbox"], row["crb3b_leaseowner"]) == (1, "box-1", None)
    assert row["cr_statusmessage"] == f"Opened again by {BOB}"


async def test_a_restart_whose_answer_was_lost_is_one_restart(double: Double, client: Dataverse) -> None:
    task = seed(double, 7)
    double.faults.drop_answer(method="PATCH")
    assert (await Tasks(client).reopen(task)).status is TaskCode.PENDING
    assert double.history.values(TASKS, task, "cr_status") == [1]
    with pytest.raises(Refused):
        await Tasks(client).reopen(task)


async def test_what_runs_does_not_begin_again(double: Double, client: Dataverse) -> None:
    task = seed(double, 5)
    with pytest.raises(Refused):
        await Tasks(client).reopen(task)
    assert double.tables[TASKS][task]["cr_status"] == 5


async def test_a_person_sees_and_touches_only_own_tasks(double: Double, client: Dataverse) -> None:
    hers, his = seed(double, 6), seed(double, 6, BOB)
    older = double.seed(TASKS, cr_name="Old", cr_status=1, cr_userid="Alice@Example.com")
    tasks = Tasks(client, user=ALICE)
    assert {task.id for task in await tasks.list()} == {hers, older}
    assert (await tasks.show(older)).id == older
    calls = (tasks.show, tasks.cancel, tasks.reopen, lambda task: tasks.answer(task, "x"))
    missing = "00000000-0000-4000-8000-000000000000"
    for call in calls:
        for task in (his, his[:8]):
            with pytest.raises(Refused) as theirs:
                await call(task)
            with pytest.raises(Refused) as nobodys:
                await call(missing if task == his else missing[:8])
            # Nothing tells a task of somebody else from one that is not there.
            assert str(theirs.value).replace(task, "") == str(nobodys.value).replace(missing, "").replace(
                "00000000", ""
            )
    assert double.tables[TASKS][his]["cr_status"] == 6
    assert not double.tables[MESSAGES]
    with pytest.raises(Refused):
        await tasks.create("For him", user=BOB)


async def test_the_beginning_of_an_id_is_enough_when_it_fits_one(double: Double, client: Dataverse) -> None:
    one = double.seed(TASKS, row_id="abcdef01-0000-4000-8000-000000000001", cr_name="1", cr_status=1)
    double.seed(TASKS, row_id="abcdef02-0000-4000-8000-000000000002", cr_name="2", cr_status=1)
    assert (await Tasks(client).show("ABCDEF01")).id == one
    with pytest.raises(Refused, match="2 tasks"):
        await Tasks(client).cancel("abcdef")


@pytest.mark.parametrize("task", ["", "x", "abc", "../WhoAmI", HOSTILE, "\x00", "🙂🙂🙂🙂🙂🙂", "1" * 500])
async def test_what_is_no_id_is_told_so(client: Dataverse, double: Double, task: str) -> None:
    with pytest.raises(Refused):
        await Tasks(client, user=ALICE).cancel(task)


async def test_hostile_words_are_words(double: Double, client: Dataverse) -> None:
    user = "o'brien%27)or(1@example.com"
    mine = await Tasks(client, user=user).create(HOSTILE, box="x' or 1 eq 1 --")
    seed(double, 1)
    assert [task.id for task in await Tasks(client, user=user).list()] == [mine.id]
    assert [task.id for task in await Tasks(client).list(box="x' or 1 eq 1 --")] == [mine.id]
    assert double.tables[TASKS][mine.id]["cr_prompt"] == HOSTILE


async def test_lists_are_the_newest_first_and_limited(double: Double, client: Dataverse) -> None:
    ids = [seed(double, 5, createdon=f"2026-01-0{day}T00:00:00Z") for day in range(1, 6)]
    seed(double, 7)
    found = await Tasks(client).list(codes={TaskCode.RUNNING}, limit=3)
    assert [task.id for task in found] == ids[::-1][:3]


async def test_a_storm_loses_and_doubles_nothing(double: Double, client: Dataverse) -> None:
    waiting = [seed(double, 6) for _ in range(6)]
    double.faults.storm(0.3)
    tasks = Tasks(client, user=ALICE)
    await asyncio.gather(*(tasks.answer(task, "Go on", key="k") for task in waiting), tasks.create("New", key="k"))
    double.faults.clear()
    for task in waiting:
        assert double.history.values(TASKS, task, "cr_status") == [1]
        assert len(double.tables[MESSAGES].where(crb3b_taskid=task)) == 1
    assert len(double.tables[TASKS]) == 7


async def test_a_person_becomes_known_once(double: Double, client: Dataverse) -> None:
    users = Users(client)
    assert await users.get(ALICE) is None
    # Each of them has looked, and found nothing, before the first one writes.
    double.faults.add(Fault("delay", seconds=0.3, method="PATCH", times=4))
    steps = ["awaiting_setup", "provisioning", "waiting_provisioning", "auth_pending"]
    await asyncio.gather(*(users.set(ALICE, {"onboarding_step": step}) for step in steps))
    assert len(double.history.requests("PATCH", USERS)) > 4
    assert len(double.tables[USERS]) == 1
    user = await users.set(ALICE, {"devbox_status": "Succeeded", "devbox_name": "box-1", "capacity": "3"})
    known = known_of(user)
    assert (known["provisioning_started"], known["provisioning_complete"], known["auth_complete"]) == (
        True,
        True,
        False,
    )
    assert (known["capacity"], known["last_seen"]) == (3, None)


async def test_a_sign_of_life_of_the_manager_is_not_one_of_the_worker(double: Double, client: Dataverse) -> None:
    user = await Users(client).seen(ALICE, values={"manager_status": "Running"})
    assert user.last_seen is not None
    assert user.worker_seen is None


@pytest.mark.parametrize(
    "values",
    [
        {"connection_url": "https://example.com"},
        {"crb3b_useremail": "x"},
        {"devbox_status": "running"},
        {"onboarding_step": "done'"},
        {"capacity": "-1"},
        {"capacity": "٣"},
        {"devbox_name": "x" * 201},
    ],
)
async def test_only_what_is_on_the_list_is_written(double: Double, client: Dataverse, values: dict[str, str]) -> None:
    with pytest.raises(Refused):
        await Users(client).set(ALICE, values)
    assert not double.tables[USERS]


async def test_a_column_that_is_not_there_is_said_and_nothing_is_written(plain_double: Double) -> None:
    async with Dataverse(plain_double.url, StaticToken(plain_double.token)) as client:
        with pytest.raises(SchemaProblem, match="crb3b_capacity"):
            await Users(client).set(ALICE, {"capacity": "2", "devbox_name": "box-1"})
    assert not plain_double.tables[USERS]


async def test_an_error_is_not_an_unknown_person(double: Double) -> None:
    double.seed(USERS, crb3b_useremail="o'brien@example.com")
    async with Dataverse(double.url, StaticToken(double.token), retry_s=0) as client:
        assert (await Users(client).get("O'Brien@example.com")) is not None
        double.faults.storm(1.0)
        with pytest.raises(DataverseError):
            await Users(client).get("o'brien@example.com")
