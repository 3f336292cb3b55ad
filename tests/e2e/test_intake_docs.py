"""``docs/intake.md`` is tried: its commands run against ``operator serve``, and its tables are what the code has."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_core.config import load_settings
from operator_core.intake.items import MAX_ITEMS, Done
from operator_core.model.intake import AlertRules, GithubRules, Intake, WebhookRules
from tests.support.processes import operator_environment, run_operator
from tests.support.waiting import free_port, wait_until
from tests.support.webhooks import SAMPLES

ROOT = SAMPLES.parents[1]
TEXT = (ROOT / "docs" / "intake.md").read_text("utf-8")
PORT = "8642"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def in_bash(script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[dict[str, str], str]]:
    """The environment of the page's first command, in which its server runs, and the port."""
    start, *_ = blocks("bash")
    exports, serve = start.strip().splitlines()
    port = str(free_port())
    env = operator_environment({"OPERATOR_DB": str(tmp_path / "operator.db"), "OPERATOR_WEB__PORT": port})
    env |= dict(word.split("=", 1) for word in exports.removeprefix("export ").split())
    words = [sys.executable, "-m", "operator_core", *serve.split()[1:]]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            asked = f"curl -sf http://127.0.0.1:{port}/livez"
            wait_until(lambda: in_bash(asked, env).returncode == 0, 30, every=0.2, what="the server")
            yield env, port
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text()
    assert all(env[name] not in said for name in env if name.endswith("_SECRET"))


@pytest.mark.timeout(120)
def test_the_examples_run_on_a_server(world: tuple[dict[str, str], str]) -> None:
    env, port = world
    answers = []
    for script in blocks("bash")[1:]:
        done = in_bash(script.replace(PORT, port), env)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        answers.append(json.loads(done.stdout))
    assert answers[0] == json.loads(blocks("json")[0])
    assert [[item["what"] for item in answer["items"]] for answer in answers] == [
        ["opened", "opened"],
        ["observed", "observed"],
        ["opened", "ignored"],
        [],
    ]
    again = json.loads(in_bash(blocks("bash")[1].replace(PORT, port), env).stdout)
    assert [item["what"] for item in again["items"]] == ["seen", "seen"]
    listed = run_operator("tickets", "list", "--json", env=env, cwd=ROOT)
    assert {t["invariant_name"] for t in json.loads(listed.stdout)} == {"ServiceUnreachable", "build-shop"}
    assert run_operator("audit", "verify", env=env, cwd=ROOT).returncode == 0


def test_every_piece_of_configuration_is_one(tmp_path: Path) -> None:
    """A piece without its door gets one of its kind."""
    whole = 0
    for piece in blocks("toml"):
        found = tomllib.loads(piece)
        door = found["intake"]
        text = piece
        if isinstance(door, dict):
            (kind,) = door
            text = f'[[intake]]\nname = "d"\nkind = "{kind}"\nsecret_env = "S"\n{piece}'
        file = tmp_path / "operator.toml"
        file.write_text(text)
        whole += len(load_settings(file, environ={}).settings.intake)
    assert whole == len(blocks("toml")) == 4


def test_what_the_page_names_is_there() -> None:
    names = set().union(*(model.model_fields for model in (Intake, AlertRules, WebhookRules, GithubRules)))
    for name in ("secret_env", "secret_file", "severity_label", "default_severity", "tolerance_s", "trusted", "kind"):
        assert name in names
        assert f"`{name}" in TEXT or name == "kind"
    for what in Done.model_fields["what"].annotation.__args__:  # type: ignore[union-attr]
        assert f"`{what}`" in TEXT
    assert f"max_alerts: {MAX_ITEMS}" in TEXT
    for sample in SAMPLES.glob("*.json"):
        assert json.loads(sample.read_text())
    assert os.sep not in blocks("json")[0]
