"""Processes that work until they are told to stop: `up`, `monitor run`, `worker run`, `agent start`; and `doctor`."""

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

from operator_core.scripted import Call, FunctionBrain, Reply, Router, ScriptedServer, ServerThread
from operator_core.scripted.turn import Turn
from tests.support import processes_of, run_operator, wait_until
from tests.support.processes import operator_environment

TOML = """
[store]
url = "{folder}/operator.db"
[model]
engine = "scripted"
base_url = "{url}"
model = "scripted-small"
[sandbox]
backend = "none"
[worker]
poll_s = 0.2
[monitor]
interval_s = 0.1
[[subject]]
name = "shop"
workspace = "{folder}/workspace"
[[subject.invariant]]
name = "shop-is-open"
description = "There must be a sign."
probe = {{ type = "command", command = "test -e {folder}/workspace/sign" }}
settle_s = 0.2
verify = ["grep open sign"]
"""


def repair(turn: Turn) -> Reply:
    """Looks, puts the sign up, and says so; in each turn it decides from what its last command printed."""
    if not turn.results:
        return Reply(text="I look for the sign.", calls=(Call("shell", {"command": "ls", "reasoning": "look"}),))
    if not any("put up" in result.text for result in turn.history()):
        command = "echo open > sign; echo put up"
        return Reply(text="It is missing.", calls=(Call("shell", {"command": command, "reasoning": "repair"}),))
    return Reply(calls=(Call("propose_resolution", {"summary": "I put the sign up."}),))


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ScriptedServer(Router(default=FunctionBrain(repair))).start_in_thread() as running:
        yield running


