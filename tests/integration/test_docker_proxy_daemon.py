"""The docker command and its attacks through the proxy, on a real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.docker import docker, running_container
from tests.support.processes import operator_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("docker"),
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("require_docker"),
]

Run = Callable[..., subprocess.CompletedProcess[str]]

# Prints a line when it is asked to stop, and one every tenth of a second.
SERVER = (
    "python3",
    "-u",
    "-c",
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *a: (print('stopped'), sys.exit(0)))\n"
    "print('started', os.environ['TOKEN'])\n"
    "while True: time.sleep(0.1); print('tick')",
)


@pytest.fixture(scope="module")
def web(docker_answer: str) -> Iterator[str]:
    if docker_answer:
        yield ""  # each test then says why
        return
    with running_container("-e", "TOKEN=hunter2", command=SERVER) as name:
        yield name


@pytest.fixture(scope="module")
def other(docker_answer: str) -> Iterator[str]:
    if docker_answer:
        yield ""
        return
    with running_container() as name:
        yield name


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxy") / "decisions.jsonl"


@pytest.fixture(scope="module")
def proxied(web: str, other: str, log: Path) -> Iterator[Run]:
    """The docker command, on the proxy's socket."""
    if not web:
        yield docker
        return
    path = log.with_name("docker.sock")
    argv = [sys.executable, "-m", "operator_core", "docker-proxy", "--listen", str(path), "--log", str(log)]
    argv += ["--allow", f"restart,logs,exec,top,stats,inspect:{web}"]
    process = subprocess.Popen(argv, env=operator_environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert "Serving" in process.stdout.readline()
        yield lambda *words, **more: docker("-H", f"unix://{path}", *words, **{"check": False, **more})
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        assert process.wait(20) == 0
    assert not path.exists()


def test_the_docker_command_works_for_what_is_allowed(proxied: Run, web: str) -> None:
    assert proxied("ps", "--format", "{{.Names}}").stdout.split() == [web]
    assert proxied("ps", "-aq").stdout.split() == [docker("inspect", "-f", "{{.Id}}", web).stdout[:12]]
    assert "python3" in proxied("top", web).stdout
    assert web in proxied("stats", "--no-stream", web).stdout
    assert proxied("version", "--format", "{{.Server.Version}}").stdout.strip()
    shown = json.loads(proxied("inspect", web).stdout)[0]["Config"]["Env"]
    assert "TOKEN=[hidden]" in shown
    before = docker("inspect", "-f", "{{.State.StartedAt}}", web).stdout
    assert proxied("restart", "-t", "5", web).returncode == 0
    assert docker("inspect", "-f", "{{.State.StartedAt}}", web).stdout != before
    assert "stopped" in proxied("logs", web).stdout


def test_exec_carries_input_output_errors_and_the_exit_code(proxied: Run, web: str) -> None:
    big = "x" * 300_000
    done = proxied("exec", "-i", web, "cat", stdin=big)
    assert (done.stdout, done.returncode) == (big, 0)
    done = proxied("exec", web, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)
    assert proxied("exec", "-e", "A=b", "-w", "/tmp", web, "sh", "-c", "echo $A $PWD").stdout == "b /tmp\n"
    assert proxied("exec", "-d", web, "touch", "/tmp/detached").returncode == 0
    wait_until(lambda: proxied("exec", web, "test", "-e", "/tmp/detached").returncode == 0)


def test_a_log_is_followed_until_the_caller_leaves(proxied: Run, web: str, log: Path) -> None:
    argv = ["docker", "-H", f"unix://{log.with_name('docker.sock')}", "logs", "-f", "--tail", "1", web]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in range(5)][1:] == ["tick\n"] * 4
    finally:
        process.kill()
        process.stdout.close()
        process.wait(10)
    assert proxied("ps").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        "run --rm -v /:/host python:3.12-slim touch /host{mark}",
        "run --rm --privileged --pid host --name {new} python:3.12-slim true",
        "create --name {new} python:3.12-slim true",
        "restart {other}",
        "stop {other}",
        "kill {other}",
        "pause {other}",
        "rm -f {other}",
        "rm -f {web}",
        "stop {web}",
        "kill {web}",
        "rename {web} {new}",
        "update --memory 32m {web}",
        "commit {web} {new}",
        "cp {web}:/etc/passwd {mark}",
        "cp {mark}.source {web}:{mark}",
        "export {web} -o {mark}",
        "attach --no-stdin {web}",
        "exec {other} touch /tmp/mark",
        "exec --privileged {web} touch /tmp/mark",
        "exec -u 0 {web} touch /tmp/mark",
        "logs {other}",
        "top {other}",
        "inspect {other}",
        "network create {new}",
        "network connect bridge {web}",
        "volume create {new}",
        "volume ls",
        "images",
        "image rm -f python:3.12-slim",
        "tag python:3.12-slim {new}",
        "save python:3.12-slim -o {mark}",
        "events --since 1h --until 0s",
        "info",
        "system df",
        "container prune -f",
        "image prune -af",
        "swarm init",
        "plugin ls",
        "build -t {new} {folder}",
    ],
)
def test_nothing_else_can_be_done(proxied: Run, web: str, other: str, tmp_path: Path, words: str) -> None:
    mark, new = tmp_path / "mark", f"operator-test-{os.urandom(4).hex()}"
    (tmp_path / "mark.source").write_text("x")
    (tmp_path / "Dockerfile").write_text("FROM python:3.12-slim\n")
    before = state(web), state(other)
    line = words.format(mark=mark, new=new, web=web, other=other, folder=tmp_path)
    done = proxied(*line.split(), timeout=30)
    assert done.returncode != 0
    assert "The docker proxy refuses" in done.stderr or "received 403" in done.stderr, done
    assert (state(web), state(other)) == before
    assert not mark.exists()
    everything = (
        docker("ps", "-a", "--format", "{{.Names}}").stdout + docker("images", "--format", "{{.Repository}}").stdout
    )
    everything += docker("volume", "ls", "-q").stdout + docker("network", "ls", "--format", "{{.Name}}").stdout
    assert new not in everything


