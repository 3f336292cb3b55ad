"""Cancellation of a task in every phase: nothing later starts, the files say so, and no late result wins over it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from operator_core.db.integrity import verify
from operator_core.db.schema import workers
from operator_core.model.entry import EntryKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.scripted import Reply, Turn
from tests.support import processes_of, wait_until_async
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import APPROVE, REJECT, blocked, done, run, task_brain
from tests.support.task_sweep import EXPORTS, role_of_request
from tests.support.worker_process import start_worker

CANCELED = "Task canceled by user"
MAKE = (run("printf 'echo hello\\n' > hello"), done())
CHECK = TaskCheck(command="sh ./hello | grep hello >/dev/null")
Act = Callable[[], Awaitable[Any]]


def spec(**fields: Any) -> TaskSpec:
    return TaskSpec.model_validate({"name": "say hello", "prompt": "Make a script hello.", **fields})


def asked(rig: Rig) -> list[str]:
    """Who was asked, in order."""
    return [role_of_request(r.body) for r in rig.server.model_calls() if r.body]


def folder_of(rig: Rig) -> Path:
    (found,) = rig.workspace.parent.glob("Operator Sessions/*/attempt-1")
    return found


async def assert_canceled(rig: Rig, number: int, *, exported: bool = True) -> None:
    """The row, the session, the files and the audit say that it was canceled."""
    ticket = await rig.tickets.get_ticket(number)
    assert (ticket.status, ticket.reason, ticket.owner) == (TicketStatus.CANCELED, Reason.BY_HAND, None)
    sessions = await rig.audit.sessions(ticket_id=number)
    assert [s.status for s in sessions] == ["canceled"] * len(sessions)
    if exported:
        folder = folder_of(rig)
        assert [name for name in EXPORTS if name != "VERDICT.json" and not (folder / name).is_file()] == []
        assert json.loads((folder / "session_summary.json").read_text())["terminal_status"] == "canceled"
        assert CANCELED in (folder / "result.md").read_text()
        lines = (folder / "transcript.md").read_text().splitlines()
        assert all(json.loads(line) for line in lines)
    report = await verify(rig.database)
    assert report.ok, report.problem


class Canceling:
    """Cancels the ticket at one moment of the script."""

    def __init__(self) -> None:
        self.act: Act | None = None

    def at(self, script: tuple[Reply, ...], step: int = 0) -> Callable[[Turn], Awaitable[Reply]]:
        """The role that is asked for this step when the person cancels."""

        async def reply(turn: Turn) -> Reply:
            if turn.step == step and self.act is not None:
                act, self.act = self.act, None
                await act()
            return script[min(turn.step, len(script) - 1)]

        return reply


PARSED = (Reply(text=json.dumps({"task_description": "Make hello.", "success_criteria": "It says hello."})),)
SUMMED = (Reply(text="# Task Summary: hello\n\n- Made."),)
PHASES: dict[str, tuple[dict[str, tuple[Reply, ...]], tuple[str, int], list[str]]] = {
    # scripts that differ; who is asked when the person cancels; who is asked at all
    "parse": ({}, ("parser", 0), ["parser"]),
    "worker": ({}, ("worker", 0), ["parser", "worker", "worker"]),
    "end of worker": ({}, ("worker", 1), ["parser", "worker", "worker"]),
    "blocked worker": ({"worker": (blocked("What?"),)}, ("worker", 0), ["parser", "worker"]),
    "verifier": ({}, ("verifier", 0), ["parser", "worker", "worker", "verifier", "verifier"]),
    "rejection": (
        {"verifier": REJECT},  # type: ignore[dict-item]
        ("verifier", 1),
        ["parser", "worker", "worker", "verifier", "verifier"],
    ),
    "summarizer": ({}, ("summarizer", 0), ["parser", "worker", "worker", "verifier", "verifier", "summarizer"]),
}


@pytest.mark.parametrize("phase", PHASES)
async def test_the_phase_that_runs_finishes_and_nothing_later_starts(tmp_path: Path, phase: str) -> None:
    others, (role, step), calls = PHASES[phase]
    scripts: dict[str, Any] = {"worker": MAKE, "verifier": APPROVE, "parser": PARSED, "summarizer": SUMMED, **others}
    canceling = Canceling()
    scripts[role] = canceling.at(scripts[role], step)
    async with open_rig(task_brain(**scripts), tmp_path, tasks={"root": tmp_path}) as rig:
        ticket = await rig.tickets.submit_task(spec(checks=(CHECK,)))
        number = ticket.id or 0
        canceling.act = lambda: rig.tickets.cancel_ticket(number)
        await rig.work()
        assert canceling.act is None
        assert asked(rig) == calls
        await assert_canceled(rig, number)
        entries = await rig.journal(number)
        assert not any(e.entry_type == EntryKind.DELIVERED for e in entries)
        (page,) = [e for e in entries if e.entry_type == EntryKind.REPORT]
        assert page.body["headline"] == "canceled by a person"
        assert page.raw_content == (folder_of(rig) / "REPORT.md").read_text()
        # What it returns (row B-029).
        (conclusion,) = rig.conclusions
        assert conclusion.result is not None
        ok, message, transcript, stats = conclusion.result
        assert (ok, message) == (False, CANCELED)
        # Without the last line, which says that it ended: the files were there before that.
        assert transcript.startswith((folder_of(rig) / "transcript.md").read_text())
        written = json.loads((folder_of(rig) / "session_summary.json").read_text())
        assert stats["terminal_status"] == "canceled"
        assert stats["phases"] == written["phases"]
        # Nothing of it is left, and nobody works on it any more.
        assert list((tmp_path / "state" / "sessions").iterdir()) == []
        await rig.work()
        assert asked(rig) == calls


async def test_during_the_checks_the_verifier_agent_does_not_start(tmp_path: Path) -> None:
    waits = f"test ! -e hello || {{ touch {tmp_path}/now; until test -e {tmp_path}/go; do sleep 0.02; done; }}"
    check = TaskCheck(command=f"{waits}; sh ./hello")
    async with open_rig(task_brain(MAKE), tmp_path, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec(checks=(check,)))).id or 0
        working = asyncio.create_task(rig.work())
        await wait_until_async((tmp_path / "now").exists, 20)
        await rig.tickets.cancel_ticket(number)
        (tmp_path / "go").touch()
        await working
        assert asked(rig) == ["parser", "worker", "worker"]
        await assert_canceled(rig, number)
        evidence = [e for e in await rig.journal(number) if e.entry_type == EntryKind.EVIDENCE]
        assert len(evidence) == 1, "the check that ran is in the journal"


async def test_during_the_delivery_the_late_result_does_not_win(tmp_path: Path) -> None:
    # Many files, so that the commit takes its time.
    make = (run("printf 'echo hello\\n' > hello; for i in $(seq 3000); do echo $i > file-$i; done"), done())
    async with open_rig(task_brain(make), tmp_path, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec())).id or 0
        working = asyncio.create_task(rig.work())
        beside = "Operator Sessions/*/attempt-1/workspace/.git/operator-new"
        await wait_until_async(lambda: list(tmp_path.glob(beside)), 30, every=0.002)
        await rig.tickets.cancel_ticket(number)
        await working
        assert any(e.entry_type == EntryKind.DELIVERED for e in await rig.journal(number)), "it was not in the delivery"
        await assert_canceled(rig, number)
        assert rig.conclusions[0].result is not None
        assert rig.conclusions[0].result[:2] == (False, CANCELED)


@pytest.mark.parametrize("pinned", [None, "elsewhere"])
async def test_before_it_was_claimed(tmp_path: Path, pinned: str | None) -> None:
    """Open, and queued for a worker that is busy."""
    async with open_rig(task_brain(MAKE), tmp_path, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec(), pinned_to=pinned)).id or 0
        if pinned:
            async with rig.tools() as tools:
                assert await tools.queue.queue_busy(pinned) == 1
            assert (await rig.tickets.get_ticket(number)).status is TicketStatus.QUEUED
        await rig.tickets.cancel_ticket(number)
        await rig.work()
        assert asked(rig) == []
        await assert_canceled(rig, number, exported=False)


@asynccontextmanager
async def working(rig: Rig, store: str, *, until_idle: bool = False) -> AsyncIterator[int]:
    """A worker process."""
    process = start_worker(store, rig.settings, rig.workspace.parent / "output", until_idle=until_idle)
    try:
        yield process.pid
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 20)


async def test_while_it_waits_for_a_person_its_files_follow(tmp_path: Path, store_url: str) -> None:
    """Nobody has the session, so a worker that runs anyway, or starts later, brings the files up to date."""
    brain = task_brain((blocked("Which greeting?"),))
    sections = {"tasks": {"root": tmp_path}, "worker": {"lease_s": 1.5}}
    async with open_rig(brain, tmp_path, store=store_url, **sections) as rig:
        number = (await rig.tickets.submit_task(spec())).id or 0
        async with working(rig, store_url):

            async def waits() -> bool:
                return (await rig.tickets.get_ticket(number)).status is TicketStatus.WAITING_FOR_INPUT

            await wait_until_async(waits, 30)
            summary = folder_of(rig) / "session_summary.json"
            assert json.loads(summary.read_text())["terminal_status"] == "waiting"
            await rig.tickets.cancel_ticket(number)
            await wait_until_async(lambda: json.loads(summary.read_text())["terminal_status"] == "canceled", 10)
        await assert_canceled(rig, number)


@pytest.mark.broad
async def test_its_worker_was_killed_and_the_next_one_writes_the_files(tmp_path: Path, store_url: str) -> None:
    async def reply(turn: Turn) -> Reply:
        asking.set()
        return Reply(text="too late", delay_s=60)

    asking = asyncio.Event()
    sections = {"tasks": {"root": tmp_path}, "worker": {"lease_s": 1.5}}
    async with open_rig(task_brain(reply), tmp_path, store=store_url, **sections) as rig:
        number = (await rig.tickets.submit_task(spec())).id or 0
        async with working(rig, store_url) as pid:
            await asyncio.wait_for(asking.wait(), 30)
            os.kill(pid, signal.SIGKILL)
        await rig.tickets.cancel_ticket(number)
        calls = len(asked(rig))
        async with working(rig, store_url):

            async def exported() -> bool:
                status = (await rig.tickets.get_ticket(number)).status
                summary = folder_of(rig) / "session_summary.json"
                return (
                    status is TicketStatus.CANCELED
                    and summary.exists()
                    and json.loads(summary.read_text())["terminal_status"] == "canceled"
                )

            await wait_until_async(exported, 20)
        await assert_canceled(rig, number)
        assert len(asked(rig)) == calls


# ---- at once

SLEEP = "1000.25"
SLOW = f"sh -c 'sleep {SLEEP} & exec sleep {SLEEP}'"
NOW: dict[str, tuple[dict[str, Any], tuple[TaskCheck, ...]]] = {
    "command of the worker": ({"worker": (run(f"touch begun; {SLOW}"),)}, ()),
    "command of the verifier": ({"worker": MAKE, "verifier": (run(f"sh ./hello; {SLOW}"),)}, ()),
    "check": ({"worker": MAKE}, (TaskCheck(command=f"test -e hello && {SLOW}"),)),
}


@pytest.mark.broad
@pytest.mark.parametrize("where", NOW)
async def test_now_ends_the_whole_tree_within_two_seconds(
    tmp_path: Path, store_url: str, require_bubblewrap: None, where: str
) -> None:
    scripts, checks = NOW[where]
    sections = {"tasks": {"root": tmp_path}, "sandbox": {"backend": "bubblewrap"}}
    marker = f"sleep\0{SLEEP}"
    async with open_rig(task_brain(**scripts), tmp_path, store=store_url, **sections) as rig:
        number = (await rig.tickets.submit_task(spec(checks=checks))).id or 0
        async with working(rig, store_url) as pid:
            await wait_until_async(lambda: len(processes_of(marker)) >= 2, 30, every=0.05)
            since = time.monotonic()
            await rig.tickets.cancel_ticket(number, now=True)
            await wait_until_async(lambda: not processes_of(marker), 10, every=0.02)
            took = time.monotonic() - since
            print(f"{where}: {took:.2f} s")
            assert took < 2.0

            async def closed() -> bool:
                return (await rig.tickets.get_ticket(number)).status is TicketStatus.CANCELED

            await wait_until_async(closed, 5)
            os.kill(pid, 0)  # the worker itself lives on
            rows = await rig.database.fetch(workers.select())
            assert len(rows) == 1
        await assert_canceled(rig, number)


async def test_now_does_not_wait_for_the_model(tmp_path: Path) -> None:
    async def reply(turn: Turn) -> Reply:
        asking.set()
        return Reply(text="too late", delay_s=60)

    asking = asyncio.Event()
    async with open_rig(task_brain(MAKE, parser=reply), tmp_path, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec())).id or 0
        working = asyncio.create_task(rig.work())
        await asyncio.wait_for(asking.wait(), 20)
        since = time.monotonic()
        await rig.tickets.cancel_ticket(number, now=True)
        await working
        assert time.monotonic() - since < 2.0
        await assert_canceled(rig, number)


async def test_now_after_a_patient_cancellation(tmp_path: Path) -> None:
    """The person loses patience; the session ends once."""
    asking = asyncio.Event()

    async def reply(turn: Turn) -> Reply:
        asking.set()
        return Reply(text="too late", delay_s=60)

    async with open_rig(task_brain(reply), tmp_path, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec())).id or 0
        working = asyncio.create_task(rig.work())
        await asyncio.wait_for(asking.wait(), 20)
        await rig.tickets.cancel_ticket(number)
        await asyncio.sleep(1.0)
        assert not working.done()
        await rig.tickets.cancel_ticket(number, now=True)
        async with asyncio.timeout(2.0):
            await working
        await assert_canceled(rig, number)
        assert [e.entry_type for e in await rig.journal(number)].count("session_end") == 1
