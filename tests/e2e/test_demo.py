"""`operator demo`, played to its end and until Ctrl-C: what it says, what the store says, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operator_core.cli.output import plain
from tests.support import processes_of, run_operator, wait_until
from tests.support.processes import operator_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("demo"),
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("require_bubblewrap"),
]

SECONDS = 60.0
MATERIAL = Path(__file__).parents[2] / "examples" / "tasks" / "fix-failing-test" / "repo" / "bills" / "split.py"


class Demo(NamedTuple):
    done: subprocess.CompletedProcess[str]
    folder: Path
    database: str


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, bubblewrap_answer: str) -> Iterator[Demo | None]:
    """The one full run."""
    if bubblewrap_answer:
        yield None  # each test then says why
        return
    here = tmp_path_factory.mktemp("demo")
    done = run_operator("demo", cwd=here, env={"HOME": str(here)}, timeout=200)
    folders = list((here / ".operator").glob("operator-demo-*"))
    assert len(folders) == 1, done
    yield Demo(done, folders[0], str(folders[0] / "operator.db"))


def left_behind(folder: Path) -> list[int]:
    """Processes that have the folder in their arguments, their environment, or as their working directory."""
    found = set(processes_of(str(folder)))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.add(int(process.name))
        except OSError:
            continue
    return sorted(found - {os.getpid()})


def document(demo: Demo, *words: str) -> Any:
    done = run_operator(*words, "--json", db=demo.database)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_all_acts_end_as_they_should(demo: Demo) -> None:
    assert (demo.done.returncode, demo.done.stderr) == (0, "")
    third, second, first = document(demo, "tickets", "list")
    assert (first["status"], first["reason"], first["occurrence_count"] >= 1) == ("resolved", "verified", True)
    assert (second["status"], second["reason"]) == ("escalated", "refuted")
    assert (third["kind"], third["status"], third["reason"]) == ("task", "resolved", "verified")
    assert left_behind(demo.folder) == []


def test_the_verdicts_are_about_the_right_clauses(demo: Demo) -> None:
    for number, kind, failed in ((1, "verified", set()), (2, "refuted", {"durable", "no_collateral"})):
        (session,) = document(demo, "sessions", "list", "--ticket", str(number))
        journal = document(demo, "sessions", "show", session["session_id"])["journal"]
        (verdict,) = [entry["body"] for entry in journal if entry["entry_type"] == "verdict"]
        assert verdict["kind"] == kind
        assert {c["clause"] for c in verdict["clauses"] if c["state"] == "failed"} == failed
        (baseline,) = [entry["body"] for entry in journal if entry["entry_type"] == "baseline"]
        assert baseline["observation"]["light"] == "red", "it was really broken"
        (sandbox,) = [entry["content"] for entry in journal if entry["entry_type"] == "sandbox_report"]
        assert sandbox.startswith("bubblewrap")


def test_the_task_is_refused_twice_before_it_is_verified(demo: Demo) -> None:
    (session,) = document(demo, "sessions", "list", "--ticket", "3")
    journal = document(demo, "sessions", "show", session["session_id"])["journal"]
    verdicts = [entry["body"] for entry in journal if entry["entry_type"] == "verdict"]
    assert [verdict["kind"] for verdict in verdicts] == ["refuted", "refuted", "verified"]
    failed = [{c["clause"] for c in verdict["clauses"] if c["state"] == "failed"} for verdict in verdicts]
    assert failed == [{"checks"}, {"review"}, set()]
    assert "Attempt 1: the worker said that it was done, and was refused: check 1" in demo.done.stdout
    assert "Attempt 2: the worker said that it was done, and was refused: the verifier" in demo.done.stdout
    assert "tests/test_split.py was changed by the work, and restored for the check" in demo.done.stdout
    assert "Attempt 3" not in demo.done.stdout
    (report,) = (demo.folder / "Operator Sessions").glob("*/attempt-1/REPORT.md")
    assert "python3 -m unittest -q" in report.read_text()
    assert (demo.folder / "act-3" / "repo" / "bills" / "split.py").read_bytes() == MATERIAL.read_bytes(), "a copy"


def test_its_task_is_judged_again_without_a_model(demo: Demo) -> None:
    shown = [line for line in demo.done.stdout.splitlines() if line.startswith("- All of it, from what was recorded")]
    assert len(shown) == 1
    assert "(`--checks-only` needs no model)" in shown[0]
    refused = run_operator("verify", "3", db=demo.database)
    assert refused.returncode == 2
    assert f"`operator --db {demo.database} verify 3 --checks-only`" in refused.stderr
    again = run_operator("verify", "3", "--checks-only", db=demo.database)
    assert "checks: proved" in again.stdout
    assert "review: not_proved: no verifier agent was asked to look" in again.stdout
    assert "the worker says" not in again.stdout


def test_it_says_who_worked_and_shows_the_proof(demo: Demo) -> None:
    text = demo.done.stdout
    assert "Engine: scripted. There is no ANTHROPIC_API_KEY" in text
    assert "Engine: scripted, whatever key there is" in text
    assert text.count("# Closure report: ticket #") == 3
    for part in (
        "durable: FAILED",
        "no collateral: FAILED",
        "0 customers",
        "The journal is intact: 3 session(s)",
        "As it should be",
    ):
        assert part.lower() in text.lower()
    assert str(demo.folder) in text
    assert "\x1b" not in text
    assert not set(text) & set("─│┃━┏╭")


def test_it_takes_less_than_a_minute(demo: Demo) -> None:
    line = next(line for line in demo.done.stdout.splitlines() if line.startswith("That took "))
    assert float(line.split()[2]) < SECONDS


def test_what_remains_can_be_inspected(demo: Demo) -> None:
    assert document(demo, "audit", "verify")["ok"] is True
    # Others of these tests judge again, each in a session of its own.
    sessions = len(document(demo, "sessions", "list"))
    assert f"The journal is intact: {sessions} session(s)" in run_operator("audit", "verify", db=demo.database).stdout
    (session,) = document(demo, "sessions", "list", "--ticket", "1")
    shown = run_operator("sessions", "show", session["session_id"], db=demo.database).stdout
    for label in ("[Scripted]", "[Tool Call: shell]", "[Result (exit 0)]", "[Verify] restored: proved"):
        assert label in shown
    report = run_operator("audit", "export", session["session_id"], "-f", "report", db=demo.database).stdout
    assert report.startswith("# Closure report: ticket #1")
    printed = demo.done.stdout.replace(
        f"`operator --db {os.path.relpath(demo.database, demo.folder.parents[1])} ", "`operator "
    )
    assert plain(report).strip() in printed, "the stored report is the one that was printed"
    assert json.loads((demo.folder / "act-1" / "workspace" / "config.json").read_text())["counters"]["expire"] is True


def test_the_journal_says_what_happened_with_real_paths(demo: Demo) -> None:
    """The working directory is in `PWD`, which is no password: it must not be masked everywhere."""
    assert "[REDACTED]" not in run_operator("audit", "export", _first(demo), "-f", "jsonl", db=demo.database).stdout


def _first(demo: Demo) -> str:
    session: str = document(demo, "sessions", "list", "--ticket", "1")[0]["session_id"]
    return session


def test_a_second_demo_does_not_touch_the_database_of_another(demo: Demo, tmp_path: Path) -> None:
    done = run_operator("demo", db=demo.database, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "holds tickets already" in done.stderr
    assert len(document(demo, "tickets", "list")) == 3


@pytest.mark.deep
@pytest.mark.parametrize(("number", "act"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 3)])
def test_whoever_ends_it_leaves_nothing_running(tmp_path: Path, number: signal.Signals, act: int) -> None:
    command = [sys.executable, "-m", "operator_core", "demo", "--act", str(act), "--folder", str(tmp_path / "stage")]
    output = tmp_path / "output"
    with output.open("w") as file:
        child = subprocess.Popen(
            command, cwd=tmp_path, env=operator_environment(), stdout=file, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: "[Tool Call: shell]" in output.read_text(), timeout=90)
        # Beside the demo itself: the service in the first act, nothing between two commands in the third.
        assert len(left_behind(tmp_path)) > (act == 1), "the helper sees what runs"
        child.send_signal(number)
        assert child.wait(30) == 128 + number
    finally:
        child.kill()
        child.wait()
    wait_until(lambda: not left_behind(tmp_path), timeout=5, what="the end of everything that was started")
    assert "Traceback" not in output.read_text()
    database = tmp_path / "stage" / "operator.db"
    assert run_operator("audit", "verify", db=database).returncode == 0
    (ticket,) = json.loads(run_operator("tickets", "list", "--json", db=database).stdout)
    assert ticket["status"] in ("open", "resolved"), "the ticket was given back, not lost"


def test_it_reports_a_refused_key_and_leaves_nothing(tmp_path: Path) -> None:
    """With a key the first act talks to the real service, or whatever stands at its address."""
    from operator_core.scripted import ScriptBrain, ScriptedServer

    with ScriptedServer(ScriptBrain([]), api_key="the-right-key").start_in_thread() as server:
        env = {"ANTHROPIC_API_KEY": "wrong-key-wrong-key", "ANTHROPIC_BASE_URL": server.base_url}
        done = run_operator("demo", "--act", "1", cwd=tmp_path, env=env, timeout=100)
    assert done.returncode == 1
    assert "a real model" in done.stdout
    assert "refused the key" in done.stderr
    assert (done.stderr.count("\n"), "wrong-key" in done.stderr + done.stdout) == (1, False)
    wait_until(lambda: not left_behind(tmp_path), timeout=5)


@pytest.mark.deep
@pytest.mark.parametrize("act", [1, 3])
def test_with_a_key_the_act_works_with_the_model_at_that_address(tmp_path: Path, act: int) -> None:
    """The demo's own brains stand in for the service behind the address; the demo does not know that."""
    from operator_core.demo.brains import runbook
    from operator_core.demo.task_brain import demo_tasks
    from operator_core.scripted import ScriptedServer

    brain = runbook() if act == 1 else demo_tasks()
    with ScriptedServer(brain, api_key="the-right-key").start_in_thread() as server:
        env = {"ANTHROPIC_API_KEY": "the-right-key", "ANTHROPIC_BASE_URL": server.base_url}
        done = run_operator("demo", "--act", str(act), "--json", cwd=tmp_path, env=env, timeout=150)
        assert server.model_calls("claude-"), "it was asked"
    played = json.loads(done.stdout)
    assert (done.returncode, played["ok"], played["audit"]["ok"]) == (0, True, True), done.stderr
    (ended,) = played["acts"]
    assert (ended["number"], ended["engine"]) == (act, "anthropic")
    assert (ended["status"], ended["reason"]) == ("resolved", "verified")
    assert ended["verdicts"] == (["verified"] if act == 1 else ["refuted", "refuted", "verified"])
