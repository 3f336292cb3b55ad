"""Draining: a worker ends what it has and takes nothing new, until it is let to, or is started anew."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import text

from operator_core import clock
from operator_core.client import Client
from operator_core.db import ledger
from operator_core.db.engine import Database
from operator_core.db.fleet import set_draining
from operator_core.db.queue import _CLAIM, WorkQueue
from operator_core.db.schema import workers
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, Fenced, NotFound, OperatorError
from operator_core.model.person import Role
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.scripted import FunctionBrain, Reply, Turn
from tests.support import wait_until_async
from tests.support.processes import operator_environment
from tests.support.rig import PROPOSE, command, open_rig, spec_of
from tests.support.web import served


class Desk(NamedTuple):
    database: Database
    queue: WorkQueue
    tickets: TicketDB

    async def open(self, name: str) -> int:
        return (await self.tickets.open_ticket(name, "does not hold")).id or 0

    async def task(self, name: str, worker: str) -> int:
        return (await self.tickets.submit_task(TaskSpec(name=name, prompt=name), pinned_to=worker)).id or 0

    async def status(self, ticket: int) -> TicketStatus:
        return (await self.tickets.get_ticket(ticket)).status


@pytest.fixture
async def desk(store_url: str) -> AsyncIterator[Desk]:
    async with Database.open(store_url) as database:
        yield Desk(database, WorkQueue(database), TicketDB(database))


async def test_a_draining_worker_keeps_what_it_has_and_takes_nothing_new(desk: Desk) -> None:
    for worker in ("w1", "w2"):
        await desk.queue.register(worker, 600, concurrency=4)
    first = await desk.open("first")
    (claim,) = await desk.queue.claim("w1")
    await set_draining(desk.database, "w1", True, actor="ann")
    second = await desk.open("second")
    assert await desk.queue.claim("w1", 4) == []
    assert await desk.status(second) is TicketStatus.OPEN
    assert set(await desk.queue.owned("w1")) == {(first, claim.fence)}
    await desk.queue.heartbeat("w1", 600)
    assert [w.id for w in await desk.queue.living()] == ["w2"], "it is none that could take a ticket"
    assert [c.ticket_id for c in await desk.queue.claim("w2", 4)] == [second]
    await desk.queue.finish(
        claim, TicketStatus.ESCALATED, Reason.GAVE_UP, diagnosis="", session_id=None, session_status="escalated"
    )
    assert await desk.status(first) is TicketStatus.ESCALATED


async def test_it_takes_again_when_it_is_let_to_and_is_woken_for_it(desk: Desk) -> None:
    await desk.queue.register("w1", 600)
    await set_draining(desk.database, "w1", True)
    await desk.open("first")
    desk.database.ready.clear()
    await set_draining(desk.database, "w1", True)
    assert not desk.database.ready.is_set()
    await set_draining(desk.database, "w1", False)
    if desk.database.sqlite:
        assert desk.database.ready.is_set(), "it would sleep until the next poll"
    assert len(await desk.queue.claim("w1")) == 1


async def test_only_this_incarnation_drains(desk: Desk) -> None:
    await desk.queue.register("w1", 600, "alpha")
    await set_draining(desk.database, "w1", True)
    ticket = await desk.open("first")
    await desk.queue.retire("w1")
    await desk.queue.register("w2", 600, "alpha")
    assert [c.ticket_id for c in await desk.queue.claim("w2", name="alpha")] == [ticket]


async def test_it_makes_no_room_for_what_is_pinned_to_it(desk: Desk) -> None:
    await desk.queue.register("w1", 600, "alpha")
    ticket = await desk.task("one", "alpha")
    assert await desk.queue.queue_busy("alpha") == 1
    await set_draining(desk.database, "w1", True)
    assert await desk.queue.promote("alpha", 2, worker="w1") == 0
    assert await desk.status(ticket) is TicketStatus.QUEUED
    await desk.queue.register("w2", 600, "alpha")
    assert await desk.queue.promote("alpha", 2, worker="w2") == 1, "another one of that name does"
    assert await desk.queue.claim("w1", name="alpha") == []
    assert len(await desk.queue.claim("w2", name="alpha")) == 1


async def test_a_dead_worker_is_fenced_and_not_merely_idle(desk: Desk) -> None:
    await desk.open("first")
    with pytest.raises(Fenced):
        await desk.queue.claim("never-registered")
    with pytest.raises(NotFound):
        await set_draining(desk.database, "never-registered", True)


async def test_drains_and_claims_at_once_never_lose_a_ticket(desk: Desk) -> None:
    """What was claimed before the drain stays claimed, what comes after it is for the others."""
    await desk.queue.register("w1", 600)
    await desk.queue.register("w2", 600)
    opened = [await desk.open(f"t{n}") for n in range(20)]

    async def take() -> list[int]:
        taken = []
        for _ in range(20):
            taken += [c.ticket_id for c in await desk.queue.claim("w1")]
        return taken

    async def drain() -> set[int]:
        await asyncio.sleep(0)
        await set_draining(desk.database, "w1", True)
        return {ticket for ticket, _ in await desk.queue.owned("w1")}

    taken, before = await asyncio.gather(take(), drain())
    assert set(taken) == before, "it took one after it was drained"
    rest = [c.ticket_id for c in await desk.queue.claim("w2", 20)]
    assert sorted([*taken, *rest]) == opened


@pytest.mark.parametrize("task", [False, True])
async def test_a_drain_that_is_being_committed_is_waited_for(fresh_postgres: str, task: bool) -> None:
    """The claim begins before the drain is committed and ends after it: what it sees at its beginning is too old."""
    async with Database.open(fresh_postgres) as database:
        desk = Desk(database, WorkQueue(database), TicketDB(database))
        await desk.queue.register("w1", 600, "alpha")
        ticket = await desk.task("one", "alpha") if task else await desk.open("one")
        if task:
            await desk.queue.queue_busy("alpha")
        before = await desk.status(ticket)
        async with database.begin() as c:
            await c.execute(workers.update().values(draining=True))
            taking = asyncio.create_task(
                desk.queue.promote("alpha", worker="w1") if task else desk.queue.claim("w1", 4, "alpha")
            )
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")

            async def waits() -> bool:
                return taking.done() or bool((await database.fetch(waiting))[0][0])

            await wait_until_async(waits)
            assert not taking.done(), "it did not wait for the drain"
        assert not await taking
        assert await desk.status(ticket) is before


async def test_a_worker_leaves_while_it_is_drained(fresh_postgres: str) -> None:
    """Both lock the worker and the ledger: in the same order, or one of them fails."""
    async with Database.open(fresh_postgres) as database:
        desk = Desk(database, WorkQueue(database), TicketDB(database))
        await desk.queue.register("w1", 600)
        ticket = await desk.open("one")
        await desk.queue.claim("w1")
        async with database.begin() as c:
            await c.execute(workers.update().values(draining=True))
            leaving = asyncio.create_task(desk.queue.retire("w1"))
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")

            async def waits() -> bool:
                return leaving.done() or bool((await database.fetch(waiting))[0][0])

            await wait_until_async(waits)
            await ledger.append(database, c, "drained", worker="w1", name="", actor="ann")
        await leaving
        assert await desk.status(ticket) is TicketStatus.OPEN


async def test_a_claim_that_is_being_committed_is_waited_for(fresh_postgres: str) -> None:
    """When the drain is answered, everything that the worker will ever have is there."""
    async with Database.open(fresh_postgres) as database:
        desk = Desk(database, WorkQueue(database), TicketDB(database))
        await desk.queue.register("w1", 600)
        await desk.open("one")
        async with database.begin() as c:
            rows = (await c.execute(_CLAIM, {"worker": "w1", "n": 1, "own_name": "", "now": clock.iso()})).all()
            assert len(rows) == 1
            draining = asyncio.create_task(set_draining(database, "w1", True))
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")

            async def waits() -> bool:
                return draining.done() or bool((await database.fetch(waiting))[0][0])

            await wait_until_async(waits)
            assert not draining.done(), "it was answered before the claim was there"
        await draining


async def test_what_people_decide_about_workers_is_in_the_ledger(desk: Desk) -> None:
    await desk.queue.register("w1", 600, "alpha", 4)
    await set_draining(desk.database, "w1", True, actor="api:ann")
    rows = [row for row in await ledger.recent_rows(desk.database, before=2**62, limit=10) if row.kind == "drained"]
    assert [(row.body["worker"], row.body["name"], row.body["actor"]) for row in rows] == [("w1", "alpha", "api:ann")]
    (row,) = await desk.database.fetch(workers.select())
    assert row.concurrency == 4


async def test_a_worker_that_is_drained_ends_its_session_and_waits(tmp_path: Path) -> None:
    """Its session goes on to the proof; the next ticket is taken when it may take again, and not before."""
    stop = asyncio.Event()

    def reply(turn: Turn) -> Reply:
        waits = command("while [ ! -e go ]; do sleep 0.05; done; touch fixed")
        return PROPOSE if turn.step else Reply(calls=(waits,))

    options = {"concurrency": 1, "poll_s": 0.2}
    async with open_rig(FunctionBrain(reply), tmp_path, worker=options) as rig, rig.worker() as worker:
        first = await rig.incident(spec_of(rig.workspace, "first"))
        second = await rig.incident(spec_of(rig.workspace, "second"))
        running = asyncio.create_task(worker.run(stop))

        async def is_there(ticket: int, status: TicketStatus) -> bool:
            return (await rig.tickets.get_ticket(ticket)).status is status

        async def row() -> tuple[int, bool]:
            (found,) = await rig.database.fetch(workers.select())
            return found.concurrency, found.draining

        try:
            await wait_until_async(lambda: is_there(first, TicketStatus.RUNNING), 30)
            assert await row() == (1, False)
            await set_draining(rig.database, worker.id, True)
            (rig.workspace / "go").touch()
            await wait_until_async(lambda: is_there(first, TicketStatus.RESOLVED), 30)
            await asyncio.sleep(1.0)  # five polls
            assert await is_there(second, TicketStatus.OPEN)
            assert await row() == (1, True)
            await set_draining(rig.database, worker.id, False)
            await wait_until_async(lambda: is_there(second, TicketStatus.RESOLVED), 30)
        finally:
            stop.set()
            await running


# ---- on the command line and over HTTP


async def call(*words: str, token: str | None = None) -> tuple[int, str, str]:
    """The command line in a process of its own: exit code, what it printed, and its complaints."""
    environment = operator_environment()
    if token is not None:
        environment["OPERATOR_TOKEN"] = token
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "operator_core",
        *words,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_command_line_drains_here_and_on_a_server(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    async with Database.open(store) as database:
        for worker in ("abc1", "abc2"):
            await WorkQueue(database).register(worker, 600, "alpha", 3)

        async def draining() -> set[str]:
            return {row.id for row in await database.fetch(workers.select()) if row.draining}

        code, out, _ = await call("--db", store, "worker", "list", "--json")
        assert code == 0
        assert [(w["id"], w["concurrency"], w["draining"]) for w in json.loads(out)] == [
            ("abc1", 3, False),
            ("abc2", 3, False),
        ]
        code, _, err = await call("--db", store, "worker", "drain", "abc")
        assert code != 0
        assert "2 workers begin with 'abc'" in err
        assert await draining() == set()
        code, out, _ = await call("--db", store, "worker", "drain", "abc1")
        assert code == 0
        assert "draining" in out
        assert await draining() == {"abc1"}

        with served(store) as server:
            place = ("--server", server.url, "worker")
            code, _, err = await call(*place, "drain", "abc2", token=server.tokens[Role.OPERATOR])
            assert code != 0
            assert "admin" in err
            code, _, err = await call(*place, "undrain", "abc1", token=server.tokens[Role.ADMIN])
            assert (code, err) == (0, "")
            assert await draining() == set()
            code, _, err = await call(*place, "run", token=server.tokens[Role.ADMIN])
            assert code != 0
            assert "leave --server out" in err
            async with Client(server.url, server.tokens[Role.ADMIN]) as client:
                views = await client.drain("abc2", True)
                assert {view.id for view in views if view.draining} == {"abc2"}
                with pytest.raises(OperatorError):
                    await client.drain("../../etc", True)


async def test_top_says_what_is_missing(tmp_path: Path) -> None:
    place = f"--db {tmp_path / 'store.db'}"
    code, _, err = await call(*place.split(" ", 1), "top")
    assert code == ConfigError.exit_code
    wanted = f"`operator {place} top` needs a terminal; elsewhere use `operator {place} tickets list`."
    assert err.strip().endswith(wanted)
