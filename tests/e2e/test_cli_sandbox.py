"""`operator sandbox` says what holds on this machine; the exit code is for programs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from operator_core.cli.journal_view import entry_lines
from operator_core.model.entry import Entry
from operator_core.sandbox.selftest.findings import CORE
from tests.support import Unprivileged, run_operator

STATES = {"verified", "partial", "not_enforced", "unavailable"}


def a_report(**controls: str) -> Entry:
    body = {"controls": {name: {"state": state, "how": f"how of {name}\x1b[2J"} for name, state in controls.items()}}
    return Entry(
        1, "s", 2, "sandbox_report", "bubblewrap 0.8.0, isolated", None, None, None, None, "2026-01-28T10:30:45Z",
        None, None, None, body, None, "", "",
    )  # fmt: skip


@pytest.mark.usefixtures("require_bubblewrap")
def test_every_core_control_is_verified(tmp_path: Path) -> None:
    done = run_operator("sandbox", "test", "--backend", "bubblewrap", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] is True
    assert found["core_failing"] == []
    assert found["level"] == "isolated"
    assert {found["controls"][name]["state"] for name in CORE} == {"verified"}
    assert {control["state"] for control in found["controls"].values()} <= STATES
    assert found["controls"]["limits.disk"]["fix"]
    assert "fix" not in found["controls"]["network"]
    assert 0 < found["command_ms"] < found["start_ms"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("require_bubblewrap")
def test_a_person_reads_one_line_for_each_control(tmp_path: Path) -> None:
    done = run_operator("sandbox", "report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bubblewrap ")
    names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert set(CORE) <= set(names)
    assert done.stdout.count("-> put the workspaces on a file system with a quota") == 1


@pytest.mark.usefixtures("require_bubblewrap")
def test_it_holds_for_an_ordinary_user(unprivileged: Unprivileged) -> None:
    words = (sys.executable, "-m", "operator_core", "sandbox", "test", "--json")
    done = unprivileged.run(*words, cwd=unprivileged.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["level"] == "isolated"


def test_no_sandbox_is_a_failure_that_names_every_core_control(tmp_path: Path) -> None:
    done = run_operator("sandbox", "test", "--backend", "none", "--json", cwd=tmp_path)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert found["core_failing"] == list(CORE)
    assert found["warnings"]
    told = run_operator("sandbox", "test", "--backend", "none", cwd=tmp_path)
    assert told.returncode == 1
    assert told.stdout.rstrip().splitlines()[-1].startswith("Core controls that do not hold: filesystem.write, ")


@pytest.mark.usefixtures("require_bubblewrap")
def test_the_network_of_the_host_does_not_pass(tmp_path: Path) -> None:
    done = run_operator("sandbox", "test", "--network", "host", "--json", cwd=tmp_path)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert "network" in found["core_failing"]
    assert found["level"] == "open"


def test_a_refusal_has_its_remedy(tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path)}
    done = run_operator("sandbox", "test", "--json", cwd=tmp_path, env=empty)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert "apt-get install bubblewrap" in found["error"]
    told = run_operator("sandbox", "test", cwd=tmp_path, env=empty)
    assert told.returncode == 1
    assert told.stdout == ""
    assert told.stderr.startswith("Error: ")
    assert "apt-get install bubblewrap" in told.stderr


@pytest.mark.parametrize("words", [("--backend", "nix"), ("--network", "tor"), ("--nothing",)])
def test_a_wrong_word_is_one_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_operator("sandbox", "report", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_a_session_shows_what_does_not_hold() -> None:
    entry = a_report(network="verified", **{"limits.disk": "partial", "limits.procs": "not_enforced"})
    lines = list(entry_lines(entry))
    assert lines[1:] == ["         not verified: limits.disk (partial), limits.procs (not enforced)"]
    full = list(entry_lines(entry, full=True))
    assert [line.split()[:2] for line in full[1:]] == [
        ["network", "verified:"],
        ["limits.disk", "partial:"],
        ["limits.procs", "not"],
    ]
    assert not any("\x1b" in line for line in full)


def test_a_session_of_an_older_version_is_shown_too() -> None:
    assert len(list(entry_lines(a_report()))) == 1
    assert len(list(entry_lines(replace(a_report(), body="unknown")))) == 1
