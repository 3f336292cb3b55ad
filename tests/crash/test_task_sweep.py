"""``kill -9`` at every named place of a task with a rejection in it; another worker finishes it in the same folder."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from operator_core import failpoints
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.scripted import ScriptedProcess
from operator_core.work.process import serve
from tests.support import PostgresCluster, processes_of
from tests.support.task_sweep import BRAIN, LOUD, random_pairs, sweep, sweep_settings

pytestmark = pytest.mark.slow

LANES = 5  # they wait for leases most of the time
PARTS = 3
MOST = 200
NAMES = {
    "worker.registered",
    "worker.claimed",
    "session.created",
    "session.opened",
    "task.parsed",
    "task.workspace",
    "session.prepared",
    "session.begun",
    "journal.append.before:message",
    "journal.append.after:message+reasoning+tool_call",
    "gateway.started",
    "gateway.executed",
    "gateway.published",
    "journal.append.after:tool_result",
    "journal.append.after:tool_result+outcome",
    "journal.append.after:outcome",
    "task.worked",
    "task.copied",
    "task.checked",
    "task.judged",
    "task.summarized",
    "task.committed",
    "task.delivered",
    "session.reported",
    "session.finished",
}


def test_which_places_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep kills at the n-th place, whatever its name: one that is renamed or lost is missed here."""
    counts: dict[str, int] = {}
    monkeypatch.setattr(failpoints, "_counts", counts)
    monkeypatch.setattr(failpoints, "_target", "nowhere")
    store = str(tmp_path / "operator.db")

    async def work(server: str) -> None:
        async with Database.open(store) as database:
            await TicketDB(database).submit_task(LOUD)
        await serve(store, settings=sweep_settings(server, tmp_path), until_idle=True, say=lambda line: None)

    with ScriptedProcess(f"{BRAIN}:sweep") as server:
        asyncio.run(work(server.base_url))
    assert counts.keys() >= NAMES, NAMES - counts.keys()
    assert 60 < sum(counts.values()) < MOST, counts


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_place(tmp_path: Path, part: int) -> None:
    stores = [str(tmp_path / f"store-{n}.db") for n in range(LANES)]
    places = [(str(at),) for at in range(part + 1, MOST, PARTS)]
    swept = sweep(tmp_path, stores, places)
    print(swept)
    assert swept.over, f"more than {MOST} places"
    assert len(swept.reached) > 20
    # What was interrupted was told as what it was.
    assert swept.statuses["unknown"] + swept.statuses["not_executed"] >= 1
    assert swept.statuses["ok"] > 60


@pytest.mark.deep
def test_killed_twice_at_random_on_postgres(tmp_path: Path, postgres_cluster: PostgresCluster) -> None:
    """Two workers of each task, one after the other."""
    seed = int(os.environ.get("OPERATOR_SWEEP_SEED") or random.SystemRandom().randrange(10**6))
    names, pairs = [f"tasks_{os.getpid()}_{n}" for n in range(3)], 9
    try:
        swept = sweep(tmp_path, [postgres_cluster.create(name) for name in names], random_pairs(seed, pairs, 80))
    except AssertionError as error:
        raise AssertionError(f"OPERATOR_SWEEP_SEED={seed}: {error}") from error
    finally:
        for name in names:
            postgres_cluster.drop(name)
    print(seed, swept)
    assert len(swept.reached) >= pairs, f"OPERATOR_SWEEP_SEED={seed}"


@pytest.mark.deep
def test_killed_with_sandboxes(tmp_path: Path, require_bubblewrap: None) -> None:
    """A few of them with real sandboxes, whose processes must be gone with their worker."""
    names = ["task.copied", "gateway.executed:5", "task.summarized", "task.committed"]
    stores = [str(tmp_path / f"store-{n}.db") for n in range(2)]
    swept = sweep(tmp_path, stores, [(name,) for name in names], sandbox={"backend": "bubblewrap"})
    assert sorted(swept.reached) == sorted(name.partition(":")[0] for name in names)
    assert processes_of(str(tmp_path)) == []
