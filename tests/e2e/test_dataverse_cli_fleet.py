"""``operator-dataverse tasks | users | fleet | devbox`` as a person runs them, against an organisation on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operator_dataverse.cli import main
from operator_dataverse.double import Double
from operator_dataverse.double.faults import Fault
from tests.support.dataverse import double
from tests.support.processes import operator_environment

__all__ = ["double"]

TASKS, MESSAGES, USERS, CHATS = "cr_shraga_tasks", "cr_shragamessages", "crb3b_shragausers", "cr_shraga_conversations"
ALICE = "alice@example.com"


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def environment(double: Double) -> dict[str, str]:
    return {
        "DATAVERSE_URL": double.url,
        "DATAVERSE_TOKEN": double.token,
        "DEVCENTER_TOKEN": double.token,
        "WEBHOOK_USER": ALICE,
        "OPERATOR_DATAVERSE__RETRY_S": "5",
        "OPERATOR_DATAVERSE__DEVCENTER_URL": double.devcenter_url,
        "OPERATOR_DATAVERSE__DEVCENTER_PROJECT": "example",
        "OPERATOR_DATAVERSE__DEVCENTER_POOL": "example-pool",
    }


@pytest.fixture
def run(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    """Runs one command in this process; the service is elsewhere, over HTTP."""
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return call


def test_a_task_from_its_making_to_its_end(run: Run, double: Double) -> None:
    made = run("tasks", "create", "Fix O'Brien's <login>", "--box", "box-1", "--json").json
    row = double.tables[TASKS][made["id"]]
    assert (row["crb3b_useremail"], row["cr_status"], row["crb3b_devbox"]) == (ALICE, 1, "box-1")
    listed = run("tasks", "list")
    assert "Fix O'Brien's <login>" in listed.out
    assert made["id"][:8] in listed.out
    assert run("tasks", "list", "--state", "failed", "--json").json == []
    canceled = run("tasks", "cancel", made["id"][:8], "--json").json
    assert (canceled["status"], canceled["state"], canceled["status_message"]) == (
        9,
        "canceled",
        f"Canceled by {ALICE}",
    )
    assert run("tasks", "reopen", made["id"]).code == 0
    shown = run("tasks", "show", made["id"])
    assert "pending" in shown.out
    assert double.tables[TASKS][made["id"]]["cr_status"] == 1


def test_an_answer_can_be_given_once(run: Run, double: Double) -> None:
    task = double.seed(TASKS, cr_name="Try", cr_status=6, crb3b_useremail=ALICE)
    assert run("tasks", "answer", task, "Blue", "--key", "1").code == 0
    again = run("tasks", "answer", task, "Green")
    assert again.code == 1
    assert "waits for no answer" in again.err
    assert "Traceback" not in again.err
    assert [message["cr_content"] for message in double.tables[MESSAGES].where()] == ["Blue"]


def test_others_are_not_touched_with_a_user(run: Run, double: Double) -> None:
    task = double.seed(TASKS, cr_name="Try", cr_status=6, crb3b_useremail="bob@example.com")
    for words in (("show", task), ("cancel", task), ("answer", task, "x"), ("reopen", task)):
        refused = run("tasks", *words, "--user", ALICE)
        assert refused.code == 1
        assert "There is no task" in refused.err
    assert double.tables[TASKS][task]["cr_status"] == 6


@pytest.mark.parametrize(
    "words",
    [
        ("tasks", "create", "x"),
        ("tasks", "cancel", "TASK"),
        ("tasks", "answer", "TASK", "x"),
        ("tasks", "reopen", "TASK"),
        ("users", "set", ALICE, "devbox_status=Failed"),
        ("fleet", "run"),
        ("cleanup",),
        ("devbox", "provision"),
        ("devbox", "customize", "my-box", "--tools"),
        ("devbox", "delete", "my-box"),
    ],
)
def test_a_dry_run_changes_nothing(run: Run, double: Double, words: tuple[str, ...]) -> None:
    old = "2026-01-01T00:00:00Z"
    task = double.seed(TASKS, cr_name="Try", cr_status=5, crb3b_heartbeat=old, modifiedon=old, createdon=old)
    double.seed(CHATS, cr_name="x", cr_direction="Outbound", cr_status="Unclaimed", createdon=old)
    said = run(*(task if word == "TASK" else word for word in words), "--dry-run", "--json")
    assert said.code == 0
    assert said.json
    assert not double.history.effects()
    assert not double.devcenter.boxes


def test_what_is_known_of_a_person_and_the_exit_codes(run: Run, double: Double) -> None:
    unknown = run("users", "show", ALICE, "--json")
    assert (unknown.code, unknown.json) == (1, {"found": False, "email": ALICE})
    written = run("users", "set", ALICE, "devbox_name=box-1", "devbox_status=Succeeded", "labels=gpu,big", "--json")
    assert (written.code, written.json["labels"]) == (0, ["gpu", "big"])
    found = run("users", "show", ALICE, "--json")
    assert found.code == 0
    derived = ("provisioning_started", "provisioning_complete", "auth_complete")
    assert [found.json[name] for name in derived] == [True, True, False]
    assert run("users", "set", ALICE, "devbox_name=").code == 0
    assert run("users", "show", ALICE, "--json").json["devbox_name"] is None
    assert run("users", "set", ALICE, "connection_url=https://example.com").code == 1
    assert run("users", "set", ALICE, "nonsense").code == 2
    double.faults.add(Fault("forbidden"))
    failed = run("users", "show", ALICE, "--json")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("Error: ")


def test_the_fleet_at_a_glance_and_a_round(run: Run, double: Double) -> None:
    old = "2026-01-01T00:00:00Z"
    double.seed(USERS, crb3b_useremail=ALICE, crb3b_devboxname="box-1", crb3b_workerseen=old)
    dead = double.seed(
        TASKS, cr_name="Try", cr_status=5, crb3b_devbox="box-1", crb3b_heartbeat=old, modifiedon=old, createdon=old
    )
    reply = double.seed(CHATS, cr_name="x", cr_direction="Outbound", cr_status="Unclaimed", createdon=old)
    status = run("fleet", "status")
    assert "gone" in status.out
    assert "expired" in status.out
    assert not double.history.effects()
    done = run("fleet", "run", "--once", "--json").json
    assert [(one["task"], one["taken"]) for one in done["judged"]] == [(dead, True)]
    assert done["expired_replies"] == [reply]
    assert double.tables[TASKS][dead]["cr_status"] == 1
    assert double.tables[CHATS][reply]["cr_status"] == "Expired"


def test_replies_are_cleaned_up_by_age_and_person(run: Run, double: Double) -> None:
    old = "2026-01-01T00:00:00Z"
    values = {"cr_name": "x", "cr_direction": "Outbound", "cr_status": "Unclaimed", "createdon": old}
    hers = double.seed(CHATS, cr_useremail=ALICE, **values)
    his = double.seed(CHATS, cr_useremail="o'brien@example.com", **values)
    done = run("cleanup", "--user-email", "o'brien@example.com", "--max-age-minutes", "10", "--json").json
    assert done == {"dry_run": False, "stale": [his], "expired": [his]}
    assert double.tables[CHATS][hers]["cr_status"] == "Unclaimed"


def test_a_dev_box_from_nothing_to_nothing(run: Run, double: Double) -> None:
    made = run("devbox", "provision", "--wait", "--poll", "0.1", "--json").json
    assert (made["name"], made["provisioning_state"], made["existed"]) == ("shraga-box-01", "Succeeded", False)
    assert made["connection_url"].startswith("https://")
    assert run("devbox", "list", "--json").json["count"] == 1
    assert set(run("devbox", "status", "shraga-box-01", "--json").json) == {
        "name",
        "provisioning_state",
        "status",
        "connection_url",
        "error",
    }
    group = run("devbox", "customize", "shraga-box-01", "--tools", "--wait", "--poll", "0.1", "--json")
    assert (group.code, group.json["status"]) == (0, "Succeeded")
    assert "https://" in run("devbox", "connect", "shraga-box-01").out
    unsure = run("devbox", "delete", "shraga-box-01")
    assert unsure.code == 2
    assert "--yes" in unsure.err
    removed = run("devbox", "delete", "shraga-box-01", "--yes", "--json").json
    assert run("devbox", "wait", removed["operation"], "--poll", "0.1").code == 0
    assert run("devbox", "list", "--json").json == {"devboxes": [], "count": 0}
    assert run("devbox", "status", "shraga-box-01").code == 1


def test_tasks_that_fail_on_a_box_are_an_exit_code(run: Run, double: Double) -> None:
    run("devbox", "provision", "my-box", "--wait", "--poll", "0.1")
    double.devcenter.fail_next()
    assert run("devbox", "customize", "my-box", "--tools", "--wait", "--poll", "0.1").code == 1
    assert run("devbox", "customize", "my-box").code == 2
    assert run("devbox", "customize", "my-box", "--tools", "--deploy", "https://example.com/x.zip").code == 2


@pytest.mark.parametrize(
    "words", [("tasks", "list"), ("users", "list"), ("fleet", "status"), ("fleet", "run"), ("devbox", "list")]
)
def test_nothing_runs_unconfigured(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], double: Double
) -> None:
    monkeypatch.delenv("DATAVERSE_URL")
    monkeypatch.delenv("OPERATOR_DATAVERSE__DEVCENTER_URL")
    refused = run(*words)
    assert refused.code == 2
    assert "url` (or DATAVERSE_URL" in refused.err or "devcenter_url" in refused.err
    assert len(double.history) == 0


@pytest.mark.parametrize("room", ["tasks", "users", "fleet", "devbox"])
def test_help(run: Run, room: str) -> None:
    helped = run(room, "--help")
    assert helped.code == 0
    words = [line.split()[0] for line in helped.out.partition("Commands:")[2].splitlines() if line.startswith("  ")]
    assert words
    for word in {word for word in words if word.isalpha()}:
        told = run(room, word, "--help")
        assert told.code == 0, word
        assert "--json" in told.out


def test_the_manager_ends_when_it_is_told_to(environment: dict[str, str], double: Double, tmp_path: Path) -> None:
    old = "2026-01-01T00:00:00Z"
    dead = double.seed(TASKS, cr_name="Try", cr_status=5, crb3b_heartbeat=old, modifiedon=old, createdon=old)
    with subprocess.Popen(
        [sys.executable, "-m", "operator_dataverse", "fleet", "run"],
        env=operator_environment(environment | {"OPERATOR_DATAVERSE__POLL_S": "0.1"}),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while double.tables[TASKS][dead]["cr_status"] != 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(process.pid, signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    assert "taken back" in out
