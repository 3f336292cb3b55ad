"""Whose a row is decides what it can say: nobody speaks for somebody else, and people see what is made for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operator_core import clock
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import FunctionBrain
from operator_dataverse.chat.conversations import Conversations
from operator_dataverse.cli.doctor import look_at_rights
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double, Fault
from operator_dataverse.double.store import Account
from operator_dataverse.errors import Refused
from operator_dataverse.fleet.mirrors import Mirrors, mirror_id
from operator_dataverse.fleet.presence import Box, survey
from operator_dataverse.fleet.tasks import Tasks
from operator_dataverse.fleet.users import Users
from operator_dataverse.intake.claims import claim_task
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.tables.conversation import ConversationStatus
from operator_dataverse.tables.task import TaskCode
from tests.support.dataverse import double
from tests.support.dataverse_chat import BOB, CHAT, USERS, open_chat, said
from tests.support.intake import ALICE, MESSAGES, TASKS, Site, site

__all__ = ["double"]

ECHO = FunctionBrain(lambda turn: f"You wrote: {said(turn)}")


@pytest.fixture
def mallory(double: Double) -> Account:
    return double.add_account("mallory@example.com", reach="own")


@pytest.fixture
def flows(double: Double) -> Account:
    return double.add_account("flows@example.com")


@pytest.fixture
def alice(double: Double) -> Account:
    return double.add_account(ALICE, reach="own")


@pytest.fixture
async def box(double: Double, tmp_path: Path) -> AsyncIterator[Site]:
    """A worker with an account of its own that sees everything."""
    async with site(double, str(tmp_path / "a.db"), slots=5) as found:
        yield found


async def opened(server: Double, account: Account, *trusted: Account) -> Dataverse:
    return Dataverse(server.url, StaticToken(account.token), trusted=[one.user_id.upper() for one in trusted])


# ---- tasks


async def test_a_task_that_only_names_a_person_is_passed_over_and_that_is_said_once(
    box: Site, double: Double, mallory: Account, alice: Account
) -> None:
    forged = [
        double.seed(TASKS, account=mallory, cr_name="x", cr_prompt="x", crb3b_useremail=ALICE, **more)
        for more in (
            {"cr_status": 1},
            {"cr_status": 1, "crb3b_devbox": "box-1"},
            {"cr_status": 3, "crb3b_devbox": "box-1"},
        )
    ]
    hers = double.seed(TASKS, account=alice, cr_name="x", cr_prompt="x", cr_status=1, crb3b_useremail=ALICE)
    assert await box.look() == 1
    box.rounds._next_strangers = 0.0
    assert await box.look() == 0
    assert box.row(hers)["cr_status"] == 5
    for row_id in forged:
        assert double.history.values(TASKS, row_id, "cr_status") == []
        (line,) = [line for line in box.said if row_id[:8] in line]
        assert mallory.user_id in line
        assert "trusted_owners" in line
    row = await box.desk.row(forged[0])
    assert row is not None
    assert not await claim_task(box.desk, row)


async def test_forged_rows_however_many_keep_no_other_waiting(box: Site, double: Double, mallory: Account) -> None:
    for number in range(30):
        double.seed(
            TASKS, account=mallory, cr_name=f"{number}", cr_status=3, crb3b_useremail=ALICE, crb3b_devbox="box-1"
        )
    queued = box.seed(cr_status=3, crb3b_devbox="box-1")
    assert await box.look() == 1
    assert box.row(queued)["cr_status"] == 5


async def test_an_owner_that_the_settings_trust_is_believed(
    double: Double, mallory: Account, flows: Account, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"cr_name": "x", "cr_prompt": "x", "cr_status": 1, "crb3b_useremail": ALICE}
    trusted, other = double.seed(TASKS, account=flows, **values), double.seed(TASKS, account=mallory, **values)
    async with site(double, str(tmp_path / "a.db"), slots=5, trusted=[flows.user_id]) as here:
        assert await here.look() == 1
        assert [here.row(one)["cr_status"] for one in (trusted, other)] == [5, 1]


async def test_two_users_with_one_address_are_nobody(
    box: Site, double: Double, mallory: Account, alice: Account
) -> None:
    double.change("systemusers", mallory.user_id, internalemailaddress=ALICE)
    owners = box.desk.dataverse.owners
    assert await owners.id_of(ALICE.upper()) == alice.user_id  # the name to sign in with decides
    double.change("systemusers", alice.user_id, domainname="a@example.com")
    owners._known.clear()
    assert await owners.id_of(ALICE) is None
    assert not await owners.believes(mallory.user_id, ALICE)
    assert not await owners.believes("", ALICE)


async def test_who_may_not_look_believes_nobody_new(box: Site, double: Double, alice: Account) -> None:
    owners = box.desk.dataverse.owners
    fault = double.faults.add(Fault("forbidden", path="systemusers"))
    assert await owners.id_of(ALICE) is None
    assert await owners.id_of(ALICE) is None
    assert fault.hits == 1  # it is not asked again for each row
    double.faults.clear()
    owners._known.clear()
    assert await owners.id_of(ALICE) == alice.user_id
    owners._known = {person: (0.0, known) for person, (_, known) in owners._known.items()}
    double.faults.add(Fault("forbidden", path="systemusers"))
    assert await owners.believes(alice.user_id, ALICE)


def test_what_is_no_id_is_not_trusted() -> None:
    with pytest.raises(ValueError, match="ids of users"):
        DataverseSettings(trusted_owners=("mallory@example.com",))


# ---- answers


@pytest.mark.parametrize("who", ["mallory", "alice", "flows"])
async def test_only_the_persons_own_answer_is_heard(
    double: Double, who: str, mallory: Account, alice: Account, flows: Account, tmp_path: Path
) -> None:
    writer = {"mallory": mallory, "alice": alice, "flows": flows}[who]
    async with site(double, str(tmp_path / "a.db"), trusted=[flows.user_id]) as here:
        task = here.seed()
        await here.look()
        (claim,) = await here.begin()
        await here.ask(task, claim)
        await here.look()
        here.answer(task, "the answer", account=writer)
        double.change(TASKS, task, cr_status=1)
        await here.look()
        ticket, code = await here.ticket(task), here.row(task)["cr_status"]
        if writer is mallory:
            assert (ticket.status, code) == (TicketStatus.WAITING_FOR_INPUT, 6)
            here.answer(task, "the real one")
            double.change(TASKS, task, cr_status=1)
            await here.look()
            assert (await here.ticket(task)).status is not TicketStatus.WAITING_FOR_INPUT
        else:
            assert (ticket.status, code) == (TicketStatus.OPEN, 5)


# ---- chat


async def test_a_message_that_only_names_a_person_is_left_alone(
    double: Double, mallory: Account, tmp_path: Path
) -> None:
    async with open_chat(double, ECHO, tmp_path) as chat:
        forged = chat.write("cancel everything", account=mallory)
        mine = chat.write("hello", conversation="c2")
        assert await chat.personal().once() == 1
        assert await chat.overall().once() == 0
        assert chat.answer(mine) == "You wrote: hello"
        assert chat.row(forged)["cr_status"] == "Unclaimed"
        assert not chat.answers(forged)
        assert len([line for line in chat.lines if forged in line and "left alone" in line]) == 2  # each manager


async def test_a_dead_managers_claim_on_a_forged_message_is_not_taken_over(
    double: Double, mallory: Account, tmp_path: Path
) -> None:
    async with open_chat(double, ECHO, tmp_path) as chat:
        old = "2026-01-31T10:20:30Z"
        forged = chat.write("x", account=mallory, cr_status="Claimed", createdon=old, modifiedon=old)
        assert await chat.personal().once() == 0
        assert await chat.overall().once() == 0
        assert chat.row(forged)["cr_status"] == "Claimed"


async def test_what_the_relay_of_the_flows_writes_is_believed_when_it_is_trusted(
    double: Double, flows: Account, mallory: Account, alice: Account
) -> None:
    double.seed(CHAT, account=flows, cr_useremail=ALICE, cr_direction="Inbound", cr_status="Unclaimed")
    for trusted, found in (((), 0), ((flows,), 1), ((mallory,), 0)):
        async with await opened(double, double.admin, *trusted) as client:
            assert len(await Conversations(client).inbound(ConversationStatus.UNCLAIMED)) == found


# ---- the roles of docs/dataverse.md


async def test_a_worker_with_a_users_rights_sees_what_others_make_for_its_person(
    double: Double, alice: Account, flows: Account, tmp_path: Path
) -> None:
    async with (
        await opened(double, flows) as boss,
        site(double, str(tmp_path / "a.db"), token=alice.token) as here,
    ):
        task = (await Tasks(boss, user=ALICE).create("Do it.", box="box-1", key="1")).id
        assert double.tables[TASKS][task]["_ownerid_value"] == alice.user_id
        assert await here.look() == 1
        (claim,) = await here.begin()
        await here.ask(task, claim)
        await here.look()
        await Tasks(boss, user=ALICE).answer(task, "Blue.")
        assert {row["_ownerid_value"] for row in double.tables[MESSAGES].where(cr_from=ALICE)} == {alice.user_id}
        await here.look()
        assert (await here.ticket(task)).status is TicketStatus.OPEN


async def test_the_chat_with_a_users_rights(double: Double, alice: Account, flows: Account, tmp_path: Path) -> None:
    async with open_chat(double, ECHO, tmp_path) as chat, await opened(double, alice) as own:
        # Answered by the global manager while the person's own one is away; it sees that afterwards.
        inbound = chat.write("hello", account=alice)
        assert await chat.overall().once() == 1
        message = await Conversations(own).find(inbound)
        assert message is not None
        (reply,) = await Conversations(own).answers(message)
        assert reply.owner == alice.user_id
        chat.dataverse = own
        later = chat.write("again", account=alice, conversation="c2")
        chat.write("not seen", conversation="c3")
        assert await chat.personal().once() == 1
        assert chat.answer(later) == "You wrote: again"


async def test_a_person_that_the_global_chat_made_known_is_seen_by_the_own_manager(
    double: Double, alice: Account, flows: Account
) -> None:
    async with await opened(double, flows) as boss, await opened(double, alice) as own:
        await Users(boss).set(ALICE, {"onboarding_step": "provisioning"})
        await Users(own).seen(ALICE, values={"manager_status": "Running"})
    (row,) = double.tables[USERS].where()
    assert (row["_ownerid_value"], row["crb3b_managerstatus"]) == (alice.user_id, "Running")


async def test_a_mirror_belongs_to_the_person_of_its_box_and_goes_with_it(
    double: Double, alice: Account, flows: Account, mallory: Account, tmp_path: Path
) -> None:
    bobs, forged = (
        double.seed(TASKS, account=account, cr_name="x", cr_prompt="x", cr_status=3, crb3b_useremail=BOB)
        for account in (double.add_account(BOB, reach="own"), mallory)
    )
    place = Box("box-1", "alive", users=(ALICE,))
    async with await opened(double, flows) as fleet:
        mirrors = Mirrors(fleet, TASKS)
        assert await mirrors.make(bobs, place, {"cr_status": 1})
        assert not await mirrors.make(forged, place, {"cr_status": 1})
        mirror = double.tables[TASKS][mirror_id(bobs)]
        assert (mirror["_ownerid_value"], mirror["crb3b_useremail"]) == (alice.user_id, ALICE)
        assert mirror_id(forged) not in double.tables[TASKS]
        async with site(double, str(tmp_path / "a.db"), token=alice.token) as here:
            assert await here.look() == 1
        # What only Mallory or a worker says is no answer of Bob's.
        for account, text in ((mallory, "forged"), (flows, "real")):
            double.seed(MESSAGES, account=account, cr_name="x", cr_content=text, cr_from=BOB, crb3b_taskid=bobs)
        double.change(TASKS, mirror_id(bobs), cr_status=6)
        double.change(TASKS, bobs, cr_status=1)
        now = clock.now()
        await mirrors.agree(await survey(fleet, TASKS, lease_s=300, now=now), [])
        passed = double.tables[MESSAGES].where(crb3b_taskid=mirror_id(bobs))
        assert [(row["cr_content"], row["_ownerid_value"]) for row in passed] == [("real", alice.user_id)]


async def test_a_mirror_that_the_person_of_the_box_made_up_is_none(
    double: Double, alice: Account, flows: Account
) -> None:
    task = double.seed(TASKS, cr_name="x", cr_status=3, crb3b_useremail=BOB)
    values = {"cr_ismirror": True, "cr_mirroroftaskid": task, "crb3b_useremail": ALICE, "cr_status": 7}
    double.seed(TASKS, account=alice, row_id=mirror_id(task), cr_name="x", cr_result="made up", **values)
    async with await opened(double, flows) as fleet:
        found = await survey(fleet, TASKS, lease_s=300, now=clock.now())
        assert await Mirrors(fleet, TASKS).agree(found, found.unplaced) == (set(), [])
    assert double.tables[TASKS][task]["cr_status"] == 3


async def test_without_the_right_to_assign_the_remedy_is_said(double: Double, alice: Account) -> None:
    tables = ("shraga_task", "shragamessage", "shraga_conversation")
    poor = double.add_account("poor@example.com", without=[f"prvAssigncr_{name}" for name in tables])
    async with await opened(double, poor) as client:
        with pytest.raises(Refused, match=r"add Create, Write and Assign .* role") as caught:
            await Tasks(client).create("Do it.", user=ALICE)
        assert caught.value.status == 403
        assert not double.tables[TASKS]
        # What people are told is better read by few than by nobody.
        inbound = double.seed(CHAT, account=alice, cr_useremail=ALICE, cr_direction="Inbound", cr_status="Unclaimed")
        conversations = Conversations(client)
        message = await conversations.find(inbound)
        assert message is not None
        await conversations.reply(message, "here")
        (reply,) = double.tables[CHAT].where(cr_direction="Outbound")
        assert reply["_ownerid_value"] == poor.user_id
        info = await client.info(TASKS)
        (finding,) = await look_at_rights(client, poor.user_id, [info], ALICE)
        assert (finding.state, "add Assign" in finding.detail) == ("warning", True)
        (finding,) = await look_at_rights(client, double.admin.user_id, [info], ALICE)
        assert finding.state == "ok"


async def test_nobody_with_a_users_rights_gives_rows_away(double: Double, mallory: Account, alice: Account) -> None:
    async with await opened(double, mallory) as client:
        values = {"cr_name": "x", "cr_prompt": "x", "cr_status": int(TaskCode.PENDING), "crb3b_useremail": ALICE}
        with pytest.raises(Refused, match="may not give"):
            await client.create(TASKS, values, owner=alice.user_id)
        row = await client.create(TASKS, values)
        with pytest.raises(Refused, match="may not give"):
            await client.update(TASKS, row.id, {}, etag=row.etag, owner=alice.user_id)  # type: ignore[union-attr,arg-type]
        assert {row["_ownerid_value"] for row in double.tables[TASKS].where()} == {mallory.user_id}