def state(name: str) -> str:
    """What an attack on a container would change."""
    code = "{{.State.StartedAt}} {{.State.Status}} {{.Name}} {{.HostConfig.Memory}} {{len .NetworkSettings.Networks}}"
    seen = docker("inspect", "-f", code, name).stdout
    return seen + docker("exec", name, "sh", "-c", "ls /tmp | grep -c mark", check=False).stdout


def test_every_decision_is_in_the_log(proxied: Run, web: str, other: str, log: Path) -> None:
    proxied("exec", web, "echo", "written down")
    proxied("kill", other)
    decisions = [json.loads(line) for line in log.read_text().splitlines()]
    ran = [d for d in decisions if d["command"] == ["echo", "written down"]]
    assert [(d["allowed"], d["verb"], d["container"]) for d in ran] == [(True, "exec", web)]
    last = decisions[-1]
    assert (last["allowed"], last["verb"], last["container"]) == (False, "kill", other)
    assert "not allowed" in last["reason"]


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        ("/var/run/docker.sock:/var/run/docker.sock", "it has /var/run/docker.sock of the host"),
        ("{folder}:/socket:ro", "it is the agent's own, where the worker runs"),
    ],
)
def test_an_exec_that_would_leave_every_sandbox_is_refused(proxied: Run, tmp_path: Path, volume: str, why: str) -> None:
    path = tmp_path / "docker.sock"
    with running_container("-v", volume.format(folder=tmp_path)) as name:
        argv = [sys.executable, "-m", "operator_core", "docker-proxy", "--listen", str(path)]
        process = subprocess.Popen(
            [*argv, "--allow", f"exec,top:{name}"], env=operator_environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            assert "Serving" in process.stdout.readline()
            done = docker("-H", f"unix://{path}", "exec", name, "true", check=False)
            assert done.returncode != 0
            assert f"in no sandbox, because {why}" in done.stderr
            assert docker("-H", f"unix://{path}", "top", name).returncode == 0
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.close()
            process.wait(20)
