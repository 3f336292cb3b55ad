"""Handing over a task and talking to its session, as a person does: `submit`, `reply`, `steer`, `cancel`."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.journal import Journal
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.scripted import ScriptedServer
from operator_core.scripted.__main__ import load_brain
from tests.support import processes_of, run_operator, wait_until
from tests.support.processes import operator_environment
from tests.support.store import column_of

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]stop[/bold red]\u202e\x9b1A\x7f../../x"
ELSEWHERE = "A worker that is running works on it."
RAW = ("\x1b", "\x9b", "\u202e", "\x07", "\x7f")
REPORT = "# Closure report: ticket #1\n\n**verified: it \\*really\\* works**\n"


def said(*words: str, db: str, code: int = 0) -> str:
    done = run_operator(*words, db=db)
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout


def refused(*words: str, db: str, code: int = 2, env: dict[str, str] | None = None) -> str:
    done = run_operator(*words, db=db, env=env)
    assert done.returncode == code, done
    assert done.stderr.startswith("Error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "operator.db")


Work = Callable[[WorkQueue, Claim, Journal], Awaitable[object]]


def as_worker(db: str, work: Work, *, lease_s: float = 60.0, name: str = "elsewhere") -> None:
    """Take the oldest ticket, do something with it, and leave."""

    async def run() -> None:
        async with Database.open(db) as database:
            queue, audit = WorkQueue(database), AuditLogDB(database)
            await queue.register("w", lease_s, name)
            (claim,) = await queue.claim("w", 1, name)
            session = claim.ticket.session_id or await audit.create_session(claim.ticket_id, claim=claim)
            await work(queue, claim, await audit.journal(session, claim))
            await queue.retire("w")

    asyncio.run(run())


async def resolve(queue: WorkQueue, claim: Claim, journal: Journal) -> None:
    await journal.append(
        Draft(EntryKind.BASELINE, "before", body={"folder": "/srv/Operator Sessions/x/attempt-1"}, phase="prepare"),
        Draft(EntryKind.REASONING, HOSTILE, HOSTILE, phase="worker_1"),
        Draft(EntryKind.REPORT, "it works", REPORT, body={"headline": "verified: it *really* works"}, phase="deliver"),
    )
    await queue.finish(
        claim,
        TicketStatus.RESOLVED,
        Reason.VERIFIED,
        diagnosis="done",
        session_id=journal.session_id,
        session_status="completed",
    )


async def ask(queue: WorkQueue, claim: Claim, journal: Journal) -> None:
    meta = {"outcome": "blocked"}
    await journal.append(Draft(EntryKind.OUTCOME, "blocked", f"Which port? {HOSTILE}", phase="worker_1", meta=meta))
    assert await queue.park(claim, claim.wake)


async def living(db: str, worker: str = "other") -> None:
    async with Database.open(db) as database:
        await WorkQueue(database).register(worker, 600, "elsewhere")


class Submitting(NamedTuple):
    """A command that waits, and the files with what it says."""

    child: subprocess.Popen[bytes]
    output: Path
    errors: Path

    def ended(self) -> tuple[int, str, str]:
        code = self.child.wait(timeout=60)
        return code, self.output.read_text(), self.errors.read_text()


@contextmanager
def submitting(db: str, *words: str, env: dict[str, str] | None = None, until: str) -> Iterator[Submitting]:
    """A command that waits; it has said ``until``, and its ticket is there."""
    with (
        tempfile.TemporaryDirectory() as folder,
        (output := Path(folder, "out")).open("wb") as out,
        (errors := Path(folder, "err")).open("wb") as err,
        subprocess.Popen(
            [sys.executable, "-m", "operator_core", "--db", db, "submit", *words],
            env=operator_environment({"SUBMIT_TEST": db, **(env or {})}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        ) as child,
    ):
        try:
            wait_until(lambda: tickets(db) == [1] and until in output.read_text(), timeout=30, every=0.1)
            yield Submitting(child, output, errors)
        finally:
            child.kill()
    assert processes_of(db) == []


def tickets(db: str) -> list[int]:
    async def look() -> list[int]:
        async with Database.open(db) as database:
            return [t.id or 0 for t in await TicketDB(database).list_tickets()]

    return asyncio.run(look())


# ---- submitting


def test_a_task_as_people_see_it(db: str, tmp_path: Path) -> None:
    (tmp_path / "check.sh").write_text("exit 1\n")
    (tmp_path / "data").mkdir()
    text = said(
        "submit", f"Count the lines.\n{HOSTILE}", "--repo", str(tmp_path / "data"), "--check", "bash check.sh",
        "--check-file", f"{tmp_path}/check.sh=check.sh", "--budget", "1.5", "--on", "alpha", "--priority", "2", db=db
    )  # fmt: skip
    assert text.splitlines() == [
        "Ticket #1 is open.",
        f"Look at it with `operator --db {db} tickets show 1`.",
        "No worker called alpha is running; the ticket waits for it.",
    ]
    listed = said("tickets", "list", "--kind", "task", db=db)
    assert listed.splitlines()[1].split()[:7] == ["1", "open", "(on", "alpha)", "task", "Count", "the"]
    assert f"in {tmp_path}/data · bash check.sh" in listed
    shown = said("tickets", "show", "1", db=db)
    for line in (
        "begins with folder",
        "checks bash check.sh",
        "budget 1.5 USD",
        "pinned to alpha",
        "check files check.sh (",
    ):
        assert line in " ".join(shown.split())
    assert not [raw for raw in RAW if raw in listed + shown]
    assert "[bold red]" in shown
    data = json.loads(said("tickets", "show", "1", "--json", db=db))
    assert (data["kind"], data["closing"], data["priority"]) == ("task", None, 2)
    assert data["check_spec"]["checks"] == [{"command": "bash check.sh", "timeout_s": 600.0}]
    assert json.loads(said("tickets", "list", "--json", db=db))[0]["pinned_to"] == "alpha"


def test_the_prompt_from_standard_input(db: str) -> None:
    def submit(data: bytes) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "operator_core", "--db", db, "submit", "-", "--json"]
        return subprocess.run(
            command, input=data, env=operator_environment(), capture_output=True, timeout=60, check=False
        )

    done = submit("Zähle\ndie Zeilen.".encode())
    ticket = json.loads(done.stdout)
    assert (done.returncode, ticket["message"], ticket["invariant_name"]) == (0, "Zähle\ndie Zeilen.", "Zähle")
    for data in (b"", b"  \n", b"\xff\xfe", b"x" * 100_001, b"x" * 500_000):
        done = submit(data)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done
    assert tickets(db) == [1]


def test_a_hostile_name(db: str) -> None:
    said("submit", "Do it.", "--name", f"{HOSTILE}\n{'x' * 300}", db=db)
    listed = said("tickets", "list", db=db)
    assert not [raw for raw in RAW if raw in listed]
    (ticket,) = json.loads(said("tickets", "list", "--json", db=db))
    assert ticket["invariant_name"].isprintable()


@pytest.mark.parametrize(
    ("words", "said_word"),
    [
        ((), "PROMPT"),
        (("x", "--repo", "/nonexistent"), "no folder"),
        (("x", "--ref", "main"), "repository"),
        (("x", "--check", "true"), "cannot fail"),
        (("x", "--check-file", "/nonexistent"), "check file"),
        (("x", "--allow-change", "/etc/passwd"), "relative"),
        (("x", "--engine", "gpt"), "--engine"),
        (("x", "--model", ""), "model"),
        (("x", "--budget", "nan"), "greater than 0"),
        (("x", "--budget", "much"), "--budget"),
        (("x", "--max-iterations", "11"), "1 to 10"),
        (("x", "--profile", "ouroboros"), "--profile"),
        (("x", "--network", "all"), "--network"),
        (("x", "--on", ""), "worker"),
        (("x", "--priority", "9999999999"), "priority"),
        (("x", "--follow", "--json"), "--follow"),
        (("x", "y"), "y"),
    ],
)
def test_wrong_options_are_one_sentence(db: str, words: tuple[str, ...], said_word: str) -> None:
    assert said_word in refused("submit", *words, db=db)
    assert not Path(db).exists() or tickets(db) == []


def test_a_warning_is_no_failure(db: str, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    for words in (
        ["init", "-q"],
        ["-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", "x", "--allow-empty"],
    ):
        subprocess.run(["git", *words], cwd=repo, check=True, env=operator_environment())
    (repo / "new").touch()
    done = run_operator("submit", "x", "--repo", str(repo), "--json", db=db)
    assert (done.returncode, json.loads(done.stdout)["id"]) == (0, 1)
    assert (
        done.stderr == f"Warning: 1 uncommitted change(s) in {repo} are not part of the task; commit what should be.\n"
    )


# ---- waiting


def test_wait_ends_when_another_process_cancels(store_url: str) -> None:
    asyncio.run(_prepared(store_url))
    with submitting(store_url, "Do it.", "--wait", until=ELSEWHERE) as running:
        assert said("cancel", "1", "--now", db=store_url) == "Ticket #1 is canceled.\n"
        code, output, errors = running.ended()
    assert (code, errors) == (1, "")
    assert output.splitlines()[-1] == "Ticket #1 is canceled: by_hand."


def test_whoever_waits_takes_over_when_the_last_worker_dies(db: str) -> None:
    asyncio.run(_prepared(db))
    with submitting(db, "Do it.", "--wait", until=ELSEWHERE) as running:
        asyncio.run(column_of(db, "UPDATE workers SET lease_until = 1"))
        code, output, errors = running.ended()
    assert "so this command works on it itself" in output
    assert (code, "ANTHROPIC_API_KEY" in errors, tickets(db)) == (2, True, [1])


async def _prepared(db: str) -> None:
    async with Database.open(db):
        pass
    await living(db)


def test_wait_tells_the_result_and_where_it_is(db: str) -> None:
    asyncio.run(_prepared(db))
    with submitting(db, "Do it.", "--check", "pytest -q", "--wait", until=ELSEWHERE) as running:
        as_worker(db, resolve)
        code, output, errors = running.ended()
    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        "Ticket #1 is open.",
        "A worker that is running works on it.",
        "Ticket #1 is resolved: verified.",
        "verified: it *really* works",
        "Session folder: /srv/Operator Sessions/x/attempt-1",
        f"Report: /srv/Operator Sessions/x/attempt-1/REPORT.md, and `operator --db {db} tickets show 1`",
    ]
    shown = said("tickets", "show", "1", db=db)
    assert shown.startswith("# Closure report: ticket #1\n\n**verified: it *really* works**\n"), (
        "it leads with the report"
    )
    assert "# Ticket #1: Do it." in shown
    data = json.loads(said("tickets", "show", "1", "--json", db=db))
    assert data["closing"]["markdown"] == REPORT
    assert data["closing"]["headline"] == "verified: it *really* works"


def test_follow_shows_every_line_once(db: str) -> None:
    asyncio.run(_prepared(db))
    with submitting(db, "Do it.", "--follow", until=ELSEWHERE) as running:
        as_worker(db, resolve)
        code, output, errors = running.ended()
    assert (code, errors) == (0, "")
    assert output.count("[Claude]") == 1
    assert [line for line in output.splitlines() if line.startswith("## ")] == [
        "## prepare",
        "## worker_1",
        "## deliver",
    ]
    assert not [raw for raw in RAW if raw in output]


def test_a_question_ends_the_wait_and_its_answer_reaches_the_same_session(db: str) -> None:
    asyncio.run(_prepared(db))
    with submitting(db, "Do it.", "--wait", "--json", until="") as running:
        as_worker(db, ask)
        code, output, errors = running.ended()
    assert (code, errors) == (3, "")
    waited = json.loads(output)
    assert (waited["status"], waited["closing"]["question"]) == ("waiting_for_input", f"Which port? {HOSTILE}")
    shown = said("tickets", "show", "1", db=db)
    assert "asks  " in shown
    assert "Which port? " in shown
    assert not [raw for raw in RAW if raw in shown]
    assert f'`operator --db {db} reply 1 "…"`' in refused("steer", "1", "hurry", db=db, code=1)
    assert said("reply", "1", "Port 80.", db=db) == "Ticket #1 is open again, and goes on with your answer.\n"
    assert f'`operator --db {db} steer 1 "…"`' in refused("reply", "1", "Again.", db=db, code=1)
    assert said("steer", "1", "And hurry.", db=db).startswith("It was passed on; ")
    heard: list[str] = []

    async def listen(queue: WorkQueue, claim: Claim, journal: Journal) -> None:
        assert journal.session_id == waited["session_id"]
        heard.extend(message.text for message in (await journal.drain())[0])
        await resolve(queue, claim, journal)

    as_worker(db, listen)
    assert heard == ["Port 80.", "And hurry."]
    assert "so nobody reads" in refused("reply", "1", "Thanks.", db=db, code=1)


def test_words_for_a_session_that_are_none(db: str) -> None:
    said("submit", "Do it.", db=db)
    for words, code in (
        ("reply 1 |", 2), ("steer 1 ", 2), ("reply 9 x", 1), ("steer one x", 2), ("reply 1", 2), ("steer 1 x", 1),
        ("cancel 9", 1), ("cancel", 2),
    ):  # fmt: skip
        refused(*words.replace("|", " \n").split(" ", 2), db=db, code=code)
    assert f"start one with `operator --db {db} worker run`" in said("submit", "Do it.", db=db)


def test_cancel_is_asked_of_a_running_session(db: str) -> None:
    said("submit", "Do it.", db=db)

    async def canceled(queue: WorkQueue, claim: Claim, journal: Journal) -> None:
        command = [sys.executable, "-m", "operator_core", "--db", db, "cancel", "1"]
        for words, wanted in (([], (True, False)), (["--now"], (True, True))):
            child = await asyncio.create_subprocess_exec(
                *command, *words, env=operator_environment(), stdout=asyncio.subprocess.PIPE
            )
            output, _ = await child.communicate()
            assert (child.returncode, b"Ticket #1 is " in output) == (0, True)
            assert (await queue.owned("w"))[1, claim.fence][:2] == wanted
        await resolve(queue, claim, journal)

    as_worker(db, canceled)
    assert json.loads(said("tickets", "list", "--json", db=db))[0]["status"] == "canceled"


def test_where_nobody_works_the_command_works_itself(db: str) -> None:
    """Without a key it cannot, says so in one sentence, and the ticket stays for somebody who can."""
    done = run_operator("submit", "Do it.", "--wait", db=db, env={"OPERATOR_SANDBOX__BACKEND": "none"})
    assert done.returncode == 2
    assert "so this command works on it itself" in done.stdout
    assert (done.stderr.count("\n"), "ANTHROPIC_API_KEY" in done.stderr) == (1, True)
    (ticket,) = json.loads(said("tickets", "list", "--json", db=db))
    assert (ticket["status"], ticket["session_id"]) == ("open", None)


@pytest.mark.parametrize("alone", [pytest.param(True, marks=pytest.mark.deep), False])
def test_ctrl_c_ends_the_wait_and_not_the_work(db: str, alone: bool) -> None:
    """Both here, where the work is given back in good order, and elsewhere, where it just goes on."""
    if not alone:
        asyncio.run(_prepared(db))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {
            "ANTHROPIC_API_KEY": "x",
            "OPERATOR_MODEL__BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "OPERATOR_SANDBOX__BACKEND": "none",
        }
        with submitting(db, "Do it.", "--wait", env=env, until="works on it") as running:
            if alone:
                silent.settimeout(30)
                silent.accept()[0].close()  # the work has begun
            running.child.send_signal(signal.SIGINT)
            code, output, errors = running.ended()
    assert (code, errors) == (130, "Interrupted.\n")
    assert f"Ticket #1 stays as it is; cancel it with `operator --db {db} cancel 1`." in output
    (ticket,) = json.loads(said("tickets", "list", "--json", db=db))
    assert ticket["status"] == "open"
    assert asyncio.run(column_of(db, "SELECT count(*) FROM workers")) == [0 if alone else 1]


def test_the_living_worker_must_have_the_right_name(db: str) -> None:
    asyncio.run(_prepared(db))
    with submitting(db, "Do it.", "--wait", "--on", "alpha", until="No worker called alpha is running") as running:
        said("cancel", "1", db=db)
        code, _, errors = running.ended()
    assert (code, errors) == (1, "")


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.usefixtures("require_bubblewrap")
def test_one_command_is_enough(tmp_path: Path) -> None:
    """No worker, a folder, a check: it is copied, worked on here, proved, and everything that was started is gone."""
    task = ROOT / "examples" / "tasks" / "fix-failing-test"
    shutil.copytree(task / "repo", tmp_path / "desk" / "repo")
    brain = load_brain(f"{ROOT}/examples/tasks/brain.py:examples")
    with ScriptedServer(brain).start_in_thread() as server:
        env = {
            "OPERATOR_MODEL__ENGINE": "scripted",
            "OPERATOR_MODEL__BASE_URL": server.base_url,
            "OPERATOR_MODEL__MODEL": "scripted-runbook",
            "OPERATOR_MODEL__SUMMARIES": "deterministic",
            "SUBMIT_TEST": str(tmp_path),
        }
        words = ("--repo", "repo", "--check", "python3 -m unittest -q", "--follow")
        prompt = (task / "PROMPT.md").read_text()
        store = tmp_path / "operator.db"
        done = run_operator("submit", prompt, *words, db=store, cwd=tmp_path / "desk", env=env, timeout=110)
    assert (done.returncode, done.stderr) == (0, ""), done
    phases = [line.removeprefix("## ") for line in done.stdout.splitlines() if line.startswith("## ")]
    assert phases[:3] == ["prepare", "worker_1", "verifier_1"]
    assert phases[-1] == "deliver"
    assert "\nTicket #1 is resolved: verified.\n" in done.stdout
    (folder,) = re.findall(r"^Session folder: (.*)$", done.stdout, re.M)
    assert Path(folder, "REPORT.md").is_file()
    assert f"Report: {folder}/REPORT.md" in done.stdout
    shown = run_operator("tickets", "show", "1", db=store).stdout
    assert shown.startswith("# Closure report: ticket #1")
    assert f"begins with     folder {tmp_path}/desk/repo" in shown
    assert processes_of(str(tmp_path)) == []
