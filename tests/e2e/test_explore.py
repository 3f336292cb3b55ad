"""``operator explore``: the demonstration, Ctrl-C, ``kill -9``, and people at another terminal."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import processes_of, run_operator, wait_until
from tests.support.processes import operator_environment

pytestmark = pytest.mark.usefixtures("require_bubblewrap")


@contextmanager
def started(folder: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """``operator explore`` as a process of its own, which is gone afterwards."""
    with (folder / "output").open("a") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "operator_core", "--db", str(folder / "operator.db"), "explore", *words],
            env=operator_environment({"PYTHONUNBUFFERED": "1", **(env or {})}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def operator(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_operator("explore", *words, db=folder / "operator.db", cwd=folder)


def status(folder: Path) -> dict[str, Any]:
    (row,) = json.loads(operator(folder, "status", "--json").stdout)
    assert isinstance(row, dict)
    return row


def notes(folder: Path) -> list[int]:
    path = folder / "ws" / "NOTES.md"
    return [int(n) for n in re.findall(r"^block (\d+)", path.read_text(), re.M)] if path.exists() else []


def journal(folder: Path, session: str) -> list[dict[str, Any]]:
    done = run_operator("sessions", "show", session, "--json", db=folder / "operator.db")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["journal"]
    assert isinstance(found, list)
    return found


@pytest.mark.deep
def test_the_demonstration_survives_three_restarts(tmp_path: Path) -> None:
    done = operator(tmp_path, "ws", "--engine", "scripted")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Scripted model server" in done.stdout
    assert "[Context] full: the agent begins context 4" in done.stdout
    assert "It is over: The context is full again after 3 restarts" in done.stdout
    assert notes(tmp_path) == list(range(1, len(notes(tmp_path)) + 1))
    row = status(tmp_path)
    assert (row["state"], row["context"]) == ("completed", 4)
    found = json.loads(operator(tmp_path, "discoveries", "--json").stdout)
    assert len(found) == row["discoveries"] >= 1
    assert "steps" in operator(tmp_path, "discoveries").stdout
    log = [json.loads(line) for line in operator(tmp_path, "log").stdout.splitlines()]
    assert [e["session_number"] for e in log if e["event_type"] == "session_restart"] == [2, 3, 4]
    (path,) = (tmp_path / "operator.db.d" / "logs").glob("session-*.jsonl")
    assert [json.loads(line) for line in path.read_text().splitlines()] == log
    assert run_operator("audit", "verify", db=tmp_path / "operator.db").returncode == 0
    shown = run_operator("sessions", "list", db=tmp_path / "operator.db").stdout
    assert "#None" not in shown
    assert "explorer" in shown


@pytest.mark.deep
@pytest.mark.parametrize("place", ["gateway.executed:5", "journal.append.after:restart:2"])
def test_killed_it_goes_on_from_its_journal(tmp_path: Path, place: str) -> None:
    with started(tmp_path, "ws", "--engine", "scripted", env={"OPERATOR_CRASH_AT": place}) as process:
        assert process.wait(60) == -signal.SIGKILL, (tmp_path / "output").read_text()
    row = status(tmp_path)
    assert row["state"] == "resting"
    again = operator(tmp_path, "ws", "--engine", "scripted")
    assert again.returncode == 2
    assert "--resume" in again.stderr
    done = operator(tmp_path, "ws", "--engine", "scripted", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "after 3 restarts" in done.stdout
    # Nothing ran twice, and no restart is there twice.
    assert notes(tmp_path) == list(range(1, len(notes(tmp_path)) + 1))
    entries = journal(tmp_path, row["session"])
    assert [e["body"]["number"] for e in entries if e["entry_type"] == "restart"] == [2, 3, 4]
    calls = [e["tool_use_id"] for e in entries if e["entry_type"] == "tool_result"]
    assert len(calls) == len(set(calls))
    assert run_operator("audit", "verify", db=tmp_path / "operator.db").returncode == 0


SLOW = """
from operator_core.scripted import Call, FunctionBrain, Reply
def brain():
    command = "echo x >> ran; sleep 0.2; if test -e long; then sleep 77.7; fi"
    calls = (Call("shell_exec", {"command": command}),)
    return FunctionBrain(lambda turn: Reply(text=f"Step {turn.step}.", calls=calls))
