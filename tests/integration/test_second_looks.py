"""Finished work is judged again because a person asked: by one worker, in its sandbox; the ticket stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from operator_core import clock
from operator_core.api.local import LocalApi
from operator_core.cli.closing import closing_of
from operator_core.cli.remote import ticket_data
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.fleet import set_draining
from operator_core.db.integrity import verify
from operator_core.db.ledger import ticket_history
from operator_core.db.queue import WorkQueue
from operator_core.db.retention import prune
from operator_core.db.schema import second_looks, tickets, workers
from operator_core.db.second_looks import LookClaim, SecondLooks
from operator_core.db.tickets import TicketDB
from operator_core.errors import Fenced, TransitionRefused
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.person import Role
from operator_core.model.second_look import SecondLook
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Reply, Turn
from operator_core.work.worker import Worker
from tests.support import wait_until_async
from tests.support.api import ANN
from tests.support.rig import PROPOSE, Rig, command, open_rig
from tests.support.store import finish, start_work
from tests.support.task_brain import done, run, task_brain, verdict
from tests.support.web import open_web

MAKE = (run("printf 'echo hello\\n' > hello"), done())
CHECK = TaskCheck(command="sh ./hello | grep hello >/dev/null")


def spec(*checks: TaskCheck, **values: Any) -> TaskSpec:
    return TaskSpec(name="say hello", prompt="Make a script hello that says hello.", checks=checks, **values)


@asynccontextmanager
async def finished(folder: Path, store: str | None = None, **sections: Any) -> AsyncIterator[tuple[Rig, int]]:
    """A rig with a task that is resolved."""
    sections = {"tasks": {"root": folder}, **sections}
    async with open_rig(
        task_brain(MAKE, sections.pop("verifier", None) or _approve), folder, store=store, **sections
    ) as rig:
        number = (await rig.tickets.submit_task(spec(CHECK))).id or 0
        await rig.work()
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
        rig.lines.clear()
        yield rig, number


def _approve(turn: Turn) -> Reply:
    return run("sh ./hello") if turn.step == 0 else verdict(True)


def workspace(rig: Rig) -> Path:
    (folder,) = rig.workspace.parent.glob("Operator Sessions/*/*")
    return folder / "workspace"


async def look_at(rig: Rig, number: int) -> SecondLook:
    return (await SecondLooks(rig.database).of_ticket(number))[0]


async def events(rig: Rig, number: int) -> list[tuple[str, str]]:
    rows = await ticket_history(rig.database, number)
    return [
        (row.kind.removeprefix("second_look_"), row.body["actor"].split(":")[0])
        for row in rows
        if row.kind.startswith("second_look")
    ]


async def living(database: Database, name: str = "", *, lease_s: float = 60.0) -> str:
    worker = clock.new_id()
    await WorkQueue(database).register(worker, lease_s, name)
    return worker


async def has_ended(database: Database, *, ticket: int = 1) -> bool:
    return (await SecondLooks(database).of_ticket(ticket))[0].ended_at is not None


# ---- what comes of it


async def test_a_worker_judges_it_again(tmp_path: Path, store_url: str) -> None:
    async with finished(tmp_path, store_url) as (rig, number):
        before = await rig.tickets.get_ticket(number)
        api = LocalApi(rig.database, rig.settings, ANN)
        asked = await api.verify(number, checks_only=True)
        (waits,) = asked.second_looks
        assert (waits.state, waits.asked_by, waits.checks_only) == ("waiting", "ann (api)", True)
        assert waits.stalled == "No worker is running; start one with `operator worker run`."
        calls = len(rig.server.model_calls())
        await rig.work()
        assert len(rig.server.model_calls()) == calls, "only the checks were asked for"
        shown = await api.ticket(number)
        (look,) = shown.second_looks
        assert (look.state, look.verdict, look.unchanged, look.disagrees) == ("judged", "verified", True, False)
        assert look.stalled is None
        after = await rig.tickets.get_ticket(number)
        assert after == before, "the ticket stays as it is"
        first, second = sorted(shown.sessions, key=lambda s: s.started_at)
        assert (second.session_id, second.judges, second.status) == (look.session_id, first.session_id, "completed")
        assert (await api.session(second.session_id)).judges == first.session_id
        assert shown.report is not None
        assert shown.report.session_id == first.session_id, "the report is that of the attempt"
        assert shown.folder is not None
        assert [b.session_id for b in shown.before] == [first.session_id]
        closing = await closing_of(rig.database, number)
        assert closing is not None
        assert (closing.session_id, closing.folder) == (first.session_id, shown.folder)
        assert ticket_data(shown)["closing"]["session_id"] == first.session_id
        assert shown.verdicts[0].session_id == second.session_id
        assert await events(rig, number) == [("asked", "ann (api)"), ("claimed", "worker"), ("ended", "worker")]
        assert f"[Again] Ticket #{number} is judged again, because ann (api) asked for it." in rig.lines
        report = await verify(rig.database)
        assert report.ok, report.problem


async def test_the_verifier_agent_judges_too(tmp_path: Path) -> None:
    async with finished(tmp_path) as (rig, number):
        before = len([r for r in rig.server.model_calls() if r.body and role_of_request(r.body) == "verifier"])
        await SecondLooks(rig.database).ask(number)
        await rig.work()
        assert (await look_at(rig, number)).verdict == "verified"
        after = len([r for r in rig.server.model_calls() if r.body and role_of_request(r.body) == "verifier"])
        assert after == before + 2


def role_of_request(body: dict[str, Any]) -> str:
    return "verifier" if "submit_verdict" in [tool["name"] for tool in body.get("tools", ())] else "another"


async def test_work_that_was_spoiled_is_refuted_and_the_ticket_stays(tmp_path: Path) -> None:
    async with finished(tmp_path) as (rig, number):
        (workspace(rig) / "hello").write_text("echo goodbye\n")
        api = LocalApi(rig.database, rig.settings, ANN)
        await api.verify(number, checks_only=True)
        await rig.work()
        ticket = await api.ticket(number)
        (look,) = ticket.second_looks
        assert (look.verdict, look.unchanged, look.disagrees) == ("refuted", False, True)
        assert (ticket.status, ticket.reason) == (TicketStatus.RESOLVED, "verified")
        assert [s.status for s in ticket.sessions] == ["escalated", "completed"]
        (workspace(rig) / "hello").write_text("echo hello\n")
        await api.verify(number, checks_only=True)
        await rig.work()
        newest, older = (await api.ticket(number)).second_looks
        assert (newest.verdict, older.verdict) == ("verified", "refuted")


async def test_an_incident_is_looked_at_again(tmp_path: Path) -> None:
    async with open_rig(_Repair(), tmp_path) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED
        number = ticket.id or 0
        for spoil, expected in ((False, "verified"), (True, "refuted")):
            if spoil:
                (rig.workspace / "fixed").unlink()
            await SecondLooks(rig.database).ask(number)
            await rig.work()
            look = await look_at(rig, number)
            assert look.verdict == expected, look
            assert look.unchanged is None
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED


class _Repair:
    """Makes the file, and says so."""

    async def reply(self, turn: Turn) -> Reply:
        return Reply(calls=(command("touch fixed"),)) if turn.step == 0 else PROPOSE


# ---- who may ask, and when


async def test_what_cannot_be_asked(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        looks, api = SecondLooks(database), LocalApi(database, _settings(tmp_path), ANN)
        work = await start_work(database, entries=1)
        with pytest.raises(TransitionRefused, match="is running; it is judged when its work has ended"):
            await looks.ask(1)
        await finish(work, TicketStatus.ESCALATED)
        with pytest.raises(TransitionRefused, match="nothing to judge"):
            await looks.ask(1)
        again = await _worked(database, 2)
        waiting = await start_work(database)
        await waiting.queue.park(waiting.claim, 0)
        with pytest.raises(TransitionRefused, match="is waiting_for_input; it is judged when"):
            await looks.ask(waiting.claim.ticket_id)
        await api.verify(again, key="k")
        with pytest.raises(TransitionRefused, match=r"ann \(api\) asked for it at"):
            await looks.ask(again)
        # The same request, sent again because its answer was lost, asks for nothing new.
        assert len((await api.verify(again, key="k")).second_looks) == 1


def _settings(folder: Path) -> Settings:
    return Settings.model_validate({"worker": {"state_dir": folder / "state"}})


async def _worked(database: Database, number: int, *, pinned_to: str | None = None) -> int:
    """A ticket whose work has ended, with what a judge needs of its journal."""
    work = await start_work(database)
    assert work.claim.ticket_id == number
    await work.journal.append(Draft(EntryKind.BASELINE, "before", body={"snapshot": {}, "seen_red": True}))
    await work.journal.append(Draft(EntryKind.OUTCOME, "done", "done", meta={"outcome": "proposed"}))
    await finish(work)
    if pinned_to is not None:
        async with database.begin() as c:
            await c.execute(update(tickets).where(tickets.c.id == number).values(pinned_to=pinned_to))
    return number


async def test_the_same_moment_asks_once(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        number = await _worked(database, 1)
        looks = SecondLooks(database)
        results = await asyncio.gather(*(looks.ask(number) for _ in range(8)), return_exceptions=True)
        assert sum(result is None for result in results) == 1
        assert all(result is None or isinstance(result, TransitionRefused) for result in results)
        assert len(await looks.of_ticket(number)) == 1


async def test_a_journal_that_is_gone_cannot_be_judged(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "operator.db") as database:
        number = await _worked(database, 1)
        await prune(database, older_than=None, keep=0, state_dir=tmp_path / "state")
        with pytest.raises(TransitionRefused, match="whose journal is here"):
            await SecondLooks(database).ask(number)


# ---- who does it


async def test_exactly_one_worker_gets_it(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        looks = SecondLooks(database)
        for number in range(1, 7):
            await looks.ask(await _worked(database, number))
        those = [await living(database) for _ in range(4)]

        async def greedy(worker: str) -> list[LookClaim]:
            got = []
            for waiting in await looks.waiting(worker, ""):
                claim = await looks.take(waiting, worker, lost_after=3)
                got += [claim] if claim else []
                await asyncio.sleep(0)
            return got

        claims = [claim for some in await asyncio.gather(*map(greedy, those)) for claim in some]
        assert sorted(claim.look.ticket_id for claim in claims) == list(range(1, 7))
        assert {claim.look.fence for claim in claims} == {1}
        assert [await looks.waiting(worker, "") for worker in those] == [[]] * 4


async def test_a_pinned_one_is_for_its_worker(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        api, looks = LocalApi(database, _settings(tmp_path), ANN), SecondLooks(database)
        number = await _worked(database, 1, pinned_to="devbox-7")
        other = await living(database, "devbox-8")
        (look,) = (await api.verify(number)).second_looks
        assert look.stalled == "No worker called devbox-7 is running; the ticket waits for it."
        assert await looks.waiting(other, "devbox-8") == []
        own = await living(database, "devbox-7")
        (look,) = (await api.ticket(number)).second_looks
        assert look.stalled is None
        (waiting,) = await looks.waiting(own, "devbox-7")
        assert await looks.take(waiting, own, lost_after=3) is not None


async def test_a_worker_that_drains_takes_none(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        looks = SecondLooks(database)
        await looks.ask(await _worked(database, 1))
        worker = await living(database)
        (waiting,) = await looks.waiting(worker, "")
        await set_draining(database, worker, True)
        assert await looks.take(waiting, worker, lost_after=3) is None
        assert await looks.waiting(worker, "") == []
        await set_draining(database, worker, False)
        assert await looks.take(waiting, worker, lost_after=3) is not None


async def test_one_that_was_declared_dead_neither_takes_nor_ends_it(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        looks, queue = SecondLooks(database), WorkQueue(database)
        await looks.ask(await _worked(database, 1))
        dead = await living(database)
        (waiting,) = await looks.waiting(dead, "")
        claim = await looks.take(waiting, dead, lost_after=3)
        assert claim is not None
        await _lose(database, dead)
        await queue.reap()
        (look,) = await looks.of_ticket(1)
        assert (look.state, look.lost) == ("waiting", 1)
        with pytest.raises(Fenced):
            await looks.take(waiting, dead, lost_after=3)
        other = await living(database)
        newer = await looks.take(waiting, other, lost_after=3)
        assert newer is not None
        assert newer.look.fence == 2
        with pytest.raises(Fenced):
            await looks.end(claim, verdict="verified", why="I was first")
        with pytest.raises(Fenced):
            await AuditLogDB(database).create_session(1, within=lambda c, session: looks.tie(c, claim, session))
        await looks.end(newer, verdict="refuted", why="it is wrong")
        (look,) = await looks.of_ticket(1)
        assert (look.state, look.verdict) == ("judged", "refuted")
        assert len(await AuditLogDB(database).sessions(ticket_id=1)) == 1, "no session without its request"


async def _lose(database: Database, worker: str) -> None:
    async with database.begin() as c:
        await c.execute(update(workers).where(workers.c.id == worker).values(lease_until=0))


async def test_an_older_claim_of_the_same_worker_ends_nothing(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        looks = SecondLooks(database)
        await looks.ask(await _worked(database, 1))
        worker = await living(database)
        (waiting,) = await looks.waiting(worker, "")
        old = await looks.take(waiting, worker, lost_after=3)
        assert old is not None
        await looks.disown(old.look.id, worker, old.look.fence)
        assert await looks.take(waiting, worker, lost_after=3) is not None
        with pytest.raises(Fenced):
            await looks.end(old, verdict="verified", why="too late")
        await looks.disown(old.look.id, worker, old.look.fence)
        assert list(await looks.owned(worker)) == [(old.look.id, 2)]


async def test_after_so_many_lost_workers_it_fails(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        looks, queue = SecondLooks(database), WorkQueue(database)
        await looks.ask(await _worked(database, 1))
        for _ in range(3):
            worker = await living(database)
            (waiting,) = await looks.waiting(worker, "")
            assert await looks.take(waiting, worker, lost_after=3) is not None
            await _lose(database, worker)
            await queue.reap()
        last = await living(database)
        (waiting,) = await looks.waiting(last, "")
        assert await looks.take(waiting, last, lost_after=3) is None
        (look,) = await looks.of_ticket(1)
        assert (look.state, look.why) == (
            "failed",
            "3 workers were lost while they judged it; look at what they said, then ask again.",
        )
        await looks.ask(1)  # and it can be asked for again


async def test_one_that_leaves_in_good_order_gives_it_back(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        looks = SecondLooks(database)
        await looks.ask(await _worked(database, 1))
        worker = await living(database)
        (waiting,) = await looks.waiting(worker, "")
        await looks.take(waiting, worker, lost_after=3)
        await WorkQueue(database).retire(worker)
        (look,) = await looks.of_ticket(1)
        assert (look.state, look.lost) == ("waiting", 0)


async def test_a_ticket_that_is_opened_again_is_not_judged(tmp_path: Path, store_url: str) -> None:
    async with Database.open(store_url) as database:
        looks = SecondLooks(database)
        await looks.ask(await _worked(database, 1))
        worker = await living(database)
        (waiting,) = await looks.waiting(worker, "")
        claim = await looks.take(waiting, worker, lost_after=3)
        assert claim is not None
        await TicketDB(database).reopen_ticket(1)
        assert list((await looks.owned(worker)).values()) == [False]
        await looks.end(claim, verdict="verified", why="all is well")
        (look,) = await looks.of_ticket(1)
        assert (look.state, look.verdict) == ("failed", None)
        assert "opened again while it was judged" in (look.why or "")
        await TicketDB(database).cancel_ticket(1)
        await looks.ask(1)
        (waiting,) = await looks.waiting(worker, "")
        await TicketDB(database).reopen_ticket(1)
        assert await looks.take(waiting, worker, lost_after=3) is None
        assert "opened again before a worker came" in ((await looks.of_ticket(1))[0].why or "")


# ---- in a worker


async def test_where_no_worker_has_the_workspace(tmp_path: Path) -> None:
    """One of two says that it does not have it, and the other one does it; when none has it, the person is told."""
    async with finished(tmp_path) as (rig, number):
        elsewhere = rig.settings.model_copy(
            update={"tasks": rig.settings.tasks.model_copy(update={"root": tmp_path / "elsewhere"})}
        )
        other = await living(rig.database, "has it")
        looks = SecondLooks(rig.database)
        await looks.ask(number, checks_only=True)
        async with rig.worker() as worker, asyncio.timeout(60):
            stranger = Worker(elsewhere, rig.database, worker._tools.engine, say=rig.lines.append)
            await stranger.run(asyncio.Event(), until_idle=True)
        assert (await look_at(rig, number)).state == "waiting"
        await WorkQueue(rig.database).retire(other)
        await rig.work()
        assert (await look_at(rig, number)).verdict == "verified"
        await looks.ask(number, checks_only=True)
        async with rig.worker() as worker, asyncio.timeout(60):
            stranger = Worker(elsewhere, rig.database, worker._tools.engine, say=rig.lines.append)
            await stranger.run(asyncio.Event(), until_idle=True)
        look = await look_at(rig, number)
        assert look.state == "failed"
        assert (look.why or "").startswith(f"No running worker has the workspace {tmp_path / 'elsewhere'}")


async def test_a_workspace_that_cannot_be_looked_at_ends_no_worker(tmp_path: Path) -> None:
    """The request fails with a sentence; the worker goes on, and so do those after it."""
    async with finished(tmp_path) as (rig, number):
        out_of_reach = tmp_path / ("x" * 300)  # as good as in a folder of somebody else: even a look is an error
        elsewhere = rig.settings.model_copy(
            update={"tasks": rig.settings.tasks.model_copy(update={"root": out_of_reach})}
        )
        await SecondLooks(rig.database).ask(number, checks_only=True)
        async with rig.worker() as worker, asyncio.timeout(60):
            stranger = Worker(elsewhere, rig.database, worker._tools.engine, say=rig.lines.append)
            await stranger.run(asyncio.Event(), until_idle=True)
        look = await look_at(rig, number)
        assert look.state == "failed"
        assert (look.why or "").startswith(f"No running worker has the workspace {out_of_reach}")


async def test_it_runs_in_a_sandbox_of_the_worker(tmp_path: Path, require_bubblewrap: None) -> None:
    """The check sees neither the store nor what is beside the workspace."""
    hostile = TaskCheck(command=f"sh ./hello && ! ls {tmp_path}/operator.db && (touch {tmp_path}/escaped || true)")
    async with open_rig(
        task_brain(MAKE, _approve), tmp_path, tasks={"root": tmp_path}, sandbox={"backend": "bubblewrap"}
    ) as rig:
        number = (await rig.tickets.submit_task(spec(hostile))).id or 0
        await rig.work()
        await SecondLooks(rig.database).ask(number, checks_only=True)
        await rig.work()
        look = await look_at(rig, number)
        assert look.verdict == "verified", look
        assert not (tmp_path / "escaped").exists()


async def test_a_crowd_of_them_does_not_keep_tickets_waiting(tmp_path: Path) -> None:
    """A worker with one slot takes them in turn."""
    async with finished(tmp_path, verifier=_approve) as (rig, number):
        looks = SecondLooks(rig.database)
        more = [(await rig.tickets.submit_task(spec(CHECK))).id or 0 for _ in range(2)]
        await rig.work()
        for ticket in (number, *more):
            await looks.ask(ticket, checks_only=True)
        for _ in range(2):
            await rig.tickets.submit_task(spec(CHECK))
        rig.lines.clear()
        await rig.work(120)
        began = [
            "look" if "is judged again" in line else "ticket"
            for line in rig.lines
            if "is judged again" in line or "Processing ticket" in line
        ]
        assert began[:4] == ["look", "ticket", "look", "ticket"], began
        assert len(began) == 5


@asynccontextmanager
async def slow(folder: Path, **sections: Any) -> AsyncIterator[tuple[Rig, int]]:
    """A rig with a task that is resolved, whose check takes for ever from now on."""
    check = TaskCheck(command=f"sh ./hello && if test -e {folder}/slow; then sleep 600; fi")
    async with open_rig(task_brain(MAKE, _approve), folder, tasks={"root": folder}, **sections) as rig:
        number = (await rig.tickets.submit_task(spec(check))).id or 0
        await rig.work()
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
        (folder / "slow").touch()
        await SecondLooks(rig.database).ask(number, checks_only=True)
        yield rig, number


@asynccontextmanager
async def judging(rig: Rig, number: int, **more: Any) -> AsyncIterator[asyncio.Event]:
    """A worker that is at it; the event ends it."""
    stop = asyncio.Event()

    async def begun() -> bool:
        look = await look_at(rig, number)
        entries = [] if look.session_id is None else await rig.audit.entries(look.session_id)
        return any(entry.entry_type == EntryKind.SNAPSHOT for entry in entries)

    async with rig.worker(**more) as worker, asyncio.timeout(90):
        running = asyncio.create_task(worker.run(stop))
        try:
            await wait_until_async(begun, 40, what="it is judged")
            yield stop
        finally:
            stop.set()
            await running


async def test_reopened_while_it_is_judged(tmp_path: Path) -> None:
    """The work that begins is more important: judging stops at once."""
    async with slow(tmp_path) as (rig, number):
        async with judging(rig, number):
            await rig.tickets.reopen_ticket(number)
            await rig.tickets.hold_ticket(number)
            await wait_until_async(lambda: has_ended(rig.database), 30, what="it is broken off")
        look = await look_at(rig, number)
        assert (look.state, look.verdict) == ("failed", None)
        assert "opened again while it was judged" in (look.why or "")
        assert "running" not in {s.status for s in await rig.audit.sessions(ticket_id=number)}


async def test_a_worker_that_leaves_lets_the_next_one_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("operator_core.work.worker._GRACE_S", 0.2)
    async with slow(tmp_path) as (rig, number):
        async with judging(rig, number):
            pass
        look = await look_at(rig, number)
        assert (look.state, look.lost) == ("waiting", 0)
        (tmp_path / "slow").unlink()
        await rig.work()
        look = await look_at(rig, number)
        assert (look.state, look.verdict, look.fence) == ("judged", "verified", 2)
        states = [s.status for s in await rig.audit.sessions(ticket_id=number)]
        assert states == ["completed", "failed", "completed"]
        report = await verify(rig.database)
        assert report.ok, report.problem


async def test_what_a_worker_forgot_is_given_back(tmp_path: Path) -> None:
    """Its claim is in the store, but the answer never came: the sweep notices."""
    async with finished(tmp_path) as (rig, number):
        looks = SecondLooks(rig.database)
        stop = asyncio.Event()
        async with rig.worker() as worker, asyncio.timeout(60):
            running = asyncio.create_task(worker.run(stop))

            async def registered() -> bool:
                return worker.id in [one.id for one in await WorkQueue(rig.database).living()]

            await wait_until_async(registered, 10)
            await set_draining(rig.database, worker.id, True)
            await looks.ask(number, checks_only=True)
            async with rig.database.begin() as c:
                await c.execute(update(second_looks).values(owner=worker.id, fence=1))
            await set_draining(rig.database, worker.id, False)
            await wait_until_async(lambda: has_ended(rig.database), 40)
            stop.set()
            await running
        look = await look_at(rig, number)
        assert (look.verdict, look.fence, look.lost) == ("verified", 2, 1)


async def test_a_service_that_refuses_is_said_and_the_worker_goes_on(tmp_path: Path) -> None:
    """What keeps a session of a ticket from beginning would stop the worker; a second look only fails, and says why."""
    async with finished(tmp_path) as (rig, number):
        broken = rig.settings.model_copy(
            update={
                "sandbox": rig.settings.sandbox.model_copy(update={"backend": "docker", "docker_program": "/nowhere"})
            }
        )
        await SecondLooks(rig.database).ask(number, checks_only=True)
        async with rig.worker() as worker, asyncio.timeout(60):
            other = Worker(broken, rig.database, worker._tools.engine, say=rig.lines.append)
            await other.run(asyncio.Event(), until_idle=True)
        look = await look_at(rig, number)
        assert look.ended_at is not None
        assert (look.state == "failed" and look.why) or look.verdict == "inconclusive", look


# ---- over HTTP


async def test_over_http(tmp_path: Path) -> None:
    async with open_web(tmp_path / "operator.db") as web:
        number = await _worked(web.database, 1)
        path = f"/api/v1/tickets/{number}/verify"
        viewer, program = web.client(Role.VIEWER), web.client(Role.OPERATOR)
        assert (await viewer.post(path)).status_code == 403
        assert (await program.post("/api/v1/tickets/77/verify")).status_code == 404
        assert (await program.post(path, json={"checks_only": "yes"})).status_code == 422
        assert (await program.post(path, json={"check": "true"})).status_code == 422
        key = {"Idempotency-Key": "k-1"}
        first = await program.post(path, json={"checks_only": True}, headers=key)
        assert first.status_code == 200, first.text
        (look,) = first.json()["second_looks"]
        assert (look["state"], look["checks_only"], look["asked_by"]) == ("waiting", True, "test operator (api)")
        again = await program.post(path, json={"checks_only": True}, headers=key)
        assert (again.status_code, again.headers["Idempotency-Replayed"]) == (200, "true")
        assert again.json() == first.json()
        assert (await program.post(path, headers=key)).status_code == 422, "the key of another request"
        refused = await program.post(path)
        assert refused.status_code == 409
        assert "is to be judged again already: test operator (api) asked for it" in refused.json()["detail"]
        assert len((await viewer.get(f"/api/v1/tickets/{number}")).json()["second_looks"]) == 1


async def test_by_a_form(tmp_path: Path) -> None:
    async with open_web(tmp_path / "operator.db") as web:
        number = await _worked(web.database, 1)
        browser = await web.browser(Role.OPERATOR)
        form = {"csrf": await web.csrf(browser), "back": "evidence", "key": clock.new_id()}
        path = f"/tickets/{number}/verify"
        assert (await browser.post(path, data={**form, "csrf": "x"})).status_code == 403
        done = await browser.post(path, data=form)
        assert (done.status_code, done.headers["location"]) == (303, f"/tickets/{number}/evidence?said=verifying")
        # A form that is sent twice asks once; another one is told why not, on the page where it was.
        assert (await browser.post(path, data=form)).status_code == 303
        refused = await browser.post(path, data={**form, "key": clock.new_id()})
        assert refused.status_code == 409
        assert "is to be judged again already" in refused.text
        assert "<h1>Evidence" in refused.text
        assert (
            await browser.post(path, data={**form, "back": "//evil.example", "key": clock.new_id()})
        ).status_code == 409
        assert len(await SecondLooks(web.database).of_ticket(number)) == 1
