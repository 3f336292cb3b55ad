"""A worker is killed while a task is judged, or while nobody can know; the next one ends it, in the same folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from operator_core.db.integrity import verify
from operator_core.db.schema import workers
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, Ticket, TicketStatus
from operator_core.scripted import Reply, Turn
from tests.support import processes_of, wait_until_async
from tests.support.forge import DECLARED_DEAD, Forge
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import blocked, done, run, task_brain, verdict
from tests.support.task_sweep import EXPORTS, check_requests, role_of_request

MAKE = (run("printf 'echo hello\\n' > hello"), done())
CHECK = TaskCheck(command="sh ./hello | grep hello >/dev/null")


def spec(*checks: TaskCheck) -> TaskSpec:
    return TaskSpec(name="say hello", prompt="Make a script hello that says hello.", checks=checks)


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """Starts worker processes."""
    with Forge(tmp_path_factory.mktemp("forge") / "output") as one:
        yield one


@dataclass
class Started:
    """A worker process, and how it ended once somebody has waited for it."""

    pid: int
    code: int | None = None


@asynccontextmanager
async def killed(rig: Rig, store: str, forge: Forge) -> AsyncIterator[Started]:
    """A worker process that is killed at the end of the block, whatever it does then."""
    worker = Started(forge.start(store, rig.settings))
    try:
        yield worker
    finally:
        if worker.code is None:
            os.kill(worker.pid, signal.SIGKILL)
            await asyncio.to_thread(forge.wait, worker.pid)


async def submit(rig: Rig, *checks: TaskCheck) -> int:
    return (await rig.tickets.submit_task(spec(*checks))).id or 0


async def assert_verified(rig: Rig, number: int, *, lost: int) -> list[Entry]:
    """It is done and delivered in the folder of its first attempt, and at most so many replies were paid twice."""
    ticket = await rig.tickets.get_ticket(number)
    assert (ticket.status, ticket.reason) == (TicketStatus.RESOLVED, Reason.VERIFIED), ticket.diagnosis
    (folder,) = rig.workspace.parent.glob("Operator Sessions/*/*")
    assert folder.name == "attempt-1"
    assert [name for name in EXPORTS if not (folder / name).is_file()] == []
    (session,) = await rig.audit.sessions(ticket_id=number)
    entries = await rig.audit.entries(session.session_id)
    requests = [{"body": r.body} for r in rig.server.model_calls() if r.body]
    assert check_requests(entries, requests).total() <= lost
    report = await verify(rig.database)
    assert report.ok, report.problem
    return entries


async def status_of(rig: Rig, number: int) -> TicketStatus:
    return (await rig.tickets.get_ticket(number)).status


async def test_killed_while_the_verifier_works(
    tmp_path: Path, store_url: str, forge: Forge, require_bubblewrap: None
) -> None:
    """The worker of the task is not asked again; the verifier is told that what it ran is unknown, and goes on."""

    def verifier(turn: Turn) -> Reply:
        if turn.step == 0:
            return run("sh ./hello; touch tried; sleep 66.75")
        if turn.step == 1:
            assert "outcome unknown" in turn.results[0].text
            assert "hello" in turn.results[0].text, "what it had printed so far is told"
            return run("test -e tried && sh ./hello")  # the copy is the same one
        return verdict(True)

    sections: dict[str, Any] = {"tasks": {"root": tmp_path}, "sandbox": {"backend": "bubblewrap"}}
    sections["worker"] = {"lease_s": 1.5}
    async with open_rig(task_brain(MAKE, verifier), tmp_path, store=store_url, **sections) as rig:
        number = await submit(rig, CHECK)
        async with killed(rig, store_url, forge):
            await wait_until_async(lambda: processes_of("sleep\00066.75"), 40, every=0.05)
        # What it ran dies with it.
        await wait_until_async(lambda: not processes_of("sleep\00066.75"), 60)
        before = [role_of_request(r.body) for r in rig.server.model_calls() if r.body]
        assert before == ["parser", "worker", "worker", "verifier"]
        await rig.work()
        entries = await assert_verified(rig, number, lost=0)
        after = [role_of_request(r.body) for r in rig.server.model_calls() if r.body]
        assert after[len(before) :] == ["verifier", "verifier", "summarizer"]
        assert sum(e.entry_type == EntryKind.RESUMED for e in entries) == 1
        evidence = [e for e in entries if e.entry_type == EntryKind.EVIDENCE]
        assert len(evidence) == 2, "the check was not run again, since it had ended"


async def test_killed_while_a_check_runs(
    tmp_path: Path, store_url: str, forge: Forge, require_bubblewrap: None
) -> None:
    """The check dies with the worker, says nothing, and is run again from the beginning on a copy of its own."""
    slow = TaskCheck(command="sh ./hello || exit 1; test -e once && exit 1; touch once; sleep 2.375; true")
    sections: dict[str, Any] = {"tasks": {"root": tmp_path}, "sandbox": {"backend": "bubblewrap"}}
    sections["worker"] = {"lease_s": 1.5}
    async with open_rig(task_brain(MAKE), tmp_path, store=store_url, **sections) as rig:
        number = await submit(rig, slow)
        async with killed(rig, store_url, forge):
            await wait_until_async(lambda: processes_of("sleep\0002.375"), 40, every=0.05)
        await wait_until_async(lambda: not processes_of("sleep\0002.375"), 60)
        await rig.work()
        await assert_verified(rig, number, lost=0)


ANSWERED = re.compile(r"say (\w+) please")


def asks_first(turn: Turn) -> Reply:
    """Asks which greeting, and then writes down every answer that it was given."""
    said = ANSWERED.findall(str(turn.messages))
    if not said:
        return blocked("Which greeting?")
    if not any(r.name == "shell" for r in turn.history()):
        return run("; ".join(f"echo 'echo {word}' >> hello" for word in dict.fromkeys(said)))
    return done()


async def park(rig: Rig, store: str, forge: Forge) -> tuple[int, Ticket]:
    """Let a worker process bring the task to its question, and go."""
    number = await submit(rig, CHECK)
    assert await asyncio.to_thread(forge.wait, forge.start(store, rig.settings)) == 0
    ticket = await rig.tickets.get_ticket(number)
    assert ticket.status is TicketStatus.WAITING_FOR_INPUT
    return number, ticket


async def kill_at(place: str, rig: Rig, store: str, forge: Forge) -> None:
    pid = forge.start(store, rig.settings, crash_at=place, crash_log=rig.workspace.parent / "crashes")
    assert await asyncio.to_thread(forge.wait, pid) == -signal.SIGKILL


@pytest.mark.parametrize("place", ["journal.append.after:outcome", "task.worked"])
async def test_killed_between_the_question_and_the_rest(
    tmp_path: Path, store_url: str, forge: Forge, place: str
) -> None:
    """The question is in the journal, nobody knows that it waits: the next worker parks it, and asks nobody again."""
    sections = {"tasks": {"root": tmp_path}, "worker": {"lease_s": 1.5}}
    async with open_rig(task_brain(asks_first), tmp_path, store=store_url, **sections) as rig:
        number = await submit(rig, CHECK)
        await kill_at(place, rig, store_url, forge)
        assert await status_of(rig, number) is TicketStatus.RUNNING
        calls = len(rig.server.model_calls())
        await rig.work()
        assert await status_of(rig, number) is TicketStatus.WAITING_FOR_INPUT
        assert len(rig.server.model_calls()) == calls
        await rig.tickets.reply(number, "say hello please")
        await rig.work()
        await assert_verified(rig, number, lost=0)


async def test_days_of_waiting_cost_nothing(tmp_path: Path, store_url: str, forge: Forge) -> None:
    """While it waits there is no process, no lease and no call; the answer comes while no worker runs at all."""
    async with open_rig(task_brain(asks_first), tmp_path, store=store_url, tasks={"root": tmp_path}) as rig:
        number, ticket = await park(rig, store_url, forge)
        assert ticket.owner is None
        assert await rig.database.fetch(workers.select()) == []
        assert processes_of(str(tmp_path)) == []
        calls = len(rig.server.model_calls())
        for _ in range(3):  # workers come and go, and leave it alone
            await rig.work()
        assert len(rig.server.model_calls()) == calls
        assert (await rig.tickets.get_ticket(number)).fence == ticket.fence
        await rig.tickets.reply(number, "say hello please")
        assert await rig.database.fetch(workers.select()) == []
        await rig.work()
        entries = await assert_verified(rig, number, lost=0)
        assert [e.raw_content for e in entries if e.entry_type == EntryKind.NOTE] == ["say hello please"]


async def test_killed_after_it_took_the_answer(tmp_path: Path, store_url: str, forge: Forge) -> None:
    """The answer is taken out of the inbox and into the journal in one step: it is neither lost nor said twice."""
    sections = {"tasks": {"root": tmp_path}, "worker": {"lease_s": 1.5}}
    async with open_rig(task_brain(asks_first), tmp_path, store=store_url, **sections) as rig:
        number, _ = await park(rig, store_url, forge)
        await rig.tickets.reply(number, "say hello please")
        await kill_at("journal.append.before:message+tool_call", rig, store_url, forge)
        await rig.work()
        entries = await assert_verified(rig, number, lost=1)
        assert [e.raw_content for e in entries if e.entry_type == EntryKind.NOTE] == ["say hello please"]


async def test_killed_as_the_claim_of_the_answer(tmp_path: Path, store_url: str, forge: Forge) -> None:
    sections = {"tasks": {"root": tmp_path}, "worker": {"lease_s": 1.5}}
    async with open_rig(task_brain(asks_first), tmp_path, store=store_url, **sections) as rig:
        number, _ = await park(rig, store_url, forge)
        await rig.tickets.reply(number, "say hello please")
        await kill_at("worker.claimed", rig, store_url, forge)
        await rig.work()
        entries = await assert_verified(rig, number, lost=0)
        assert [e.raw_content for e in entries if e.entry_type == EntryKind.NOTE] == ["say hello please"]


async def test_a_worker_that_slept_too_long_pays_nothing_and_writes_nothing(
    tmp_path: Path, store_url: str, forge: Forge
) -> None:
    """It is stopped while it thinks, another one ends the task, it wakes up: the verdict stands."""
    asking = asyncio.Event()

    async def worker(turn: Turn) -> Reply:
        if turn.attempt == 0 and turn.step == 1:
            asking.set()
            return Reply(text="Late.\nSTATUS: done", delay_s=3.0)
        return MAKE[min(turn.step, 1)]

    sections = {"tasks": {"root": tmp_path}, "worker": {"lease_s": 1.5}}
    async with open_rig(task_brain(worker), tmp_path, store=store_url, **sections) as rig:
        number = await submit(rig, CHECK)
        async with killed(rig, store_url, forge) as late:
            await asyncio.wait_for(asking.wait(), 30)
            os.kill(late.pid, signal.SIGSTOP)
            await rig.work()
            entries = await assert_verified(rig, number, lost=1)
            os.kill(late.pid, signal.SIGCONT)
            late.code = await asyncio.to_thread(forge.wait, late.pid)
            assert late.code == DECLARED_DEAD
        assert len(await rig.audit.entries(entries[0].session_id)) == len(entries)
        await assert_verified(rig, number, lost=1)


async def test_a_task_that_kills_its_workers_is_given_up_with_its_files(tmp_path: Path, forge: Forge) -> None:
    store = str(tmp_path / "operator.db")
    sections = {"tasks": {"root": tmp_path}, "worker": {"lease_s": 1.0, "lost_after": 2}}
    async with open_rig(task_brain(MAKE), tmp_path, store=store, **sections) as rig:
        number = await submit(rig, CHECK)
        for _ in range(3):
            await kill_at("session.opened", rig, store, forge)
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, Reason.LOST_WORKER)
        (folder,) = tmp_path.glob("Operator Sessions/*/attempt-1")
        assert [name for name in EXPORTS if name != "VERDICT.json" and not (folder / name).is_file()] == []
        assert json.loads((folder / "session_summary.json").read_text())["terminal_status"] == "failed"
        assert "lost without any progress" in (folder / "result.md").read_text()
        assert rig.server.model_calls() == []
