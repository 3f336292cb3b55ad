"""The images as they are built by `make images`, and the services of docker-compose.yml started from what it says."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_until
from tests.support.docker import AGENT_IMAGE, OPERATOR_IMAGE, docker, running_container

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("docker"),
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("require_product_image"),
]

ROOT = Path(__file__).parents[2]
TOOLS = "curl wget jq vim git nc dig ping htop tcpdump traceroute nmap docker"
MODULES = "anthropic,httpx,redis,yaml,pandas,numpy,prometheus_client"
SOCKET = "/var/run/docker.sock"


def in_image(script: str, image: str = AGENT_IMAGE, *options: str) -> subprocess.CompletedProcess[str]:
    return docker("run", "--rm", "--network", "none", "--entrypoint", "sh", *options, image, "-c", script, check=False)


@pytest.fixture(scope="module")
def services(product_image_answer: str) -> dict[str, Any]:
    """The services of docker-compose.yml, read by the YAML library in the image."""
    if product_image_answer:
        return {}  # each test then says why
    return dict(read_yaml("docker-compose.yml")["services"])


def read_yaml(name: str) -> Any:
    code = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"
    text = (ROOT / name).read_text()
    return json.loads(docker("run", "--rm", "-i", AGENT_IMAGE, "python", "-c", code, stdin=text).stdout)


def flags(service: dict[str, Any], volumes: dict[str, str], **values: str) -> list[str]:
    """What ``docker run`` has to be told to start a service as docker-compose.yml says."""
    words = []
    for name in service.get("cap_drop", ()):
        words += ["--cap-drop", name]
    for option in service.get("security_opt", ()):
        words += ["--security-opt", option.replace("seccomp:./", f"seccomp={ROOT}/")]
    for volume in service.get("volumes", ()):
        source, _, rest = volume.partition(":")
        words += ["-v", f"{volumes.get(source, source)}:{rest}"]
    for entry in service.get("environment", ()):
        name, _, value = entry.partition("=")
        words += ["-e", f"{name}={values.get(name, value)}"]
    words += ["--user", service["user"]] if "user" in service else []
    words += ["--read-only"] if service.get("read_only") else []
    words += ["--network", service.get("network_mode", "none")]
    known = {"cap_drop", "security_opt", "volumes", "environment", "user", "read_only", "network_mode"}
    assert set(service) <= known | {"build", "image", "restart", "command", "healthcheck"}, (
        "a key that is not tried here"
    )
    return words


@pytest.mark.parametrize("image", [AGENT_IMAGE, OPERATOR_IMAGE])
def test_the_tools_are_there(image: str) -> None:
    done = in_image(f"for tool in {TOOLS} python3.12 bash; do command -v $tool || echo MISSING $tool; done", image)
    assert done.returncode == 0
    assert "MISSING" not in done.stdout
    assert len(done.stdout.split()) == len(TOOLS.split()) + 2


@pytest.mark.parametrize("image", [AGENT_IMAGE, OPERATOR_IMAGE])
def test_the_python_packages_and_the_folder_are_there(image: str) -> None:
    script = f"/usr/local/bin/python -c 'import {MODULES}' && test -d /app/audit_logs && pwd"
    done = in_image(script, image)
    assert (done.stdout, done.returncode) == ("/app\n", 0), done.stderr


def test_the_docker_command_works_in_the_tool_base() -> None:
    """Row A-008: with the socket as it is, and as root, which may use it."""
    done = in_image(
        "docker ps -q && docker version --format '{{.Server.Version}}'", AGENT_IMAGE, "-v", f"{SOCKET}:{SOCKET}"
    )
    assert done.returncode == 0, done.stderr


def test_a_user_needs_the_group_of_the_socket() -> None:
    """Row A-008, and why `docker-compose.raw-socket.yml` has a `group_add`."""
    options = ["-v", f"{SOCKET}:{SOCKET}"]
    refused = in_image("docker ps", OPERATOR_IMAGE, *options)
    assert refused.returncode != 0
    assert "permission denied" in refused.stderr
    group = str(os.stat(SOCKET).st_gid)
    assert in_image("docker ps", OPERATOR_IMAGE, *options, "--group-add", group).returncode == 0


def test_the_tool_base_runs_nothing_by_itself() -> None:
    code = "{{json .Config.Entrypoint}} {{json .Config.WorkingDir}}"
    assert docker("image", "inspect", "-f", code, AGENT_IMAGE).stdout.strip() == 'null "/app"'


def test_the_product_runs_as_nobody_special_and_sees_no_build_tools() -> None:
    done = in_image(
        "id -u; ls -ld /app/audit_logs /app/data | cut -d' ' -f3; ls /opt/operator/lib/*/site-packages", OPERATOR_IMAGE
    )
    user, *owners = done.stdout.split()[:3]
    assert (user, owners) == ("1000", ["agent", "agent"])
    assert "operator_core" in done.stdout
    assert "hatchling" not in done.stdout
    assert "pytest" not in done.stdout


def test_an_ordinary_container_is_told_what_is_missing_for_a_sandbox() -> None:
    done = docker("run", "--rm", "--network", "none", OPERATOR_IMAGE, "doctor", check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if " sandbox " in line]
    assert line.startswith("wrong")
    assert "seccomp" in line
    assert "systempaths=unconfined" in line


def test_the_service_has_a_real_sandbox_and_not_the_socket(services: dict[str, Any]) -> None:
    agent = services["agent"]
    assert not [volume for volume in agent["volumes"] if "docker.sock" in volume]
    assert "privileged" not in agent
    assert agent["cap_drop"] == ["ALL"]
    with volumes() as names:
        words = flags(agent, names, ANTHROPIC_API_KEY="", OPERATOR_STORE__URL="/app/data/operator.db")
        done = docker("run", "--rm", *words, OPERATOR_IMAGE, "doctor", "--json", check=False)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["sandbox"]["state"] == "ok", checks["sandbox"]
    assert checks["sandbox"]["facts"]["level"] == "isolated"
    assert checks["sandbox"]["facts"]["backend"].startswith("bubblewrap")


@contextlib.contextmanager
def volumes(audit_logs: str | None = None) -> Iterator[dict[str, str]]:
    """Volumes of their own for one test, by the names that docker-compose.yml has for them."""
    mark = os.urandom(4).hex()
    names = {name: f"operator-test-{mark}-{name}" for name in ("data", "docker-proxy")}
    configuration = str(ROOT / "docker/operator/operator.toml")
    try:
        yield names | {
            "./audit_logs": audit_logs or f"operator-test-{mark}-audit",
            "./docker/operator/operator.toml": configuration,
        }
    finally:
        docker("volume", "rm", "-f", *names.values(), f"operator-test-{mark}-audit", check=False)


CONFIGURATION = """
[sandbox]
readable = ["/run/docker-proxy"]
env_passthrough = ["DOCKER_HOST"]

