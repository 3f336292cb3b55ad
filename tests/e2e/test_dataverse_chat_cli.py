"""``operator-dataverse chat`` as a person runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from operator_dataverse.double import Double
from tests.support.dataverse import double
from tests.support.processes import operator_environment
from tests.support.waiting import wait_until

__all__ = ["double"]

CHAT, USERS, ALICE = "cr_shraga_conversations", "crb3b_shragausers", "alice@example.com"


def words_of(*words: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "operator_dataverse", "chat", *words]


def environment(double: Double, folder: Path) -> dict[str, str]:
    settings = {"DATAVERSE_URL": double.url, "WEBHOOK_USER": ALICE, "DATAVERSE_TOKEN": double.token}
    return operator_environment({**settings, "OPERATOR_DB": str(folder / "chat.db")})


def run(double: Double, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words_of(*words),
        env=environment(double, folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def write(double: Double, text: str) -> str:
    return double.seed(
        CHAT,
        cr_name=text,
        cr_useremail=ALICE,
        cr_mcs_conversation_id="c1",
        cr_message=text,
        cr_direction="Inbound",
        cr_status="Unclaimed",
    )


@pytest.mark.parametrize("role", ["personal", "global"])
def test_a_manager_answers_until_it_is_told_to_leave(double: Double, tmp_path: Path, role: str) -> None:
    process = subprocess.Popen(
        words_of(role, "run"),
        env=environment(double, tmp_path),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        inbound = write(double, "help")
        wait_until(lambda: double.tables[CHAT][inbound]["cr_status"] == "Processed", 30.0, what="an answer")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert f"The {role} manager answers on {double.url}" in out
    assert "Only plain commands are answered: There is no API key" in out
    (answer,) = double.tables[CHAT].where(cr_in_reply_to=inbound)
    assert "cancel ID - cancel a task" in answer["cr_message"]
    assert ("setup - " in answer["cr_message"]) is (role == "global")
    states = [row["crb3b_managerstatus"] for row in double.tables[USERS].where()]
    assert states == (["Offline"] if role == "personal" else [])


def test_an_answer_by_hand(double: Double, tmp_path: Path) -> None:
    inbound = write(double, "hello")
    words = ("send", "--reply-to", inbound, "--message", "Hi.", "--followup")
    looked = json.loads(run(double, tmp_path, *words, "--json", "--dry-run").stdout)
    assert (looked["fresh"], looked["email"], looked["dry_run"]) == (True, ALICE, True)
    assert len(double.tables[CHAT]) == 1
    done = json.loads(run(double, tmp_path, *words, "--json").stdout)
    assert done["row_id"] == looked["row_id"]
    row = double.tables[CHAT][done["row_id"]]
    assert (row["cr_message"], row["cr_followup_expected"], row["cr_status"]) == ("Hi.", "true", "Unclaimed")
    assert run(double, tmp_path, *words).stdout.startswith("There is already the row")
    wrong = run(double, tmp_path, "send", "--reply-to", "x", "--message", "Hi.")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("Error: There is no message 'x'")


def test_the_relay_is_tried(double: Double, tmp_path: Path) -> None:
    done = run(double, tmp_path, "relay-test", "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["ok"] is True
    assert not double.tables[CHAT]
    double.store.drop_table(CHAT)
    failed = run(double, tmp_path, "relay-test")
    assert failed.returncode == 1
    assert "FAILED  write a message" in failed.stdout


def test_the_relay_is_tried_without_an_organisation(tmp_path: Path) -> None:
    done = subprocess.run(
        words_of("relay-test", "--double"),
        env=operator_environment(),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok    ") == 7
