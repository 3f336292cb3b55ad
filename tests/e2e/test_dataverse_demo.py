"""``operator-dataverse demo`` and ``double``, as somebody types them: without an account, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "operator_dataverse"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_round_trip(place: Path, require_bubblewrap: None) -> None:
    done = subprocess.run([*PROGRAM, "demo", "--json"], cwd=place, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    played = json.loads(done.stdout)
    assert played["engine"] == "scripted"
    first, second = played["tasks"]
    assert first["codes"] == [1, 5, 7]
    assert second["codes"] == [1, 5, 6, 1, 5, 7]
    assert first["cards"][-1] == second["cards"][-1] == "Task completed and verified"
    assert played["audit"]["ok"]
    # What decides is told: what was tried, what was refused, what the person answered, and what stands in the row.
    for told in ("by a script", "refuted", "Alice answers: It is Q3.", "7 Completed", "## The last card"):
        assert told in done.stderr
    assert not list(place.glob("operator-dataverse-demo-*"))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_interrupted_demo_leaves_no_process(place: Path, require_bubblewrap: None) -> None:
    with subprocess.Popen(
        [*PROGRAM, "demo"], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "worker: [Dataverse] Taking tasks" in line:
                break
        demo.send_signal(signal.SIGTERM)
        rest = demo.stdout.read()
        assert demo.wait(60) == 143, rest
    assert "What there is of it stays in" in rest
    mine = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _works_in(entry, place)]
    assert not mine


@pytest.mark.slow
def test_without_a_sandbox_it_says_what_is_missing(place: Path) -> None:
    environment = {**os.environ, "PATH": str(place)}
    done = subprocess.run([*PROGRAM, "demo"], cwd=place, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "bubblewrap is not installed" in done.stderr
    assert "Remedy" in done.stderr
    assert "Traceback" not in done.stderr


def _works_in(process: Path, place: Path) -> bool:
    try:
        return str(place) in os.readlink(process / "cwd")
    except OSError:
        return False


@pytest.mark.slow
def test_the_double_serves_until_ctrl_c() -> None:
    with subprocess.Popen(
        [*PROGRAM, "double", "--seed", "--token", "a-token"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as double:
        assert double.stdout is not None
        url = ""
        for line in double.stdout:
            url = url or line.partition("DATAVERSE_URL=")[2].strip()
            if line.startswith("What it is asked"):
                break
        where = f"{url}/api/data/v9.2/cr_shraga_tasks?$select=cr_name"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(where, timeout=10)
        request = urllib.request.Request(where, headers={"Authorization": "Bearer a-token"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            names = [row["cr_name"] for row in json.load(answer)["value"]]
        assert names == ["Say hello", "Count to three"]
        assert "-> 401" in double.stdout.readline()
        assert "-> 200" in double.stdout.readline()
        double.send_signal(signal.SIGINT)
        assert double.wait(30) == 0