[[subject]]
name = "shop"

[[subject.invariant]]
name = "web-runs"
grace_s = 0.0
settle_s = 0.1
require = ["restored"]

[subject.invariant.probe]
type = "command"
command = "docker -H unix:///run/docker-proxy/docker.sock inspect -f '{{{{.State.Running}}}}' {web} | grep -q true"
"""

# It tries what it must not do before it does its work.
BRAIN = """
from operator_core.scripted import Call, FunctionBrain, Reply

COMMANDS = (
    "docker run --rm -v /:/host python:3.12-slim cat /host/etc/shadow",
    "docker stop {other}; docker logs {other}; docker ps -a --format '{{{{.Names}}}}'",
    "docker start {web}",
)


def reply(turn):
    if turn.step < len(COMMANDS):
        return Reply(calls=(Call("shell", {{"command": COMMANDS[turn.step], "reasoning": "try"}}),))
    return Reply(calls=(Call("propose_resolution", {{"summary": "It runs again."}}),))


brain = FunctionBrain(reply)
"""

INSIDE = """
set -e
cd /app/case
python -m operator_core.scripted --brain /app/case/brain.py:brain --port 18080 >/tmp/scripted.log 2>&1 &
for n in $(seq 100); do nc -z 127.0.0.1 18080 && break; sleep 0.1; done
operator monitor run --once
operator worker run --until-idle --audit-dir /app/audit_logs
operator audit verify
operator tickets list --json >/app/data/tickets.json
operator sessions list --json >/app/data/sessions.json
operator sessions show "$(jq -r '.[0].session_id' /app/data/sessions.json)" --json >/app/data/session.json
"""


def test_an_agent_repairs_a_container_through_the_proxy_and_can_do_nothing_else(
    services: dict[str, Any], tmp_path: Path
) -> None:
    """One scripted incident in the product's image, wired as docker-compose.yml says."""
    with running_container() as other, stopped_container() as web, volumes() as names:
        (tmp_path / "operator.toml").write_text(CONFIGURATION.format(web=web))
        (tmp_path / "brain.py").write_text(BRAIN.format(web=web, other=other))
        (tmp_path / "inside.sh").write_text(INSIDE)
        tmp_path.chmod(0o755)
        with proxy(services["docker-proxy"], names, f"start,inspect,logs:{web}") as guard:
            words = flags(services["agent"], names, ANTHROPIC_API_KEY="", OPERATOR_STORE__URL="/app/data/operator.db")
            words += ["-e", "OPERATOR_MODEL__ENGINE=scripted", "-e", "OPERATOR_MODEL__BASE_URL=http://127.0.0.1:18080"]
            words += ["-v", f"{tmp_path}:/app/case:ro", "--entrypoint", "sh"]
            done = docker("run", "--rm", *words, OPERATOR_IMAGE, "/app/case/inside.sh", check=False, timeout=120)
            assert done.returncode == 0, done.stdout + done.stderr
            decisions = docker("logs", guard).stdout
        found = in_image("cat /data/tickets.json /data/session.json; ls /audit", AGENT_IMAGE, *seen(names)).stdout
        assert docker("inspect", "-f", "{{.State.Running}}", web).stdout.strip() == "true"
        assert docker("inspect", "-f", "{{.State.Running}}", other).stdout.strip() == "true"
    decoder = json.JSONDecoder()
    (ticket,), end = decoder.raw_decode(found)
    session, end = decoder.raw_decode(found[end:].lstrip())
    results = [entry["body"] for entry in session["journal"] if entry["entry_type"] == "tool_result"]
    assert (ticket["status"], ticket["reason"]) == ("resolved", "verified"), done.stdout + json.dumps(results)
    whole = json.dumps(session["journal"])
    assert "never allowed" in whole, results
    assert "root:" not in whole
    assert f"REFUSED stop {other}" in decisions
    assert f"REFUSED inspect {other}" in decisions
    assert f"allowed start {web}" in decisions
    assert ".json" in found[-200:], "the audit file is in the volume"


