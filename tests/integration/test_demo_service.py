"""The demo's service and its supervisor, as processes: limits, persistence, restarts, and nothing left behind."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from operator_core.config import load_settings
from operator_core.demo import DemoFiles, RunningService, open_demo, restart_service, write_demo
from operator_core.demo.files import CUSTOMERS, LIMIT, WINDOW_S
from operator_core.errors import OperatorError
from tests.support import free_port, processes_of, wait_until
from tests.support.processes import operator_environment


@pytest.fixture
def demo(tmp_path: Path) -> DemoFiles:
    return write_demo(tmp_path / "act", free_port())


@pytest.fixture
def running(demo: DemoFiles) -> Iterator[DemoFiles]:
    with RunningService(demo):
        yield demo


def ask(demo: DemoFiles, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=5)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def status(demo: DemoFiles) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=5)
    with closing(connection):
        connection.request("GET", "/status")
        answer: dict[str, object] = json.loads(connection.getresponse().read())
        return answer


def change_config(demo: DemoFiles, **values: object) -> None:
    path = demo.workspace / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def service_pid(demo: DemoFiles) -> int:
    return int((demo.workspace / "run" / "service.pid").read_text())


def test_a_client_gets_its_limit_and_after_the_window_again(running: DemoFiles) -> None:
    change_config(running, window_s=30.0)
    restart_service(running)
    assert [ask(running, "/check?client=a") for _ in range(LIMIT + 1)] == [200] * LIMIT + [429]
    assert ask(running, "/check?client=b") == 200, "another client has a limit of its own"
    assert list(status(running)["used_up_for_s"]) == ["a"]  # type: ignore[call-overload]

    change_config(running, window_s=WINDOW_S)
    restart_service(running)
    assert ask(running, "/check?client=a") == 429, "the counter survives a restart, with the end that it had"
    for _ in range(LIMIT):
        ask(running, "/check?client=c")
    assert ask(running, "/check?client=c") == 429
    wait_until(lambda: ask(running, "/check?client=c") == 200, timeout=5 * WINDOW_S)


def test_customers_survive_a_kill(running: DemoFiles) -> None:
    before = service_pid(running)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service_pid(running) != before)
    wait_until(lambda: processes_of(str(running.workspace)) and _is_up(running))
    assert status(running)["customers"] == len(CUSTOMERS)
    assert "exit code -9" in (running.workspace / "run" / "supervisor.log").read_text()


def _is_up(demo: DemoFiles) -> bool:
    try:
        return ask(demo, "/healthz") == 200
    except OSError:
        return False


def test_it_reads_its_configuration_at_the_start_only(running: DemoFiles) -> None:
    change_config(running, limit_per_window=LIMIT + 5)
    assert status(running)["limit_per_window"] == LIMIT
    restart_service(running)
    assert status(running)["limit_per_window"] == LIMIT + 5


@pytest.mark.parametrize("text", ["{", "[]", '{"limit_per_window": "many"}', '{"limit_per_window": 3}'])
def test_a_bad_configuration_is_said_and_its_repair_is_enough(running: DemoFiles, text: str) -> None:
    path = running.workspace / "config.json"
    good = path.read_text()
    path.write_text(text)
    restart_service(running)
    assert not _is_up(running)
    assert "ERROR cannot start: config.json" in (running.workspace / "run" / "service.log").read_text()
    path.write_text(good)
    wait_until(lambda: _is_up(running))


def test_a_damaged_database_is_an_error_and_not_an_empty_one(running: DemoFiles) -> None:
    (running.workspace / "data" / "limiter.db").write_bytes(b"this is no database" * 500)
    restart_service(running)
    assert not _is_up(running)


def test_links_in_the_workspace_lead_nowhere(running: DemoFiles, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    run = running.workspace / "run"
    for name in ("service.log", "supervisor.log", "service.pid"):
        (run / name).unlink()
        (run / name).symlink_to(victim)
    restart_service(running)
    assert victim.read_text() == "mine"

    (run / "service.log").unlink()
    (run / "service.log").touch()
    (running.workspace / "data").rename(running.workspace / "old")
    (running.workspace / "data").symlink_to(folder)
    restart_service(running)
    assert not _is_up(running)
    assert list(folder.iterdir()) == []
    assert "data is a symbolic link" in (run / "service.log").read_text()


def test_a_folder_as_control_file_restarts_nothing(running: DemoFiles) -> None:
    before = service_pid(running)
    (running.workspace / "run" / "restart").mkdir()
    time.sleep(0.2)  # several of the supervisor's looks
    (running.workspace / "run" / "restart").rmdir()
    restart_service(running)
    log = (running.workspace / "run" / "supervisor.log").read_text()
    assert log.count("a restart was asked for") == 1
    assert service_pid(running) != before


def test_stop_leaves_nothing(demo: DemoFiles) -> None:
    service = RunningService(demo)
    assert len(processes_of(str(demo.root))) == 2
    service.stop()
    assert processes_of(str(demo.root)) == []
    service.stop()


PARENT = """
import sys, time
from pathlib import Path
from operator_core.demo import DemoFiles, RunningService
RunningService(DemoFiles(Path(sys.argv[1]), int(sys.argv[2]), "x"))
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("victim", ["parent", "supervisor"])
def test_a_kill_leaves_nothing(demo: DemoFiles, victim: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(demo.root), str(demo.port)],
        env=operator_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "up\n"
            supervisors = set(processes_of(str(demo.service / "supervisor.py"))) - {parent.pid}
            assert len(supervisors) == 1
            os.kill(parent.pid if victim == "parent" else supervisors.pop(), signal.SIGKILL)
            wait_until(lambda: set(processes_of(str(demo.workspace))) <= {parent.pid}, timeout=5)
        finally:
            parent.kill()


