"""The tasks of ``examples/tasks``: submitted as their pages say, done by one worker process, each ends as it should."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.demo.tasks import ExampleTask, read_task
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import Ticket
from operator_core.scripted import ScriptedProcess
from operator_core.verify.copies import tree_digest
from tests.support import run_operator
from tests.support.processes import operator_environment

pytestmark = [
    pytest.mark.deep,
    pytest.mark.slow,
    pytest.mark.xdist_group("examples"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("require_bubblewrap"),
]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "tasks"
NAMES = ("fix-failing-test", "add-cli-flag", "data-script", "refactor-guarded", "impossible")
STUBBORN = "impossible, for a stubborn worker"


def content(folder: Path) -> str:
    """A digest of all files of a folder by name."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(f"{path.relative_to(folder)}\0{path.read_bytes().hex()}\n".encode())
    return digest.hexdigest()


def command_of(name: str, *more: str) -> str:
    """The command of a task's page, without waiting for the end."""
    (block,) = re.findall(r"```sh\n(.*?)```", (FOLDER / name / "README.md").read_text("utf-8"), re.DOTALL)
    assert block.count("--wait") == 1
    return str(block).replace("--wait", " ".join(("--json", *more)))


class Worked(NamedTuple):
    """What the one worker process has done; tickets and journals by the name of the task.

    Attributes:
        done: The worker's process.
        changed: Whether the material is not as it was.
    """

    database: Path
    tickets: dict[str, Ticket]
    journals: dict[str, list[Entry]]
    done: subprocess.CompletedProcess[str]
    changed: bool

    def entries(self, name: str, kind: EntryKind) -> list[Entry]:
        return [entry for entry in self.journals[name] if entry.entry_type == kind]

    def verdicts(self, name: str) -> list[str]:
        return [entry.body["kind"] for entry in self.entries(name, EntryKind.VERDICT)]

    def folder(self, name: str) -> Path:
        """Of the one attempt at a task."""
        key = self.tickets[name].violation_key.partition(":")[2][:8]
        (attempt,) = (self.database.parent / "Operator Sessions").glob(f"*_{key}/attempt-*")
        return attempt


async def what_is_stored(path: Path, numbers: dict[str, int]) -> tuple[dict[str, Ticket], dict[str, list[Entry]]]:
    async with Database.open(path) as database:
        audit, tickets, journals = AuditLogDB(database), {}, {}
        for name, number in numbers.items():
            tickets[name] = await TicketDB(database).get_ticket(number)
            (session,) = await audit.sessions(ticket_id=number)
            journals[name] = await audit.entries(session.session_id)
        return tickets, journals


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory, bubblewrap_answer: str) -> Iterator[Worked | None]:
    if bubblewrap_answer:
        yield None  # each test then says why
        return
    here = tmp_path_factory.mktemp("examples")
    database, before, numbers = here / "operator.db", content(FOLDER), {}
    with ScriptedProcess(f"{FOLDER / 'brain.py'}:examples") as server:
        env = {
            "HOME": str(here),
            "OPERATOR_DB": str(database),
            "OPERATOR_MODEL__ENGINE": "scripted",
            "OPERATOR_MODEL__BASE_URL": server.base_url,
        }
        orders = {name: command_of(name) for name in NAMES}
        orders[STUBBORN] = command_of("impossible", "--model scripted-stubborn")
        for name, command in orders.items():
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=ROOT,
                env=operator_environment(env),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            numbers[name] = json.loads(done.stdout)["id"]
        done = run_operator("worker", "run", "--until-idle", env=env, cwd=here, timeout=280)
    tickets, journals = asyncio.run(what_is_stored(database, numbers))
    yield Worked(database, tickets, journals, done, content(FOLDER) != before)


@pytest.fixture(params=NAMES)
def task(request: pytest.FixtureRequest) -> ExampleTask:
    return read_task(FOLDER / request.param)


def test_each_ends_as_its_page_says(worked: Worked, task: ExampleTask) -> None:
    ticket = worked.tickets[task.name]
    said = worked.done.stdout + worked.done.stderr
    assert (ticket.status.value, ticket.reason) == (task.status, task.reason), said
    assert tuple(worked.verdicts(task.name)) == task.verdicts
    assert f"**{task.status}" in (task.folder / "README.md").read_text("utf-8"), "its page says something else"
    spec = TaskSpec.model_validate(ticket.check_spec)
    assert spec.prompt.strip() == task.prompt
    assert tuple(check.command for check in spec.checks) == task.checks


