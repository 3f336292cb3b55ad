"""``kill -9`` of a worker that judges finished work again: it is judged, once, and the ticket never changes by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.integrity import verify
from operator_core.db.ledger import ticket_history
from operator_core.db.schema import workers
from operator_core.db.second_looks import SecondLooks
from operator_core.model.entry import EntryKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import TicketStatus
from tests.support import wait_until_async
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import done, run, task_brain
from tests.support.worker_process import kill_at, start_worker

MAKE = (run("printf 'echo hello\\n' > hello"), done())
CHECK = "sh ./hello | grep hello >/dev/null"
PLACES = ["again.claimed", "again.created", "again.begun", "task.copied", "task.checked", "again.judged", "again.ended"]
JUDGED = ["again.judged", "again.ended"]
"""Where the verdict is in the journal already."""


async def resolved(rig: Rig, check: str = CHECK) -> int:
    task = TaskSpec(name="say hello", prompt="Say hello.", checks=(TaskCheck(command=check),), profile="operator")
    number = (await rig.tickets.submit_task(task)).id or 0
    await rig.work()
    assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
    return number


async def verdicts(rig: Rig, number: int) -> list[str]:
    sessions = await AuditLogDB(rig.database).sessions(ticket_id=number)
    found = [e for s in sessions for e in await rig.audit.entries(s.session_id) if e.entry_type == EntryKind.VERDICT]
    return [str(entry.body["kind"]) for entry in found]


async def assert_judged_once(rig: Rig, number: int, *, tries: int) -> None:
    (look,) = await SecondLooks(rig.database).of_ticket(number)
    assert (look.state, look.verdict, look.unchanged) == ("judged", "verified", True), look
    assert await verdicts(rig, number) == ["verified", "verified"], "one of the work, one of the second look"
    ended = [row for row in await ticket_history(rig.database, number) if row.kind == "second_look_ended"]
    assert len(ended) == 1
    sessions = await rig.audit.sessions(ticket_id=number)
    assert sorted(s.status for s in sessions) == ["completed", "completed", *["failed"] * (tries - 1)]
    assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
    assert (
        set(await asyncio.to_thread(lambda: list((rig.settings.worker.state_dir or Path()).glob("sessions/*"))))
        == set()
    )
    report = await verify(rig.database)
    assert report.ok, report.problem


async def kill_and_go_on(place: str, folder: Path, store: str) -> None:
    async with open_rig(task_brain(MAKE), folder, store=store, tasks={"root": folder}) as rig:
        number = await resolved(rig)
        await SecondLooks(rig.database).ask(number)
        await kill_at(rig, store, place, folder)
        await rig.work()
        # Before there was a session nothing had begun; with its verdict nothing is begun again.
        tries = 1 if place in ("again.claimed", *JUDGED) else 2
        await assert_judged_once(rig, number, tries=tries)
        (look,) = await SecondLooks(rig.database).of_ticket(number)
        assert look.lost == (0 if place == "again.ended" else 1)


@pytest.mark.parametrize("place", PLACES)
async def test_killed_at(place: str, tmp_path: Path) -> None:
    await kill_and_go_on(place, tmp_path, str(tmp_path / "operator.db"))


@pytest.mark.parametrize("place", ["again.created", "again.judged"])
async def test_killed_on_postgresql(place: str, tmp_path: Path, fresh_postgres: str) -> None:
    await kill_and_go_on(place, tmp_path, fresh_postgres)


async def test_killed_from_outside_while_two_workers_are_there(tmp_path: Path, store_url: str) -> None:
    """The one that has it is killed while the check runs; the other one takes over when the lease is over."""
    check = f"{CHECK} && if test -e {tmp_path}/slow; then sleep 600; fi"
    sections = {"tasks": {"root": tmp_path}, "worker": {"lease_s": 1.5}}
    async with open_rig(task_brain(MAKE), tmp_path, store=store_url, **sections) as rig:
        number = await resolved(rig, check)
        (tmp_path / "slow").touch()
        looks = SecondLooks(rig.database)
        both = [start_worker(store_url, rig.settings, tmp_path / f"output-{n}", until_idle=False) for n in range(2)]
        try:
            await wait_until_async(lambda: _pids(rig), 30, what="both are there")
            await looks.ask(number)

            async def at_it() -> int | None:
                (look,) = await looks.of_ticket(number)
                if look.owner is None or look.session_id is None:
                    return None
                entries = await rig.audit.entries(look.session_id)
                if not any(e.entry_type == EntryKind.SNAPSHOT for e in entries):
                    return None
                return (await _pids(rig)).get(look.owner)

            pid = await wait_until_async(at_it, 40, what="one is at it")
            (tmp_path / "slow").unlink()
            (doomed,) = [one for one in both if one.pid == pid]
            doomed.kill()
            doomed.wait()

            async def ended() -> bool:
                return (await looks.of_ticket(number))[0].ended_at is not None

            await wait_until_async(ended, 40, what="the other one does it")
            (look,) = await looks.of_ticket(number)
            assert (look.verdict, look.fence, look.lost) == ("verified", 2, 1)
            states = [s.status for s in await rig.audit.sessions(ticket_id=number)]
            assert states == ["completed", "failed", "completed"]
        finally:
            for one in both:
                one.kill()
                one.wait()


async def _pids(rig: Rig) -> dict[str, int]:
    async with rig.database.read() as c:
        rows = (await c.execute(workers.select())).all()
    return {row.id: row.pid for row in rows} if len(rows) >= 2 else {}


@pytest.mark.deep
async def test_each_of_many_is_judged_by_one_of_two_workers(tmp_path: Path, store_url: str) -> None:
    async with open_rig(task_brain(MAKE), tmp_path, store=store_url, tasks={"root": tmp_path}) as rig:
        numbers = [await resolved(rig) for _ in range(4)]
        looks = SecondLooks(rig.database)
        for number in numbers:
            await looks.ask(number)
        both = [start_worker(store_url, rig.settings, tmp_path / f"output-{n}") for n in range(2)]
        codes = [await asyncio.to_thread(one.wait, 120) for one in both]
        assert codes == [0, 0], [(tmp_path / f"output-{n}").read_text() for n in range(2)]
        for number in numbers:
            await assert_judged_once(rig, number, tries=1)