"""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Path]:
    """A workspace, and a model whose every turn takes a moment."""
    from operator_core.scripted import ScriptedProcess

    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "SYSTEM_PROMPT.md").write_text("Count.\n")
    (tmp_path / "brain.py").write_text(SLOW)
    with ScriptedProcess(f"{tmp_path / 'brain.py'}:brain") as server:
        (tmp_path / "operator.toml").write_text(
            f'[model]\nengine = "scripted"\nbase_url = "{server.base_url}"\nsummaries = "deterministic"\n'
            "[limits]\nturns = 0\n[explore]\nshell_timeout_s = 100.0\n"
        )
        yield tmp_path


def ran(folder: Path) -> int:
    path = folder / "ws" / "ran"
    return len(path.read_text().split()) if path.exists() else 0


def test_people_at_another_terminal(slow: Path) -> None:
    with started(slow, "ws") as process:
        wait_until(lambda: ran(slow) >= 2, 30)
        assert status(slow)["state"] == "running"
        assert "waits" in operator(slow, "pause").stdout
        wait_until(lambda: "[Paused]" in (slow / "output").read_text(), 10)
        assert status(slow)["state"] == "paused"
        before = ran(slow)
        assert "goes on" in operator(slow, "resume").stdout
        wait_until(lambda: ran(slow) > before, 10)
        second = operator(slow, "ws")
        assert second.returncode == 2
        assert "Another process explores" in second.stderr
        assert "ends after its turn" in operator(slow, "stop").stdout
        assert process.wait(20) == 0, (slow / "output").read_text()
    assert "It is over: stopped by a person" in (slow / "output").read_text()
    assert status(slow)["state"] == "completed"
    refused = operator(slow, "pause", status(slow)["session"])
    assert refused.returncode == 1
    assert "completed" in refused.stderr


def test_one_ctrl_c_lets_it_rest_and_a_second_ends_everything(slow: Path) -> None:
    with started(slow, "ws") as process:
        wait_until(lambda: ran(slow) >= 2, 30)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, (slow / "output").read_text()
    assert "It rests." in (slow / "output").read_text()
    (slow / "ws" / "long").touch()
    with started(slow, "ws", "--resume") as process:
        wait_until(lambda: bool(processes_of("sleep\00077.7")), 30)
        process.send_signal(signal.SIGINT)
        # Of two signals that come before the first is handled, the system keeps only one.
        wait_until(lambda: (slow / "output").read_text().count("again ends it at once") == 2, 20)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130, (slow / "output").read_text()
    wait_until(lambda: not processes_of("sleep\00077.7"), 5)
    # Stopped for good, although nobody runs it.
    assert status(slow)["state"] == "resting"
    assert "is over" in operator(slow, "stop").stdout
    assert status(slow)["state"] == "completed"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a configuration, and without an explorer."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "operator.toml").write_text('[model]\nengine = "scripted"\nbase_url = "http://127.0.0.1:9"\n')
    assert run_operator("init", db=folder / "operator.db", cwd=folder).returncode == 0
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "There is no folder"),
        (["."], "where the agent could"),
        (["--resume"], "no session to go on with"),
        (["--session", "x"], "needs --resume"),
        (["pause"], "no such explorer"),
        (["stop", "nobody"], "no explorer 'nobody'"),
        (["ws", "--allow-host", "example.org"], "--network allowlist"),
        (["ws", "--turns", "-1"], "--turns"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(empty: Path, words: list[str], said: str) -> None:
    done = operator(empty, *words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