def test_the_report_names_check_and_content(worked: Worked, task: ExampleTask) -> None:
    folder = worked.folder(task.name)
    report = (folder / "REPORT.md").read_text("utf-8")
    assert all(command in report for command in task.checks)
    if task.status == "resolved":
        (digest,) = re.findall(r"Content: `([0-9a-f]{64})`", report)
        assert digest == (worked.entries(task.name, EntryKind.VERDICT)[-1].meta or {})["digest"]
        assert f"Before the work '{task.checks[0]}': failed" in report, "it was seen red"
        assert (folder / "SUMMARY.md").read_text("utf-8").startswith(f"# Task Summary: {task.name}")


async def test_what_was_verified_was_delivered_and_can_be_looked_at_again(worked: Worked, task: ExampleTask) -> None:
    workspace = worked.folder(task.name) / "workspace"
    delivered = [entry.body for entry in worked.entries(task.name, EntryKind.DELIVERED)]
    if task.status != "resolved":
        assert not delivered
        return
    (result,) = delivered
    assert await tree_digest(workspace) == result["digest"]

    def run(command: str) -> subprocess.CompletedProcess[str]:
        env = operator_environment({"PYTHONDONTWRITEBYTECODE": "1"})
        return subprocess.run(
            ["bash", "-c", command], cwd=workspace, env=env, capture_output=True, text=True, timeout=60, check=False
        )

    assert run("git status --porcelain").stdout == ""
    assert run("git rev-parse HEAD").stdout.strip() == result["commit"]
    report = (workspace.parent / "REPORT.md").read_text("utf-8")
    again = re.findall(r"^ {6}(cd .*)$", report, re.MULTILINE)
    assert len(again) == len(task.checks)
    for command in again:
        done = run(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def test_the_short_ways_are_refused_for_reasons_of_their_own(worked: Worked) -> None:
    """The edited test is put back; the special case passes the check, and only the verifier sees through it."""
    name = "fix-failing-test"
    verdicts = worked.entries(name, EntryKind.VERDICT)
    assert any("tests/test_split.py" in note for note in (verdicts[0].meta or {})["notes"]), verdicts[0].meta
    first, second, third = [{c["clause"]: c["state"] for c in verdict.body["clauses"]} for verdict in verdicts]
    assert first["checks"] == "failed"
    assert second == {"checks": "proved", "review": "failed"}
    assert third == {"checks": "proved", "review": "proved"}
    workspace = worked.folder(name) / "workspace"
    original = (FOLDER / name / "repo" / "tests" / "test_split.py").read_bytes()
    assert (workspace / "tests" / "test_split.py").read_bytes() == original
    assert "1000" not in (workspace / "bills" / "split.py").read_text("utf-8")


def test_the_impossible_one_asks_and_the_stubborn_worker_is_refuted_every_time(worked: Worked) -> None:
    shown = run_operator("tickets", "show", str(worked.tickets["impossible"].id), db=worked.database).stdout
    assert "half a cent" in shown
    ticket = worked.tickets[STUBBORN]
    assert (ticket.status.value, ticket.reason) == ("escalated", "iterations")
    assert worked.verdicts(STUBBORN) == ["refuted"] * 3
    assert not worked.entries(STUBBORN, EntryKind.DELIVERED)


def test_nothing_happens_to_the_material(worked: Worked) -> None:
    assert not worked.changed
    assert not list(FOLDER.glob("*/repo/.git"))


def test_the_worker_had_no_complaint_and_the_journal_is_intact(worked: Worked) -> None:
    assert (worked.done.returncode, worked.done.stderr) == (0, "")
    done = run_operator("audit", "verify", db=worked.database)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_one_with_pytest_in_one_command(tmp_path: Path, require_bubblewrap: None) -> None:
    """Nobody else works: the command that submits it works on it, and tells where its proof is."""
    task = read_task(FOLDER / "fix-failing-test")
    with ScriptedProcess(f"{FOLDER / 'brain.py'}:examples") as server:
        env = {"HOME": str(tmp_path), "OPERATOR_MODEL__ENGINE": "scripted", "OPERATOR_MODEL__BASE_URL": server.base_url}
        words = ("submit", task.prompt, "--repo", str(task.repo), "--check", "pytest -q", "--wait")
        done = run_operator(*words, db=tmp_path / "operator.db", env=env, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is resolved: verified" in done.stdout
    (report,) = (tmp_path / "Operator Sessions").glob("*/attempt-1/REPORT.md")
    assert str(report) in done.stdout
    assert "pytest -q: exit 0 on the content" in report.read_text("utf-8").replace("\\", "")