def test_a_taken_port_is_said_and_leaves_nothing(demo: DemoFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"ok": true, "pid": 1}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setattr("operator_core.demo.running.START_S", 2.0)
    with http.server.HTTPServer(("127.0.0.1", demo.port), Healthy) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            with pytest.raises(OperatorError, match="Address already in use"):
                RunningService(demo)
        finally:
            other.shutdown()
            thread.join()
    assert processes_of(str(demo.root)) == []


def test_the_configuration_is_usable_as_it_is(tmp_path: Path) -> None:
    demo = write_demo(tmp_path / 'a "quoted" folder, é', 4711, name="limiter-2", watch_s=0.0)
    settings = load_settings(demo.config, environ={}).settings
    (subject,) = settings.subject
    (invariant,) = subject.invariant
    assert (subject.name, subject.workspace) == ("limiter-2", demo.workspace)
    assert invariant.name == demo.invariant
    assert invariant.watch_s == 0.0
    assert subject.readable == (demo.checks, demo.service)
    assert str(demo.workspace) in subject.context
    commands = invariant.verify + invariant.durability.commands + invariant.protect.commands
    assert len(commands) == 6
    # Without a service: those that ask it could not look, those that read files can.
    done = [subprocess.run(["bash", "-c", c], capture_output=True, text=True, check=False) for c in commands[:2]]
    assert [d.returncode for d in done] == [3, 3]
    assert all("could not look" in d.stderr for d in done)
    read = [subprocess.run(["bash", "-c", c], capture_output=True, text=True, check=False) for c in commands[4:]]
    assert [d.returncode for d in read] == [0, 0]
    assert f"{len(CUSTOMERS)} customers" in read[1].stdout
    assert sorted(p.name for p in demo.checks.iterdir()) == ["checks.py", "contract.json"]


def test_the_customer_check_sees_each_change(demo: DemoFiles) -> None:
    def printed() -> str:
        command = [sys.executable, "-B", str(demo.checks / "checks.py"), "customers"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout

    database = demo.workspace / "data" / "limiter.db"
    seen = [printed()]
    for statement in (
        "UPDATE customers SET credits = credits + 1 WHERE name = 'acme'",
        "DELETE FROM customers WHERE name = 'acme'",
        "DROP TABLE customers",
    ):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(statement)
        seen.append(printed())
    database.write_bytes(b"no database")
    seen.append(printed())
    database.unlink()
    seen.append(printed())
    assert len(set(seen)) == 6, seen


def test_the_example_can_be_started_broken_and_ended_by_hand(tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).parents[2] / "examples" / "ratelimiter" / "ratelimiter.py")]
    folder, port = tmp_path / "limiter", str(free_port())
    env = operator_environment()
    early = subprocess.run([*program, "break", str(folder)], env=env, capture_output=True, text=True, check=False)
    assert (early.returncode, "start it there first" in early.stderr) == (1, True)
    for _ in ("a new folder", "the same again"):
        words = [*program, "start", str(folder), "--port", port]
        with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as running:
            try:
                assert running.stdout is not None
                assert f"http://127.0.0.1:{port}" in running.stdout.readline()
                subprocess.run([*program, "break", str(folder)], env=env, check=True)
                assert ask(open_demo(folder), "/check?client=canary") == 429
                running.send_signal(signal.SIGINT)
                assert running.wait(10) == 0
            finally:
                running.kill()
    assert processes_of(str(folder)) == []
