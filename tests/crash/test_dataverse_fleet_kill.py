"""Boxes die for good, and the fleet manager gives their work to others; real workers do it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operator_core import clock
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import ScriptedProcess
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.fleet.mirrors import mirror_id
from operator_dataverse.fleet.tasks import Tasks
from tests.support.dataverse import double
from tests.support.dataverse_brain import ANSWER
from tests.support.dataverse_worker import ALICE, DataverseWorker
from tests.support.processes import operator_environment
from tests.support.waiting import wait_until

__all__ = ["double"]

TASKS, MESSAGES, USERS = "cr_shraga_tasks", "cr_shragamessages", "crb3b_shragausers"
BOB = "bob@example.com"
BRAINS = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProcess]:
    with ScriptedProcess(f"{BRAINS / 'task_brain.py'}:hello") as server:
        yield server


@pytest.fixture(scope="module")
def asking() -> Iterator[ScriptedProcess]:
    with ScriptedProcess(f"{BRAINS / 'dataverse_brain.py'}:asks") as server:
        yield server


@pytest.fixture
def manager(double: Double, tmp_path: Path) -> Iterator[Path]:
    """`operator-dataverse fleet run`, as a process; the file with what it says."""
    output = tmp_path / "fleet.txt"
    (tmp_path / "operator.toml").write_text(f'[dataverse.shared_boxes]\nbox-1 = "{ALICE}"\n')
    env = {
        "DATAVERSE_URL": double.url,
        "DATAVERSE_TOKEN": double.token,
        "OPERATOR_DATAVERSE__LEASE_S": "4",
        "OPERATOR_DATAVERSE__POLL_S": "0.3",
    }
    with (
        output.open("wb") as file,
        subprocess.Popen(
            [sys.executable, "-m", "operator_dataverse", "fleet", "run"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env=operator_environment(env),
        ) as process,
    ):
        try:
            yield output
        finally:
            process.kill()
    print(output.read_text())


def status(server: Double, row_id: str) -> Any:
    return server.tables[TASKS][row_id]["cr_status"]


@pytest.mark.deep
@pytest.mark.slow
def test_the_work_of_a_dead_box_is_done_by_another_one(
    double: Double, model: ScriptedProcess, manager: Path, tmp_path: Path
) -> None:
    values = {"cr_name": "Say hello", "cr_prompt": "Make hello.", "crb3b_useremail": ALICE}
    row_id = double.seed(TASKS, cr_status=1, **values)
    with (
        DataverseWorker(tmp_path / "one", double, model.base_url, box="box-1") as one,
        DataverseWorker(tmp_path / "two", double, model.base_url, box="box-2") as two,
    ):
        assert one.finish(crash_at="task.worked") < 0
        assert double.tables[TASKS][row_id]["crb3b_devbox"] == "box-1"
        wait_until(lambda: status(double, row_id) == 1, 60, what=manager.read_text())
        assert two.finish() == 0
        assert (status(double, row_id), double.tables[TASKS][row_id]["crb3b_devbox"]) == (7, "box-2")
        before = len(double.history.effects(TASKS, row_id))
        # The dead box comes back, finds out, and writes nothing about it any more.
        assert one.finish() == 0
        assert len(double.history.effects(TASKS, row_id)) == before
        assert asyncio.run(_only_ticket(one)) is TicketStatus.CANCELED
    assert double.history.values(TASKS, row_id, "cr_status") == [5, 1, 5, 7]
    assert "was taken back: no sign of life since" in manager.read_text()


@pytest.mark.slow
def test_a_task_of_a_person_without_a_box_is_done_on_a_shared_one(
    double: Double, asking: ScriptedProcess, manager: Path, tmp_path: Path
) -> None:
    double.seed(USERS, crb3b_useremail=ALICE, crb3b_devboxname="box-1", crb3b_capacity=1)

    async def as_bob(text: str | None = None, task: str = "") -> str:
        async with Dataverse(double.url, StaticToken(double.token)) as client:
            tasks = Tasks(client, user=BOB)
            return (await tasks.create("Make hello.") if text is None else await tasks.answer(task, text)).id

    with DataverseWorker(tmp_path / "one", double, asking.base_url, box="box-1") as worker:
        worker.start(until_idle=False)
        task = asyncio.run(as_bob())
        wait_until(lambda: status(double, task) == 6, 60, what=manager.read_text())
        asyncio.run(as_bob(ANSWER, task))
        # The texts come after the state.
        wait_until(lambda: double.tables[TASKS][task].get("cr_result"), 60, what=worker.text())
    done, mirror = double.tables[TASKS][task], double.tables[TASKS][mirror_id(task)]
    assert (done["cr_status"], done["cr_result"]) == (7, mirror["cr_result"])
    assert (mirror["crb3b_useremail"], mirror["crb3b_devbox"], done.get("crb3b_devbox")) == (ALICE, "box-1", None)
    # The worker of Alice never had the row of Bob in its hands.
    assert double.history.values(TASKS, task, "crb3b_devbox") == []


async def _only_ticket(worker: DataverseWorker) -> TicketStatus:
    deadline = clock.monotonic() + 10
    async with Database.open(worker.store) as database:
        while True:
            (ticket,) = await TicketDB(database).list_tickets()
            if ticket.status is not TicketStatus.RUNNING or clock.monotonic() > deadline:
                return ticket.status
            await asyncio.sleep(0.1)
