"""People and a task that runs or waits: answers, steering, and both at the moment of a cancellation."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.errors import TransitionRefused
from operator_core.model.entry import EntryKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.scripted import Reply, Turn
from tests.support import wait_until_async
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import blocked, done, run, task_brain, verdict
from tests.support.task_sweep import check_requests, role_of_request

CHECK = TaskCheck(command="sh ./hello | grep hello >/dev/null")
ANSWERED = re.compile(r"say (\w+) please")


async def submit(rig: Rig, *checks: TaskCheck) -> int:
    task = TaskSpec(name="say hello", prompt="Make a script hello that says hello.", checks=checks)
    return (await rig.tickets.submit_task(task)).id or 0


def asks_first(turn: Turn) -> Reply:
    """Asks which greeting, and then writes down every answer that it was given."""
    said = ANSWERED.findall(str(turn.messages))
    if not said:
        return blocked("Which greeting?")
    if not any(r.name == "shell" for r in turn.history()):
        return run("; ".join(f"echo 'echo {word}' >> hello" for word in dict.fromkeys(said)))
    return done()


async def notes(rig: Rig, number: int) -> list[str | None]:
    return [e.raw_content for e in await rig.journal(number) if e.entry_type == EntryKind.NOTE]


async def assert_verified(rig: Rig, number: int) -> None:
    ticket = await rig.tickets.get_ticket(number)
    assert (ticket.status, ticket.reason) == (TicketStatus.RESOLVED, Reason.VERIFIED), ticket.diagnosis
    requests = [{"body": r.body} for r in rig.server.model_calls() if r.body]
    assert check_requests(await rig.journal(number), requests).total() == 0
    report = await verify(rig.database)
    assert report.ok, report.problem


async def test_a_second_answer_is_steering_and_is_not_lost(tmp_path: Path) -> None:
    async with open_rig(task_brain(asks_first), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await submit(rig, CHECK)
        await rig.work()
        assert await rig.tickets.reply(number, "say hello please") is TicketStatus.OPEN
        # It does not wait any more: that was answered already.
        with pytest.raises(TransitionRefused):
            await rig.tickets.reply(number, "say goodbye please")
        assert await rig.tickets.steer(number, "say goodbye please") is TicketStatus.OPEN
        await rig.work()
        assert await notes(rig, number) == ["say hello please", "say goodbye please"]
        made = next(tmp_path.glob("Operator Sessions/*/attempt-1/workspace/hello")).read_text()
        assert made == "echo hello\necho goodbye\n"
        await assert_verified(rig, number)


async def test_two_people_answer_at_once(tmp_path: Path, store_url: str) -> None:
    """One answer is taken; who comes second is told that it does not wait any more, and nothing is said twice."""
    async with open_rig(task_brain(asks_first), tmp_path, store=store_url, tasks={"root": tmp_path}) as rig:
        number = await submit(rig, CHECK)
        await rig.work()
        async with Database.open(store_url) as other:
            answers = await asyncio.gather(
                rig.tickets.reply(number, "say hello please"),
                TicketDB(other).reply(number, "say hello please"),
                return_exceptions=True,
            )
        assert sorted(type(a).__name__ for a in answers) == ["TicketStatus", "TransitionRefused"]
        await rig.work()
        assert await notes(rig, number) == ["say hello please"]
        await assert_verified(rig, number)


@pytest.mark.parametrize("round_", range(5))
async def test_an_answer_and_a_cancellation_at_once(tmp_path: Path, store_url: str, round_: int) -> None:
    """Whatever comes first, it ends as canceled, and nothing is paid after that."""
    async with open_rig(task_brain(asks_first), tmp_path, store=store_url, tasks={"root": tmp_path}) as rig:
        number = await submit(rig, CHECK)
        await rig.work()
        calls = len(rig.server.model_calls())
        async with Database.open(store_url) as other:
            acts = [rig.tickets.reply(number, "say hello please"), TicketDB(other).cancel_ticket(number)]
            answers = await asyncio.gather(*(acts if round_ % 2 else reversed(acts)), return_exceptions=True)
        assert not [a for a in answers if isinstance(a, Exception) and not isinstance(a, TransitionRefused)]
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.reason, ticket.owner) == (TicketStatus.CANCELED, Reason.BY_HAND, None)
        assert len(rig.server.model_calls()) == calls
        summary = next(tmp_path.glob("Operator Sessions/*/attempt-1/session_summary.json"))
        assert json.loads(summary.read_text())["terminal_status"] == "canceled"
        (session,) = await rig.audit.sessions(ticket_id=number)
        assert session.status == "canceled"
        # A second one changes nothing, and an answer is refused.
        with pytest.raises(TransitionRefused):
            await rig.tickets.reply(number, "say hello please")


async def test_an_answer_while_a_worker_runs_is_taken_at_once(tmp_path: Path, store_url: str) -> None:
    """The worker is not started for it: it notices, and goes on in the same conversation."""
    async with open_rig(task_brain(asks_first), tmp_path, store=store_url, tasks={"root": tmp_path}) as rig:
        number = await submit(rig, CHECK)
        stop = asyncio.Event()
        async with rig.worker() as worker:
            running = asyncio.create_task(worker.run(stop))

            async def state(*wanted: TicketStatus) -> None:
                async def reached() -> bool:
                    return (await rig.tickets.get_ticket(number)).status in wanted

                await wait_until_async(reached, 30)

            await state(TicketStatus.WAITING_FOR_INPUT)
            await rig.tickets.reply(number, "say hello please")
            await state(TicketStatus.RESOLVED, TicketStatus.ESCALATED)
            stop.set()
            await running
        await assert_verified(rig, number)


async def test_steering_reaches_the_next_request_of_a_running_session(tmp_path: Path) -> None:
    rig: Rig

    async def worker(turn: Turn) -> Reply:
        if turn.step == 0:
            await rig.tickets.steer(number, "say hello please")
            return run("true", "sleep 1.5")  # long enough for the worker to notice
        if turn.step == 1:
            assert ANSWERED.findall(str(turn.messages[-1])) == ["hello"]
            return run("echo 'echo hello' > hello")
        return done()

    async with open_rig(task_brain(worker), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await submit(rig, CHECK)
        await rig.work()
        assert await notes(rig, number) == ["say hello please"]
        await assert_verified(rig, number)


async def test_steering_during_the_verification_waits_for_the_next_worker(tmp_path: Path) -> None:
    """It is for who does the work: it must not be lost with the verifier's conversation, nor reach it."""
    rig: Rig
    heard: dict[str, list[str]] = {"worker": [], "verifier": []}

    def worker(turn: Turn) -> Reply:
        heard["worker"] += ANSWERED.findall(str(turn.messages))
        return (run("echo 'echo hello' > hello"), done())[min(turn.step, 1)]

    async def verifier(turn: Turn) -> Reply:
        heard["verifier"] += ANSWERED.findall(str(turn.messages))
        if "second" in turn.first_text or heard["worker"]:
            return (run("sh ./hello"), verdict(True))[min(turn.step, 1)]
        if turn.step == 0:
            await rig.tickets.steer(number, "say louder please")
            return run("sh ./hello", "sleep 1.5")
        return verdict(False, "Not loud enough.")

    async with open_rig(task_brain(worker, verifier), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await submit(rig, CHECK)
        await rig.work()
        await assert_verified(rig, number)
        assert "louder" in heard["worker"], heard
        assert heard["verifier"] == [], heard


async def test_a_word_to_a_session_that_has_ended_is_refused(tmp_path: Path) -> None:
    script: tuple[Any, ...] = (run("echo 'echo hello' > hello"), done())
    async with open_rig(task_brain(script), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await submit(rig, CHECK)
        await rig.work()
        await assert_verified(rig, number)
        calls = [role_of_request(r.body) for r in rig.server.model_calls() if r.body]
        for say in (rig.tickets.reply, rig.tickets.steer):
            with pytest.raises(TransitionRefused):
                await say(number, "say hello please")
        await rig.work()
        assert [role_of_request(r.body) for r in rig.server.model_calls() if r.body] == calls
