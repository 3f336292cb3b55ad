"""A worker is killed in every phase of a task from Dataverse; the next one ends it: claimed once, done once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.links import Links
from operator_core.db.tickets import TicketDB
from operator_core.model.ticket import Ticket, TicketStatus
from operator_core.scripted import ScriptedProcess
from operator_dataverse.double import Double
from tests.support.dataverse import double, plain_double
from tests.support.dataverse_brain import ANSWER
from tests.support.dataverse_worker import ALICE, DataverseWorker
from tests.support.waiting import wait_until

__all__ = ["double", "plain_double"]

TASKS, MESSAGES = "cr_shraga_tasks", "cr_shragamessages"
BRAINS = Path(__file__).parents[1] / "support"
PHASES = [
    "intake.claimed",
    "task.worked",
    "intake.linked",
    "intake.submitted",
    "session.created",
    "session.reported",
    "projection.put",
    "delivery.patched",
]
ANSWERING = ["intake.answer_claimed", "intake.answering", "intake.answered"]
AGAIN = ["intake.claimed", "intake.linked", "intake.reopened"]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProcess]:
    with ScriptedProcess(f"{BRAINS / 'task_brain.py'}:hello") as server:
        yield server


@pytest.fixture(scope="module")
def asking() -> Iterator[ScriptedProcess]:
    with ScriptedProcess(f"{BRAINS / 'dataverse_brain.py'}:asks") as server:
        yield server


def seed(server: Double, **values: Any) -> str:
    given = {"cr_name": "Say hello", "cr_prompt": "Make hello.", "cr_status": 1, "crb3b_useremail": ALICE}
    return server.seed(TASKS, **(given | values))


def end(worker: DataverseWorker) -> None:
    """Let workers come until one has nothing left to do."""
    for _ in range(5):
        if worker.finish() == 0:
            return
    raise AssertionError(f"worker after worker fails:\n{worker.text()[-5000:]}")


def end_row(server: Double, worker: DataverseWorker, row_id: str, code: int) -> None:
    """The same, where a claim that was begun has to be left alone for a moment."""
    for _ in range(20):
        end(worker)
        if server.tables[TASKS][row_id]["cr_status"] == code:
            return
    raise AssertionError(f"the row is {server.tables[TASKS][row_id]}:\n{worker.text()[-5000:]}")


def the_ticket(worker: DataverseWorker) -> Ticket:
    """The only one; its journal is whole."""

    async def look() -> Ticket:
        async with Database.open(worker.store) as database:
            (ticket,) = await TicketDB(database).list_tickets()
            report = await verify(database)
            assert report.ok, report.problem
            assert len(await AuditLogDB(database).sessions(ticket_id=ticket.id)) == ticket.reopen_count + 1
            return ticket

    return asyncio.run(look())


def said(server: Double, row_id: str, beginning: str) -> int:
    """How many messages about the row begin so."""
    rows = server.tables[MESSAGES].where(crb3b_taskid=row_id)
    return sum(str(row["cr_name"]).startswith(beginning) for row in rows)


@pytest.mark.deep
@pytest.mark.timeout(300)  # the next one carries on with a letter only when its lease is over
@pytest.mark.parametrize("place", PHASES)
def test_a_worker_that_dies_in_a_task_leaves_it_to_the_next(
    double: Double, model: ScriptedProcess, tmp_path: Path, place: str
) -> None:
    row_id = seed(double)
    with DataverseWorker(tmp_path / "box", double, model.base_url, worker={"lease_s": 2.0}) as worker:
        assert worker.finish(crash_at=place) == -signal.SIGKILL, worker.text()
        assert worker.crashes.read_text().split() == [place]
        end_row(double, worker, row_id, 7)
        ticket = the_ticket(worker)
    assert ticket.status is TicketStatus.RESOLVED
    assert double.history.values(TASKS, row_id, "cr_status") == [5, 7]
    assert double.tables[TASKS][row_id]["cr_result"]
    assert [said(double, row_id, words) for words in ("Task started", "Task completed")] == [1, 1]


def test_without_a_column_for_the_owner_a_claim_is_adopted_too(
    plain_double: Double, model: ScriptedProcess, tmp_path: Path
) -> None:
    row_id = seed(plain_double)
    with DataverseWorker(tmp_path / "box", plain_double, model.base_url) as worker:
        assert worker.finish(crash_at="intake.claimed") == -signal.SIGKILL
        end_row(plain_double, worker, row_id, 7)
        assert the_ticket(worker).status is TicketStatus.RESOLVED
    assert plain_double.history.values(TASKS, row_id, "cr_status") == [5, 7]


def test_a_claim_that_another_box_won_meanwhile_is_released(
    double: Double, model: ScriptedProcess, tmp_path: Path
) -> None:
    row_id = seed(double)
    with DataverseWorker(tmp_path / "box", double, model.base_url) as worker:
        assert worker.finish(crash_at="intake.linked") == -signal.SIGKILL
        double.change(TASKS, row_id, cr_status=5, crb3b_devbox="box-2", crb3b_leaseowner="box-2/1")

        def links() -> int:
            async def count() -> int:
                async with Database.open(worker.store) as database:
                    return len(await Links(database).list("dataverse"))

            end(worker)
            return asyncio.run(count())

        wait_until(lambda: links() == 0, 30)
    assert double.tables[TASKS][row_id]["crb3b_leaseowner"] == "box-2/1"
    assert double.history.values(TASKS, row_id, "cr_status") == []


def test_a_refusal_survives_a_crash(double: Double, model: ScriptedProcess, tmp_path: Path) -> None:
    row_id = seed(double, cr_prompt=" ")
    with DataverseWorker(tmp_path / "box", double, model.base_url) as worker:
        assert worker.finish(crash_at="intake.refused") == -signal.SIGKILL
        end(worker)
    assert double.history.values(TASKS, row_id, "cr_status") == [5, 8]


@pytest.mark.parametrize("place", ANSWERING)
def test_an_answer_is_passed_on_once_whatever_dies(
    double: Double, asking: ScriptedProcess, tmp_path: Path, place: str
) -> None:
    row_id = seed(double)
    with DataverseWorker(tmp_path / "box", double, asking.base_url) as worker:
        end(worker)
        assert double.tables[TASKS][row_id]["cr_status"] == 6
        double.seed(MESSAGES, cr_name="a", cr_content=ANSWER, cr_from=ALICE, cr_to="box-1", crb3b_taskid=row_id)
        double.change(TASKS, row_id, cr_status=1)
        assert worker.finish(crash_at=place) == -signal.SIGKILL, worker.text()
        end_row(double, worker, row_id, 7)
        ticket = the_ticket(worker)
        assert asyncio.run(_heard(worker, ticket)) == [ANSWER]
    assert double.history.values(TASKS, row_id, "cr_status") == [5, 6, 5, 7]


async def _heard(worker: DataverseWorker, ticket: Ticket) -> list[str]:
    async with Database.open(worker.store) as database:
        assert ticket.session_id is not None
        entries = await AuditLogDB(database).entries(ticket.session_id)
        return [entry.raw_content or "" for entry in entries if entry.entry_type == "note"]


@pytest.mark.parametrize("place", AGAIN)
def test_a_restart_happens_once_whatever_dies(
    double: Double, model: ScriptedProcess, tmp_path: Path, place: str
) -> None:
    row_id = seed(double)
    with DataverseWorker(tmp_path / "box", double, model.base_url) as worker:
        end(worker)
        assert double.tables[TASKS][row_id]["cr_status"] == 7
        double.change(TASKS, row_id, cr_status=1)
        assert worker.finish(crash_at=place) == -signal.SIGKILL, worker.text()
        end_row(double, worker, row_id, 7)
        ticket = the_ticket(worker)
    assert (ticket.status, ticket.reopen_count) == (TicketStatus.RESOLVED, 1)
    assert double.history.values(TASKS, row_id, "cr_status") == [5, 7, 5, 7]


@pytest.mark.deep
def test_what_was_running_goes_on_after_a_power_cut_and_is_canceled_from_outside(
    double: Double, asking: ScriptedProcess, tmp_path: Path
) -> None:
    row_id = seed(double)
    with DataverseWorker(tmp_path / "box", double, asking.base_url) as worker:
        process = worker.start(until_idle=False)
        wait_until(lambda: double.tables[TASKS][row_id]["cr_status"] == 6, 30, what=worker.text())
        worker.kill(process)
        double.change(TASKS, row_id, cr_status=9)
        end(worker)
        assert the_ticket(worker).status is TicketStatus.CANCELED
    assert double.tables[TASKS][row_id]["cr_status"] == 9
    assert double.history.values(TASKS, row_id, "cr_status")[:2] == [5, 6]