@pytest.fixture
def shop(tmp_path: Path, server: ServerThread) -> Path:
    """A folder with an ``operator.toml``, a store, and a shop without a sign."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "operator.toml").write_text(TOML.format(folder=tmp_path, url=server.base_url))
    return tmp_path


@contextmanager
def running(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A command in that folder and the file with everything it prints; it is ended in any case."""
    output = folder / f"output-{'-'.join(words)}"
    with output.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "operator_core", *words],
            cwd=folder,
            env=operator_environment({"SHOP": str(folder)}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            yield child, output
        finally:
            child.kill()
            child.wait()


def tickets(folder: Path) -> list[dict[str, Any]]:
    done = run_operator("tickets", "list", "--json", cwd=folder)
    found: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_watches_and_works_until_it_is_told_to_stop(shop: Path, number: signal.Signals) -> None:
    with running(shop, "up") as (child, output):
        wait_until(lambda: "Ticket #1 -> resolved" in output.read_text(), timeout=60)
        wait_until(lambda: "# Closure report: ticket #1" in output.read_text(), timeout=10)
        child.send_signal(number)
        assert child.wait(30) == 0
        text = output.read_text()
    assert re.search(r"^\[Monitor\] Ticket #1 \(warning\): .*There must be a sign", text, re.M)
    assert "Traceback" not in text
    assert "\x1b" not in text
    (ticket,) = tickets(shop)
    assert (ticket["status"], ticket["reason"]) == ("resolved", "verified")
    assert processes_of(str(shop)) == []


def test_monitor_once_then_worker_until_idle(shop: Path) -> None:
    done = run_operator("monitor", "run", "--once", "--json", cwd=shop)
    (report,) = json.loads(done.stdout)
    assert (done.returncode, report["violations"], report["tickets"][0]["status"]) == (0, ["shop-is-open"], "open")
    assert "1 violation(s) detected" in run_operator("monitor", "run", "--once", cwd=shop).stdout
    assert run_operator("monitor", "run", "--once", "--subject", "mall", cwd=shop).returncode == 2
    done = run_operator("worker", "run", "--until-idle", "--concurrency", "2", "--audit-dir", "audit", cwd=shop)
    assert (done.returncode, done.stderr) == (0, "")
    # Row A-064, line by line; two sessions at once, so each line says of which ticket it is.
    assert done.stdout.startswith("Agent loop starting. Polling for tickets...\n")
    assert f"\n{'=' * 60}\nProcessing ticket #1: shop-is-open\n{'=' * 60}\n" in done.stdout
    assert re.search(r"^#1 \[Scripted\] I look for the sign\.$", done.stdout, re.M)
    assert re.search(r"^#1 \[Tool Call: shell\] ls$", done.stdout, re.M)
    assert re.search(r"^Ticket #1 -> resolved\nSummary: .+$", done.stdout, re.M)
    (ticket,) = tickets(shop)
    assert (ticket["status"], ticket["occurrence_count"]) == ("resolved", 2)
    (exported,) = (shop / "audit").glob("*.json")
    assert json.loads(exported.read_text())["session_id"] == exported.stem
    assert run_operator("monitor", "run", "--once", cwd=shop).stdout == "shop: Check complete: all passing\n"


def test_agent_start_takes_a_ticket_and_ends_cleanly(shop: Path) -> None:
    assert run_operator("tickets", "open", "x", "Fix it.", "--invariant", "shop-is-open", cwd=shop).returncode == 0
    with running(shop, "agent", "start") as (child, output):
        wait_until(lambda: "Ticket #1 -> resolved" in output.read_text(), timeout=60)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
        assert "Traceback" not in output.read_text()
    assert tickets(shop)[0]["status"] == "resolved"


def test_a_reader_that_goes_away_does_not_stop_the_work(shop: Path) -> None:
    run_operator("tickets", "open", "x", "Fix it.", "--invariant", "shop-is-open", cwd=shop)
    child = subprocess.Popen(
        [sys.executable, "-m", "operator_core", "worker", "run", "--until-idle"],
        cwd=shop,
        env=operator_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.close()
    assert child.wait(60) in (0, 1)
    assert child.stderr is not None
    assert b"Traceback" not in child.stderr.read()
    child.stderr.close()
    (ticket,) = tickets(shop)
    assert (ticket["status"], ticket["reason"]) == ("resolved", "verified"), "it was work as usual"


def test_monitor_run_prints_each_cycle(shop: Path) -> None:
    with running(shop, "monitor", "run", "--interval", "0.1") as (child, output):
        wait_until(lambda: output.read_text().count("1 violation(s) detected") >= 3, timeout=30)
        (shop / "workspace" / "sign").write_text("open")
        wait_until(lambda: output.read_text().count("Check complete: all passing") >= 2, timeout=30)
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    assert tickets(shop)[0]["reason"] == "cleared"


def test_doctor_tries_everything(shop: Path, server: ServerThread) -> None:
    done = run_operator("doctor", cwd=shop)
    assert (done.returncode, "no database" in done.stdout) == (1, True), "it looks, it does not make"
    run_operator("tickets", "open", "x", "y", cwd=shop)
    before = len(server.model_calls())
    done = run_operator("doctor", "--json", cwd=shop)
    found = json.loads(done.stdout)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert (done.returncode, found["ok"]) == (0, True), found
    for of_the_machine in ("memory", "docker"):
        states.pop(of_the_machine, None)
    assert states == {
        "configuration": "ok",
        "store": "ok",
        "tokens": "ok",
        "sandbox": "warning",
        "model": "ok",
        "probe shop-is-open": "warning",
    }
    (call,) = server.model_calls()[before:]
    assert call.body["max_tokens"] == 1, "one request, and a cheap one"
    text = run_operator("doctor", cwd=shop)
    assert (text.returncode, text.stderr) == (0, "")
    assert "Everything that was tried works." in text.stdout
    assert run_operator("audit", "verify", cwd=shop).returncode == 0


def test_doctor_looks_for_the_secrets_of_channels_doors_and_servers(shop: Path) -> None:
    with (shop / "operator.toml").open("a") as config:
        config.write("""
[[notify.channel]]
name = "hook"
kind = "webhook"
url = "https://hooks.example.com/x"
secret_env = "HOOK_SECRET"

[[intake]]
name = "alerts"
kind = "alertmanager"
secret_env = "ALERTS_SECRET"

[[mcp_server]]
name = "issues"
url = "https://mcp.example.com/mcp"
token_env = "ISSUES_TOKEN"
""")
    run_operator("tickets", "open", "x", "y", cwd=shop)
    names = ("channel hook", "intake alerts", "mcp server issues", "tokens")
    done = run_operator("doctor", "--json", cwd=shop)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert [found[name]["state"] for name in names] == ["wrong", "wrong", "wrong", "ok"]
    for name, variable in zip(names, ("HOOK_SECRET", "ALERTS_SECRET", "token_env"), strict=False):
        assert variable in found[name]["detail"]
    secrets = dict.fromkeys(
        ("HOOK_SECRET", "ALERTS_SECRET", "ISSUES_TOKEN"), "whsec-not-to-be-guessed-0123456789abcdef"
    )
    assert run_operator("token", "create", "ann", "--role", "viewer", cwd=shop).returncode == 0
    done = run_operator("doctor", "--json", cwd=shop, env=secrets)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert [found[name]["state"] for name in names] == ["ok", "ok", "ok", "warning"], found
    assert "none of them an administrator's" in found["tokens"]["detail"]
    assert "whsec-not" not in done.stdout


@pytest.mark.usefixtures("require_bubblewrap")
def test_doctor_attacks_a_real_sandbox(shop: Path) -> None:
    run_operator("tickets", "open", "x", "y", cwd=shop)
    done = run_operator("doctor", "--json", cwd=shop, env={"OPERATOR_SANDBOX__BACKEND": "bubblewrap"})
    (sandbox,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "sandbox"]
    assert (sandbox["state"], sandbox["facts"]["level"]) == ("ok", "isolated")
    assert sandbox["facts"]["controls"]["filesystem.write"]["state"] == "verified"