def seen(names: dict[str, str]) -> list[str]:
    return ["-v", f"{names['data']}:/data:ro", "-v", f"{names['./audit_logs']}:/audit:ro"]


@contextlib.contextmanager
def stopped_container() -> Iterator[str]:
    name = f"operator-test-{os.urandom(4).hex()}"
    docker("create", "--init", "--name", name, "--network", "none", "python:3.12-slim", "sleep", "1000")
    try:
        yield name
    finally:
        docker("rm", "-f", "-v", name, check=False)


@contextlib.contextmanager
def proxy(service: dict[str, Any], names: dict[str, str], allow: str) -> Iterator[str]:
    """The service docker-proxy of docker-compose.yml; the name of its container."""
    name = f"operator-test-{os.urandom(4).hex()}"
    command = [word if "--allow" not in word else f"--allow={allow}" for word in service["command"]]
    assert command != service["command"]
    docker("run", "-d", "--name", name, *flags(service, names), OPERATOR_IMAGE, *command)
    try:
        wait_until(lambda: "Serving" in docker("logs", name).stdout, timeout=60)
        yield name
    finally:
        docker("rm", "-f", "-v", name, check=False)


def test_the_proxy_is_alone_with_the_socket(services: dict[str, Any]) -> None:
    service = services["docker-proxy"]
    assert service["network_mode"] == "none"
    assert [name for name, other in services.items() if SOCKET in json.dumps(other)] == ["docker-proxy"]
    assert ":?" in json.dumps(service["command"]), "what is allowed has no default"


def test_the_seed_wiring_is_there_for_who_asks_for_it_loudly() -> None:
    """Row A-007 as it is written, behind a file of its own."""
    text = (ROOT / "docker-compose.raw-socket.yml").read_text()
    assert text.startswith("# DANGER")
    (agent,) = read_yaml("docker-compose.raw-socket.yml")["services"].values()
    assert f"{SOCKET}:{SOCKET}" in agent["volumes"]
    assert "DOCKER_HOST=unix:///var/run/docker.sock" in agent["environment"]
