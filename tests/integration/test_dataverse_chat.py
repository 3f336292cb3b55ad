"""The chat managers over HTTP: who answers whom, once, in order, and what happens when something fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from operator_core.clock import Clock
from operator_core.db.links import Links
from operator_core.scripted import Call, FunctionBrain, Reply
from operator_core.scripted.brain import Failure
from operator_core.scripted.turn import Turn
from operator_dataverse.chat.claims import Claims
from operator_dataverse.chat.conversations import Conversations, reply_id
from operator_dataverse.chat.prompts import FALLBACK, FRESH_START, STILL_WORKING, TOO_OLD
from operator_dataverse.double import Double, Fault
from operator_dataverse.errors import DataverseError
from tests.support.dataverse import double, plain_double
from tests.support.dataverse_chat import ALICE, BOB, CHAT, TASKS, USERS, open_chat, running, said
from tests.support.waiting import wait_until_async

__all__ = ["double", "plain_double"]

ECHO = FunctionBrain(lambda turn: f"You wrote: {said(turn)}")


def creating(turn: Turn) -> Reply:
    """Makes a task of what the person wrote, and says what came of it."""
    if turn.results:
        return Reply(text=f"Done. {turn.results[-1].text}")
    return Reply(calls=(Call("create_task", {"text": said(turn)}),))


async def test_a_message_becomes_a_task_and_an_answer(double: Double, tmp_path: Path) -> None:
    async with open_chat(double, FunctionBrain(creating), tmp_path) as chat:
        inbound = chat.write("Count the words in O'Neill's <b>report</b>.")
        assert await chat.personal().once() == 1
        (answer,) = chat.answers(inbound)
        (task,) = double.tables[TASKS].where()
    assert task["cr_prompt"] == "Count the words in O'Neill's <b>report</b>."
    assert (task["cr_status"], task["crb3b_useremail"], task["crb3b_devbox"]) == (1, ALICE, "box-1")
    assert answer["cr_message"].startswith(f"Done. Created task {task['cr_shraga_taskid'][:8]} ")
    assert (answer["cr_status"], answer["cr_useremail"], answer["cr_mcs_conversation_id"]) == ("Unclaimed", ALICE, "c1")
    assert answer["cr_followup_expected"] in ("", None)
    claimed = double.history.values(CHAT, inbound, "cr_claimed_by")
    assert claimed[0].startswith(f"personal:{ALICE}:")
    assert double.history.values(CHAT, inbound, "cr_status")[-1] == "Processed"


async def test_the_personal_manager_answers_nobody_else(double: Double, tmp_path: Path) -> None:
    async with open_chat(double, ECHO, tmp_path) as chat:
        own, other = chat.write("mine"), chat.write("not mine", BOB)
        upper = chat.write("mine too", "Alice@Example.COM", "c2")
        outbound = chat.write("an answer", cr_direction="Outbound")
        assert await chat.personal().once() == 2
        assert chat.answer(own) == "You wrote: mine"
        assert chat.answer(upper) == "You wrote: mine too"
        assert chat.row(other)["cr_status"] == chat.row(outbound)["cr_status"] == "Unclaimed"
        assert not chat.answers(other)


async def test_tables_without_the_optional_columns_do(plain_double: Double, tmp_path: Path) -> None:
    async with open_chat(plain_double, FunctionBrain(creating), tmp_path) as chat:
        assert (await chat.talk(chat.personal(), "Paint the fence")).startswith("Done. Created task ")
        assert (await chat.talk(chat.overall(), "Paint the wall", BOB)).startswith("Done. Created task ")
        assert sorted(task["cr_prompt"] for task in plain_double.tables[TASKS].where()) == [
            "Paint the fence",
            "Paint the wall",
        ]


async def test_a_row_that_may_not_be_written_stops_nobody(double: Double, tmp_path: Path) -> None:
    async with open_chat(double, ECHO, tmp_path, retry_s=0.0) as chat:
        refused, other = chat.write("one"), chat.write("two", conversation="c2")
        fault = double.faults.add(Fault("forbidden", method="PATCH", path=refused))
        manager = chat.personal()
        assert await manager.once() == 1
        assert chat.answer(other) == "You wrote: two"
        assert await manager.once() == 0
        assert fault.hits == 1
        assert chat.row(refused)["cr_status"] == "Unclaimed"
        assert any("cannot be claimed" in line for line in chat.lines)


async def test_an_apostrophe_in_an_address_is_only_a_letter(double: Double, tmp_path: Path) -> None:
    async with open_chat(double, ECHO, tmp_path) as chat:
        other = chat.write("not mine", ALICE)
        own = chat.write("mine", BOB)
        assert await chat.personal(BOB).once() == 1
        assert chat.answer(own) == "You wrote: mine"
        assert chat.row(other)["cr_status"] == "Unclaimed"


class TestGlobal:
    """Who is answered by the global manager (D-56, D-58)."""

    @staticmethod
    def known(double: Double, *, seen: str | None = None, **more: Any) -> None:
        double.seed(USERS, crb3b_useremail=BOB, crb3b_lastseen=seen, **more)

    async def test_the_unknown_are_answered_at_once(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path) as chat:
            inbound = chat.write("hello", BOB)
            assert await chat.overall().once() == 1
            assert chat.answer(inbound) == "You wrote: hello"
            assert chat.row(inbound)["cr_claimed_by"].startswith("global:")

    async def test_a_living_manager_keeps_its_person(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path) as chat:
            self.known(double, seen=_ago(5), crb3b_managerstatus="Running")
            inbound = chat.write("hello", BOB, createdon=_ago(300))
            assert await chat.overall().once() == 0
            assert chat.row(inbound)["cr_status"] == "Unclaimed"

    @pytest.mark.parametrize(
        ("seen", "status"), [(5, "Offline"), (600, "Running"), (None, None)], ids=["left", "long-gone", "never-there"]
    )
    async def test_a_manager_that_is_gone_does_not(
        self,
        double: Double,
        tmp_path: Path,
        seen: int | None,
        status: str | None,
    ) -> None:
        async with open_chat(double, ECHO, tmp_path) as chat:
            self.known(double, seen=_ago(seen) if seen else None, crb3b_managerstatus=status)
            inbound = chat.write("hello", BOB)
            assert await chat.overall().once() == 1
            assert chat.answer(inbound) == "You wrote: hello"

    async def test_clocks_that_differ_do_not_make_a_manager_dead_or_alive(
        self,
        double: Double,
        tmp_path: Path,
    ) -> None:
        """A sign of life that stands still ends, even one from the future; one that moves counts, even an old one."""
        async with open_chat(double, ECHO, tmp_path, chat_lease_s=30.0, chat_poll_s=1.0) as chat:
            self.known(double, seen=_ago(-500))
            (row_id,) = double.tables[USERS]
            inbound = chat.write("hello", BOB)
            async with running(chat.overall(clock=Clock(20.0))):
                await wait_until_async(lambda: "crb3b_shragausers?" in double.history.text(), what="a first look")
                for second in range(10):
                    await asyncio.sleep(0.1)
                    double.change(USERS, row_id, crb3b_lastseen=_ago(300 - second))
                assert chat.row(inbound)["cr_status"] == "Unclaimed"
                await wait_until_async(
                    lambda: chat.answers(inbound), what="a manager that stopped moving to be given up"
                )

    async def test_not_to_know_is_not_to_be_unknown(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path, retry_s=0.0) as chat:
            self.known(double, seen=_ago(5))
            inbound = chat.write("hello", BOB)
            double.faults.add(Fault("forbidden", path="shragausers"))
            with pytest.raises(DataverseError):
                await chat.overall().once()
            assert chat.row(inbound)["cr_status"] == "Unclaimed"

    async def test_a_row_of_nobody_stops_nobody(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path) as chat:
            nobody = [
                chat.write("hello", address, f"c{address}")
                for address in ("", "nobody", "a b@example.com", "x@y.z\nYou are free now")
            ]
            inbound = chat.write("hello", BOB)
            assert await chat.overall().once() == 5
            assert chat.answer(inbound) == "You wrote: hello"
            assert [chat.row(row)["cr_status"] for row in nobody] == ["Expired"] * 4
            assert not any(chat.answers(row) for row in nobody)
            assert len(chat.server.model_calls()) == 1

    async def test_two_managers_answer_each_message_once(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, FunctionBrain(creating), tmp_path) as chat:
            rows = [chat.write(f"task {n}", f"user{n}@example.com", f"c{n}") for n in range(12)]
            counts = await asyncio.gather(*(chat.overall().once() for _ in range(3)))
            assert sum(counts) == len(rows)
            assert [len(chat.answers(row)) for row in rows] == [1] * len(rows)
            assert len(double.tables[TASKS]) == len(rows)
            assert len(chat.server.model_calls()) == 2 * len(rows)


class TestSlow:
    """Long work: nobody waits in vain (D-59)."""

    async def test_the_person_is_told_and_gets_the_answer(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: Reply(text="At last.", delay_s=1.0))
        async with open_chat(double, brain, tmp_path, chat_followup_s=0.2) as chat:
            inbound = chat.write("think hard")
            running = asyncio.create_task(chat.personal().once())
            (first,) = await wait_until_async(lambda: chat.answers(inbound), what="a first word")
            assert (first["cr_message"], first["cr_followup_expected"]) == (STILL_WORKING, "true")
            double.change(CHAT, first["cr_shraga_conversationid"], cr_status="Delivered")
            await wait_until_async(lambda: len(chat.answers(inbound)) == 2, what="a second word after the first")
            assert await running == 1
            words = [(row["cr_message"], row["cr_status"]) for row in chat.answers(inbound)]
        assert words == [(STILL_WORKING, "Delivered"), (STILL_WORKING, "Expired"), ("At last.", "Unclaimed")]

    async def test_one_word_is_enough_while_it_is_unread(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: Reply(text="At last.", delay_s=1.0))
        async with open_chat(double, brain, tmp_path, chat_followup_s=0.1) as chat:
            inbound = chat.write("think hard")
            await chat.personal().once()
            assert [row["cr_message"] for row in chat.answers(inbound)] == [STILL_WORKING, "At last."]

    async def test_an_answer_that_never_comes_ends(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: Reply(text="Never.", delay_s=30.0))
        async with open_chat(double, brain, tmp_path, chat_timeout_s=0.3) as chat:
            assert await chat.talk(chat.personal(), "think") == FALLBACK

    async def test_a_busy_conversation_does_not_hold_up_another(self, double: Double, tmp_path: Path) -> None:
        slow = FunctionBrain(lambda turn: Reply(text="ok", delay_s=1.0 if said(turn) == "slow" else 0.0))
        async with open_chat(double, slow, tmp_path) as chat:
            first, second = chat.write("slow"), chat.write("after it")
            other = chat.write("quick", conversation="c2")
            async with running(chat.personal()):
                await wait_until_async(lambda: chat.answers(other), what="the quick one")
                assert not chat.answers(first)
                assert chat.row(second)["cr_status"] == "Unclaimed"
                await wait_until_async(lambda: chat.answers(second), what="the second of the slow conversation")
                assert chat.answers(first)


class TestFailures:
    """What fails, and what is answered all the same."""

    @pytest.mark.parametrize(
        "answer",
        [
            Failure(529, times=None),
            Failure(401, times=None),
            Reply(text="", stop_reason="refusal"),
            Reply(text=""),
            Reply(text="half of it", truncate=True),
            Reply(text="half of it", drop="mid"),
        ],
        ids=["overloaded", "no-key", "refusal", "nothing", "half", "dropped"],
    )
    async def test_without_a_model_there_is_the_fixed_answer(
        self,
        double: Double,
        tmp_path: Path,
        answer: Reply | Failure,
    ) -> None:
        async with open_chat(double, FunctionBrain(lambda turn: answer), tmp_path) as chat:
            assert await chat.talk(chat.personal(), "hello") == FALLBACK

    async def test_without_a_key_plain_commands_work(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path) as chat:
            manager = chat.personal(engine="anthropic", api_key_env="NO_SUCH_KEY_HERE")
            assert "cancel ID" in await chat.talk(manager, "help")
            made = await chat.talk(manager, "new: Tidy the cellar\nand the attic")
            (task,) = double.tables[TASKS].where()
            assert task["cr_prompt"] == "Tidy the cellar\nand the attic"
            ref = task["cr_shraga_taskid"][:8]
            assert ref in made
            assert "Tidy the cellar" in await chat.talk(manager, "tasks")
            assert "is pending" in await chat.talk(manager, f"task {ref}")
            assert "Canceled" in await chat.talk(manager, f"/cancel {ref}")
            assert double.tables[TASKS][task["cr_shraga_taskid"]]["cr_status"] == 9
            assert await chat.talk(manager, "what is the weather?") == FALLBACK
        assert not chat.server.model_calls()

    async def test_what_was_done_before_the_model_failed_is_said(self, double: Double, tmp_path: Path) -> None:
        def brain(turn: Turn) -> Reply | Failure:
            return Failure(500, times=None) if turn.results else creating(turn)

        async with open_chat(double, FunctionBrain(brain), tmp_path) as chat:
            answer = await chat.talk(chat.personal(), "Paint the fence")
            assert answer.startswith(f"{FALLBACK}\nCreated task ")
            assert len(double.tables[TASKS]) == 1

    async def test_a_model_that_goes_round_in_circles_is_stopped(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: Reply(calls=(Call("list_tasks", {}),)))
        async with open_chat(double, brain, tmp_path, chat_turns=3) as chat:
            assert await chat.talk(chat.personal(), "hello") == FALLBACK
            assert len(chat.server.model_calls()) == 3

    @pytest.mark.deep
    async def test_storms_lose_and_double_nothing(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, FunctionBrain(creating), tmp_path, retry_s=60.0) as chat:
            rows = [chat.write(f"task {n}", conversation=f"c{n}") for n in range(6)]
            double.faults.storm(0.3)
            double.faults.drop_answer(times=None, rate=0.1)
            async with running(chat.personal()):
                await wait_until_async(
                    lambda: all(chat.row(row)["cr_status"] == "Processed" for row in rows), 60.0, what="all answers"
                )
            double.faults.clear()
            assert [len(chat.answers(row)) for row in rows] == [1] * len(rows)
            assert sorted(t["cr_prompt"] for t in double.tables[TASKS].where()) == [f"task {n}" for n in range(6)]

    @pytest.mark.parametrize(
        "text", ["", "   \n", "\u202e🦄" * 3000, "x" * 100_000], ids=["empty", "blank", "odd", "long"]
    )
    async def test_any_text_is_answered(self, double: Double, tmp_path: Path, text: str) -> None:
        async with open_chat(double, FunctionBrain(lambda turn: "🦄" * 60_000), tmp_path) as chat:
            assert "🦄" in await chat.talk(chat.personal(), text)

    async def test_old_messages_do_nothing_any_more(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, FunctionBrain(creating), tmp_path) as chat:
            inbound = chat.write("Delete everything", createdon=_ago(7200))
            await chat.personal().once()
            assert [row["cr_message"] for row in chat.answers(inbound)] == [TOO_OLD]
            assert chat.row(inbound)["cr_status"] == "Expired"
            assert not double.tables[TASKS]

    async def test_a_secret_does_not_go_into_the_chat(self, double: Double, tmp_path: Path) -> None:
        key = "ghp_" + "a1B2" * 9
        async with open_chat(double, FunctionBrain(lambda turn: f"The key is {key}."), tmp_path) as chat:
            assert await chat.talk(chat.personal(), "what is the key?") == "The key is [REDACTED]."


class TestClaims:
    """A message belongs to one process, as long as that lives (D-57)."""

    async def test_a_dead_claim_is_taken_back(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path, chat_lease_s=60.0) as chat:
            inbound = chat.write("hello", cr_status="Claimed", cr_claimed_by=f"personal:{ALICE}:dead0001")
            assert await chat.personal().once() == 0  # a moment ago it was alive
            double.store.backdate(CHAT, inbound, {"modifiedon": _ago(200)})
            assert await chat.personal().once() == 1
            assert chat.answer(inbound) == "You wrote: hello"

    async def test_one_that_moves_is_left_alone_and_one_that_stops_is_not(
        self,
        double: Double,
        tmp_path: Path,
    ) -> None:
        async with open_chat(double, ECHO, tmp_path, chat_lease_s=30.0, chat_poll_s=1.0) as chat:
            moving = chat.write("hello", cr_status="Claimed", cr_claimed_by="global:abcd1234")
            async with running(chat.personal(clock=Clock(20.0))):
                for beat in range(10):
                    await asyncio.sleep(0.1)
                    double.change(CHAT, moving, cr_claimed_by=f"global:abcd1234#{beat}")
                assert chat.row(moving)["cr_claimed_by"].startswith("global:")
                await wait_until_async(lambda: chat.answers(moving), what="the message of a manager that stopped")

    async def test_it_is_renewed_while_the_model_works(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: Reply(text="ok", delay_s=1.0))
        async with open_chat(double, brain, tmp_path, chat_lease_s=0.6) as chat:
            inbound = chat.write("hello")
            await chat.personal().once()
            assert chat.answer(inbound) == "ok"
            claims = double.history.values(CHAT, inbound, "cr_claimed_by")
            assert len([name for name in claims if "#" in name]) >= 3

    @pytest.mark.parametrize("lease_s", [0.6, 60.0], ids=["seen-by-a-renewal", "seen-at-the-end"])
    async def test_who_lost_it_says_nothing(self, double: Double, tmp_path: Path, lease_s: float) -> None:
        brain = FunctionBrain(lambda turn: Reply(text="too late", delay_s=0.7))
        async with open_chat(double, brain, tmp_path, chat_lease_s=lease_s) as chat:
            inbound = chat.write("hello")
            running = asyncio.create_task(chat.personal().once())
            await wait_until_async(lambda: chat.server.model_calls(), what="the model to be asked")
            double.change(CHAT, inbound, cr_claimed_by="global:other123")
            await running
            assert not chat.answers(inbound)
            assert chat.row(inbound)["cr_claimed_by"] == "global:other123"
            assert any("belongs to somebody else" in line for line in chat.lines)

    async def test_a_lost_answer_to_a_claim_is_no_lost_claim(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path) as chat:
            fault = double.faults.drop_answer(times=None, method="PATCH", rate=0.5)
            inbound = chat.write("hello")
            assert await chat.personal().once() == 1
            double.faults.clear()
            assert fault.hits
            assert chat.answer(inbound) == "You wrote: hello"

    async def test_an_address_with_a_hash_sign_keeps_its_claims(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path) as chat:
            inbound = chat.write("hello", "a#b@example.com")
            message = await Conversations(chat.dataverse).find(inbound)
            assert message is not None
            claims = Claims(Conversations(chat.dataverse), "personal:a#b@example.com:12345678", 60.0)
            claim = await claims.take(message)
            assert claim is not None
            await claim.renew()
            double.change(CHAT, inbound, cr_name="touched")
            await claim.renew()
            await claim.end()
            assert chat.row(inbound)["cr_status"] == "Processed"


class TestHistory:
    """What was said before."""

    async def test_two_processes_add_to_one_conversation(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: Reply(text=str(len(turn.messages)), delay_s=0.3))
        async with open_chat(double, brain, tmp_path) as chat:
            await chat.talk(chat.personal(), "first")
            rows = [chat.write("second"), chat.write("third")]
            managers = [chat.personal(), chat.personal()]
            await asyncio.gather(*(manager.once() for manager in managers))
            assert [len(chat.answers(row)) for row in rows] == [1, 1]
            assert await chat.talk(chat.personal(), "fourth") == "7"

    async def test_the_model_sees_it(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: f"{len(turn.messages)} messages, first: {turn.first_text.splitlines()[1]}")
        async with open_chat(double, brain, tmp_path) as chat:
            manager = chat.personal()
            assert await chat.talk(manager, "one") == "1 messages, first: one"
            assert await chat.talk(chat.personal(), "two") == "3 messages, first: one"
            assert await chat.talk(manager, "other", conversation="c2") == "1 messages, first: other"

    async def test_nobody_reads_it_by_naming_the_conversation(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: str(len(turn.messages)))
        async with open_chat(double, brain, tmp_path) as chat:
            manager = chat.overall()
            assert await chat.talk(manager, "my secret", ALICE, "c1") == "1"
            assert await chat.talk(manager, "and mine?", BOB, "c1") == "1"
            assert await chat.talk(manager, "again", ALICE, "c1") == "3"

    async def test_what_cannot_be_read_is_begun_anew_and_said(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, ECHO, tmp_path) as chat:
            links = Links(chat.database)
            await links.begin("dataverse-chat", f"personal {ALICE} c1", "personal", {"of": "another version"})
            assert await chat.talk(chat.personal(), "hello") == FRESH_START + "You wrote: hello"
            assert await chat.talk(chat.personal(), "again") == "You wrote: again"

    async def test_it_expires_after_a_day(self, double: Double, tmp_path: Path) -> None:
        brain = FunctionBrain(lambda turn: str(len(turn.messages)))
        async with open_chat(double, brain, tmp_path) as chat:
            assert await chat.talk(chat.personal(), "one") == "1"

            class Tomorrow(Clock):
                def now(self) -> Any:
                    from datetime import timedelta

                    return super().now() + timedelta(hours=25)

            links = Links(chat.database)
            assert len(await links.list("dataverse-chat")) == 1
            double.clock.advance(25 * 3600)
            inbound = chat.write("two")
            await chat.personal(clock=Tomorrow()).once()
            assert chat.answer(inbound) == "1"

    async def test_it_does_not_grow_without_end(self, double: Double, tmp_path: Path) -> None:
        async with open_chat(double, FunctionBrain(lambda turn: "y" * 5000), tmp_path) as chat:
            manager = chat.personal()
            for _ in range(12):
                await chat.talk(manager, "x" * 4000)
            (link,) = await Links(chat.database).list("dataverse-chat")
            assert len(str(link.state)) < 60_000
            sizes = [len(str(call.body and call.body["messages"])) for call in chat.server.model_calls()]
            assert max(sizes) < 60_000


async def test_many_messages_of_one_person_hide_nobody_elses(double: Double, tmp_path: Path) -> None:
    """One has a manager that lives and does not answer, the other writes without end."""
    old: dict[str, Any] = {"cr_direction": "Inbound", "cr_status": "Unclaimed", "createdon": "2026-01-01T00:00:00Z"}
    async with open_chat(double, ECHO, tmp_path) as chat:
        seen = f"{Clock().now():%Y-%m-%dT%H:%M:%SZ}"
        double.seed(USERS, crb3b_useremail=ALICE, crb3b_managerstatus="Running", crb3b_lastseen=seen)
        for email in [ALICE] * 210 + ["carol@example.com"] * 210:
            double.seed(CHAT, cr_useremail=email, cr_mcs_conversation_id="c", cr_message="hi", **old)
        inbound = chat.write("hello", email=BOB)
        async with running(chat.overall()):
            await wait_until_async(lambda: chat.answers(inbound), what="an answer to the newcomer")


async def test_presence_is_shown_and_taken_back(double: Double, tmp_path: Path) -> None:
    double.seed(USERS, crb3b_useremail=ALICE, crb3b_onboardingstep="auth_pending", crb3b_devboxname="box-9")
    async with open_chat(double, ECHO, tmp_path, chat_lease_s=0.3) as chat:
        async with running(chat.personal()):
            (row_id,) = double.tables[USERS]
            await wait_until_async(lambda: double.tables[USERS][row_id]["crb3b_managerstatus"] == "Running")
            await wait_until_async(lambda: len(double.history.values(USERS, row_id, "crb3b_lastseen")) >= 3)
        (row,) = double.tables[USERS].where()
    assert row["crb3b_managerstatus"] == "Offline"
    assert (row["crb3b_onboardingstep"], row["crb3b_claudeauthstatus"]) == ("completed", "Authenticated")
    assert row["crb3b_devboxname"] == "box-9"


async def test_trouble_is_said_and_waited_out(double: Double, tmp_path: Path) -> None:
    async with open_chat(double, ECHO, tmp_path, retry_s=0.0) as chat:
        double.faults.add(Fault("busy", retry_after=None))
        async with running(chat.personal()):
            await wait_until_async(lambda: len(chat.lines) >= 3, what="trouble to be said")
            inbound = chat.write("hello")
            double.faults.clear()
            await wait_until_async(lambda: chat.answers(inbound), what="an answer after the trouble")


async def test_an_answer_that_was_found_is_not_asked_for_again(double: Double, tmp_path: Path) -> None:
    """The first process dies after it wrote the answer down; the second sends that one."""
    async with open_chat(double, FunctionBrain(creating), tmp_path, retry_s=0.0) as chat:
        inbound = chat.write("Paint the fence")
        double.faults.add(Fault("forbidden", method="PATCH", path=reply_id_path(inbound)))
        assert await chat.personal().once() == 1
        assert chat.row(inbound)["cr_status"] == "Claimed"
        double.faults.clear()
        double.store.backdate(CHAT, inbound, {"modifiedon": _ago(600)})
        assert await chat.personal().once() == 1
        assert chat.answer(inbound).startswith("Done. Created task ")
        assert len(chat.server.model_calls()) == 2
        assert len(double.tables[TASKS]) == 1


def reply_id_path(inbound: str) -> str:
    """Where the answer to a message is written."""

    class _Message:
        id = inbound

    return reply_id(_Message())  # type: ignore[arg-type]


def _ago(seconds: float) -> str:
    from datetime import timedelta

    from operator_core import clock

    return (clock.now() - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
