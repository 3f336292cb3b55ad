"""``kill -9`` at every named place of a session; another worker finishes it; nothing is lost and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from operator_core import clock
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.model.ticket import InvariantViolation, TicketStatus
from operator_core.scripted import ScriptedProcess
from tests.support import PostgresCluster
from tests.support.crash_checks import check_session
from tests.support.forge import DECLARED_DEAD, Forge
from tests.support.rig import spec_of

pytestmark = pytest.mark.slow

BRAIN = str(Path(__file__).parents[1] / "support" / "crash_brain.py")
LANES = 5  # they wait for leases most of the time
MOST = 300


class _Lane:
    """One store: kills at the places that it is given, one after the other."""

    def __init__(self, number: int, store: str, folder: Path, server: str, forge: Forge) -> None:
        self.forge = forge
        self.store, self.folder = store, folder / f"lane-{number}"
        self.folder.mkdir()
        self.settings = Settings.model_validate(
            {
                "model": {"engine": "scripted", "base_url": server, "summaries": "deterministic"},
                "sandbox": {"backend": "none"},
                "worker": {"lease_s": 2.0, "poll_s": 0.1, "lost_after": 100, "state_dir": self.folder / "state"},
            }
        )
        self.reached: list[str] = []
        self.statuses: Counter[str] = Counter()

    def run(self, take: Callable[[], int | None], stop: Callable[[], None]) -> None:
        while (at := take()) is not None:
            try:
                # On a busy machine a worker may miss its lease, and end before it comes to the place: once more.
                ended = next((e for e in (self._kill_at(at, n) for n in range(5)) if e != "too early"), "too early")
                assert ended != "too early", "every worker lost its lease before"
                if ended == "whole":
                    stop()
            except AssertionError as error:
                place = (self.folder / "crashes").read_text().split()[-1:]
                raise AssertionError(f"killed at place {at} {place}: {error}") from error
        asyncio.run(self._check_store())
        # One more worker comes and goes, and cleans up what those left that were killed after the end.
        self.forge.finish(self.store, self.settings)
        assert list((self.folder / "state" / "sessions").iterdir()) == []

    def _kill_at(self, at: int, attempt: int) -> str:
        """``killed`` there, ``whole`` if there is no such place, or ``too early``."""
        name = f"killed-{at}-{attempt}"
        workspace = self.folder / name
        workspace.mkdir()
        ticket = asyncio.run(self._open(workspace, name))
        log = self.folder / "crashes"
        log.touch()
        before = len(log.read_text().split())
        pid = self.forge.start(self.store, self.settings, crash_at=str(at), crash_log=log)
        code = self.forge.wait(pid)
        reached = log.read_text().split()[before:]
        if reached:
            assert code == -signal.SIGKILL
            self.reached += reached
        if code != 0:
            assert reached or code == DECLARED_DEAD, f"the worker ended with {code}"
            self.forge.finish(self.store, self.settings)
        asyncio.run(self._check(ticket, workspace))
        return "killed" if reached else "whole" if code == 0 else "too early"

    async def _open(self, workspace: Path, name: str) -> int:
        async with TicketDB(self.store) as tickets:
            seen = clock.now()
            violation = InvariantViolation(name, "The file is missing.", seen, seen)
            check = spec_of(workspace, name)
            ticket = await tickets.create_or_update_ticket(violation, {"light": "red"}, check=check)
            assert ticket.id is not None
            return ticket.id

    async def _check(self, number: int, workspace: Path) -> None:
        async with Database.open(self.store) as database:
            ticket = await TicketDB(database).get_ticket(number)
            assert (ticket.status, ticket.reason) == (TicketStatus.RESOLVED, "verified"), ticket.diagnosis
            audit = AuditLogDB(database)
            sessions = await audit.sessions(ticket_id=number)
            # A crash between the claim and its session leaves none behind.
            assert [s.status for s in sessions] == ["completed"]
            self.statuses += check_session(await audit.entries(sessions[0].session_id), workspace)

    async def _check_store(self) -> None:
        async with Database.open(self.store) as database:
            report = await verify(database)
            assert report.ok, report.problem


async def _create(store: str) -> None:
    async with Database.open(store):
        pass


def _sweep(folder: Path, stores: list[str]) -> tuple[list[str], Counter[str]]:
    """Kill at each place until there is none; the names of the places, and the statuses of all calls."""
    for store in stores:
        asyncio.run(_create(store))  # one by one, because the migrations are not for threads
    places: queue.Queue[int] = queue.Queue()
    for at in range(1, MOST):
        places.put(at)
    over = threading.Event()
    failures: list[BaseException] = []

    def take() -> int | None:
        return None if over.is_set() or failures else places.get_nowait()

    with ScriptedProcess(f"{BRAIN}:short") as server, Forge(folder / "output") as forge:
        lanes = [_Lane(n, store, folder, server.base_url, forge) for n, store in enumerate(stores)]

        def guarded(lane: _Lane) -> None:
            try:
                lane.run(take, over.set)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        # Without a body: its sender was killed while it sent.
        refused = [r for r in server.requests(bodies=False) if r["status"] not in (200, None) and r["size"]]
        assert refused == [], "a history was sent that no model accepts"
    assert over.is_set(), f"more than {MOST} places"
    return [name for lane in lanes for name in lane.reached], sum((lane.statuses for lane in lanes), Counter())


def _report(engine: str, reached: list[str], statuses: Counter[str]) -> None:
    print(f"{engine}: {len(reached)} kills, {len(set(reached))} places, {dict(statuses)}: {sorted(set(reached))}")


@pytest.mark.deep
def test_killed_at_every_place_on_sqlite(tmp_path: Path) -> None:
    stores = [str(tmp_path / f"store-{n}.db") for n in range(LANES)]
    reached, statuses = _sweep(tmp_path, stores)
    _report("sqlite", reached, statuses)
    # Which places there are is part of the test: a renamed or lost one must be missed here.
    expected = {
        "worker.registered",
        "worker.claimed",
        "session.created",
        "session.opened",
        "session.prepared",
        "session.begun",
        "journal.append.before:message",
        "journal.append.after:message+reasoning+tool_call",
        "gateway.started",
        "gateway.executed",
        "gateway.published",
        "journal.append.before:tool_result",
        "journal.append.after:tool_result",
        "journal.append.after:tool_result+outcome",
        "session.worked",
        "session.judged",
        "session.reported",
        "session.finished",
    }
    assert set(reached) >= expected
    # Both kinds of interruption happened, and both were told as what they were.
    assert min(statuses["unknown"], statuses["not_executed"]) >= 1
    assert statuses["ok"] > 100


@pytest.mark.deep
def test_killed_at_every_place_on_postgres(tmp_path: Path, postgres_cluster: PostgresCluster) -> None:
    names = [f"sweep_{os.getpid()}_{n}" for n in range(LANES)]
    try:
        stores = [postgres_cluster.create(name) for name in names]
        reached, statuses = _sweep(tmp_path, stores)
    finally:
        for name in names:
            postgres_cluster.drop(name)
    _report("postgresql", reached, statuses)
    assert len(set(reached)) >= 10
    assert statuses["ok"] > 30
