"""What only the backend docker has to keep: its container, its mounts, its user, and an end with its worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import SandboxError, SandboxUnavailable
from operator_core.sandbox import Limits, Policy, Sandbox, open_sandbox
from operator_core.sandbox.docker.client import LABEL, Docker, explain
from operator_core.sandbox.docker.mounts import Bind, binds, make_points
from operator_core.sandbox.mounts import Mount
from operator_core.sandbox.options import Options
from operator_core.sandbox.owner import is_left_over, owner
from tests.support import Unprivileged, processes_of, wait_until, wait_until_async
from tests.support.docker import docker, running_container
from tests.support.sockets import Forwarder

RUN = f"{random.randrange(10**9):09d}"
Make = Callable[..., Any]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / 'a, "b":c é'
    folder.mkdir()
    return folder


@pytest.fixture
async def make(tmp_path: Path, workspace: Path, docker_image: str) -> AsyncIterator[Make]:
    opened: list[Sandbox] = []

    async def start(**policy: Any) -> Sandbox:
        folder = tmp_path / f"session{len(opened)}"
        options = Options(docker_image=docker_image)
        sandbox = open_sandbox("docker", Policy(workspace, **policy), session_dir=folder, options=options)
        opened.append(sandbox)
        await sandbox.start()
        return sandbox

    yield start
    for sandbox in opened:
        await sandbox.close()


async def out(sandbox: Sandbox, command: str, **options: Any) -> str:
    result = await sandbox.exec(command, **options)
    return (result.stdout.text() + result.stderr.text()).strip()


def containers_of_this_process() -> list[str]:
    return docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}={owner()}").stdout.split()


async def test_the_report_and_the_end(make: Make, tmp_path: Path) -> None:
    sandbox = await make()
    report = sandbox.report()
    assert report.level == "isolated"
    open_ = {name: item for name, item in report.controls.items() if item.state in ("not_enforced", "unavailable")}
    assert not open_
    if os.geteuid() == 0:
        assert report.controls["user"].state == "verified"
        assert report.controls["limits.procs"].state == "verified"
    (container,) = containers_of_this_process()
    await sandbox.close()
    assert not docker("ps", "--all", "--quiet", "--filter", f"id={container}").stdout
    assert not (tmp_path / "session0").exists()


async def test_commands_are_not_root_and_their_files_are_ours(make: Make, workspace: Path) -> None:
    (workspace / "given").write_text("x")
    sandbox = await make()
    assert await out(sandbox, "echo made >new && echo more >>given && mv given moved && id -u") not in ("0", "")
    for name in ("new", "moved"):
        assert (workspace / name).stat().st_uid == os.geteuid()
    status = await out(sandbox, "cat /proc/self/status")
    for line in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
        assert f"{line}:\t{'0' * 16}" in status
    assert "NoNewPrivs:\t1" in status


async def test_nothing_of_the_server_is_within_reach(make: Make) -> None:
    sandbox = await make()
    looks = (
        "for p in /proc/[0-9]*; do cat $p/environ $p/mem; ls $p/fd $p/root; done 2>&1 | grep -v denied | grep -v /self"
    )
    seen = await out(sandbox, f"ls /run/operator/server; {looks}; kill -9 -1; kill -9 1")
    assert "supervisor.py" in seen
    assert "LC_ALL" not in seen
    assert await out(sandbox, "echo x >/run/operator/server/s; ls /run/operator/server/s") != "/run/operator/server/s"
    assert await out(sandbox, "echo alive") == "alive"


async def test_killing_everything_ends_only_commands(make: Make) -> None:
    sandbox = await make()
    job = await sandbox.spawn("echo up; sleep 600")
    await wait_until_async(job.output)
    result = await sandbox.exec("kill -9 -1; echo still here")
    assert result.exit_code in (0, 137)
    assert (await job.wait(10)).exit_code == 137
    assert await out(sandbox, "echo alive") == "alive"


async def test_daemons_end_with_their_call(make: Make) -> None:
    sandbox = await make()
    daemon = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
        f"  os.execvp('sleep', ['sleep', '81.{RUN}'])\n os._exit(0)\ntime.sleep(0.3)"
    )
    await sandbox.write_file("daemon.py", daemon.encode())
    result = await sandbox.exec("python3 daemon.py; echo done")
    assert (result.stdout.text(), result.background) == ("done\n", 1)
    assert not processes_of(f"81.{RUN}")


async def test_a_crowd_that_grows_is_ended(make: Make) -> None:
    sandbox = await make(limits=Limits(procs=30, grace_s=0.1, jobs=0))
    await sandbox.write_file("grow.sh", f"grow() {{ sleep 82.{RUN} & grow & grow; }}; grow".encode())
    result = await sandbox.exec("bash grow.sh 2>/dev/null", timeout=1)
    assert result.timed_out
    wait_until(lambda: not processes_of(f"82.{RUN}"), 60)
    assert await out(sandbox, "echo alive") == "alive"


async def test_jobs_are_servers_for_the_next_command(make: Make) -> None:
    sandbox = await make()
    await sandbox.spawn("mkdir -p ~/www; echo hello >~/www/index.html; cd ~/www; python3 -m http.server 8000")
    ask = "for n in $(seq 100); do curl -sf http://127.0.0.1:8000/ && exit; sleep 0.05; done; exit 1"
    assert await out(sandbox, ask) == "hello"


async def test_a_socket_in_the_container_is_served_from_here(make: Make) -> None:
    sandbox = await make()
    listener = await sandbox.listen()
    port = listener.getsockname()[1]
    asking = asyncio.create_task(
        sandbox.exec(f"exec 4<>/dev/tcp/127.0.0.1/{port}; echo hi >&4; read -r x <&4; echo $x")
    )
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listener)
    with connection:
        assert await loop.sock_recv(connection, 10) == b"hi\n"
        await loop.sock_sendall(connection, b"from outside\n")
        assert (await asking).stdout.text() == "from outside\n"
    with pytest.raises(SandboxError, match=f"Port {port}"):
        await sandbox.listen(port)


async def test_the_way_out_is_the_proxy(make: Make) -> None:
    answered = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sandbox = await make(network="allowlist", allow_hosts=(f"127.0.0.1:{port}",))
    assert sandbox.report().controls["network"].state == "verified"
    assert (await sandbox.exec(f"curl -s --noproxy '*' http://127.0.0.1:{port}/")).exit_code == 7
    assert await out(sandbox, f"curl -s --noproxy '' http://127.0.0.1:{port}/") == "hi"
    assert "not among the allowed hosts" in await out(sandbox, "curl -s http://example.org/")
    assert len(answered) == 1
    server.close()
    await server.wait_closed()


async def test_places(make: Make, workspace: Path, tmp_path: Path) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)  # noqa: ASYNC221
    (workspace / "hidden").mkdir()
    (workspace / "hidden" / "x").write_text("secret-1")
    (workspace / ".env").write_text("secret-2")
    secret = tmp_path / "token"
    secret.write_text("secret-3")
    secret.chmod(0o600)
    (tmp_path / "elsewhere").write_text("secret-4")
    sandbox = await make(
        readable=(tmp_path / "read",),
        writable=(tmp_path / "write",),
        masked=("hidden", ".env"),
        secret_files={"token": secret},
    )
    assert await out(sandbox, f"cat {tmp_path}/read/file {tmp_path}/write/file") == "readwrite"
    assert "Read-only" in await out(sandbox, f"touch {tmp_path}/read/new")
    assert await out(sandbox, f"echo changed >{tmp_path}/write/file") == ""
    assert (tmp_path / "write" / "file").read_text() == "changed\n"
    assert await out(sandbox, "cat .env hidden/x; ls hidden") == "cat: hidden/x: No such file or directory"
    assert await out(sandbox, "cat /run/secrets/token") == "secret-3"
    assert "No such file" in await out(sandbox, f"cat {tmp_path}/elsewhere")
    for attack in ("mv .git x", "echo x >.git/hooks/post-commit", "echo x >>.git/config", "rm -rf .git/hooks"):
        assert (await sandbox.exec(attack)).exit_code != 0, attack
    git = "git -c user.name=a -c user.email=a@b"
    assert (await sandbox.exec(f"touch f; git add f; {git} commit -qm x; git checkout -qb other")).exit_code == 0


async def test_a_session_inside_of_its_workspace(tmp_path: Path, docker_image: str) -> None:
    folder = tmp_path / ".session"
    sandbox = open_sandbox("docker", Policy(tmp_path), session_dir=folder, options=Options(docker_image=docker_image))
    await sandbox.start()
    result = await sandbox.exec("seq 20000; ls -A .session; touch .session/x; rm -rf .session/*")
    assert result.stdout.spill is not None
    assert result.stdout.tail.decode().split()[-2:] == ["20000", "out"]
    assert (await sandbox.exec(f"tail -n 1 {result.stdout.spill}")).exit_code == 0
    await sandbox.close()
    assert not os.listdir(tmp_path)


async def test_a_copy_looks_like_the_original(make: Make, workspace: Path, tmp_path: Path) -> None:
    (workspace / "f").write_text("copy")
    sandbox = await make(shown_at=tmp_path / "original")
    assert await out(sandbox, "pwd; cat f") == f"{tmp_path}/original\ncopy"
    assert (await sandbox.read_file(f"{tmp_path}/original/f")).data == b"copy"


HOG = """
import os, time
for n in range(8):
    if not os.fork():
        x = bytearray(40 << 20)
        time.sleep(1.5)
        os.write(1, b"survived\\n")
        os._exit(0)
time.sleep(1.5)
"""


async def test_limits_of_the_container(make: Make) -> None:
    sandbox = await make(limits=Limits(memory=100 << 20, procs=20, jobs=0, shm=1 << 20))
    await sandbox.write_file("hog.py", HOG.encode())
    result = await sandbox.exec("python3 hog.py", timeout=20)
    assert result.stdout.text().count("survived") <= 2
    assert "No space" in await out(sandbox, "head -c 2000000 /dev/zero >/dev/shm/x")
    assert await out(sandbox, "echo alive") == "alive"


WORKER = """
import asyncio, sys
from pathlib import Path
from operator_core.sandbox import Policy, open_sandbox
from operator_core.sandbox.options import Options
async def main():
    base = Path(sys.argv[1])
    options = Options(docker_image=sys.argv[2])
    sandbox = open_sandbox("docker", Policy(base / "ws"), session_dir=base / "s", options=options)
    await sandbox.start()
    await sandbox.spawn(f"setsid sleep {sys.argv[3]}")
    await sandbox.exec(f"(setsid sleep {sys.argv[3]} &); touch ready; sleep {sys.argv[3]}")
asyncio.run(main())
"""


def test_nothing_outlives_the_worker(tmp_path: Path, docker_image: str) -> None:
    (tmp_path / "ws").mkdir()
    marker = f"83.{RUN}"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), docker_image, marker])
    try:
        wait_until((tmp_path / "ws" / "ready").exists, 30)
        wait_until(lambda: len(processes_of(marker)) >= 4)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    wait_until(lambda: not processes_of(marker), 60)
    mine = ["ps", "--all", "--quiet", "--filter", f"label={LABEL}", "--filter", f"volume={tmp_path}/ws"]
    wait_until(lambda: not docker(*mine).stdout, 10)


def test_a_worker_that_is_killed_while_it_starts(tmp_path: Path, docker_image: str) -> None:
    (tmp_path / "ws").mkdir()
    marker = f"86.{RUN}"
    for tenth in range(2, 12, 2):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), docker_image, marker])
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(tenth / 10)
        worker.kill()
        worker.wait()

    def left() -> list[str]:
        listed = docker("ps", "--all", "--filter", f"label={LABEL}", "--format", f'{{{{.Label "{LABEL}"}}}}').stdout
        return [line for line in listed.splitlines() if is_left_over(line)]

    wait_until(lambda: not left() and not processes_of(marker), 20, every=0.2)


def test_containers_of_dead_workers_are_swept(docker_image: str) -> None:
    room = owner().split("-")[0]
    program = Docker("docker")
    Docker._swept.clear()
    with (
        running_container("--label", f"{LABEL}={owner()}") as mine,
        running_container("--label", f"{LABEL}={room}-4194303-1") as dead,
        running_container("--label", f"{LABEL}=1{room}-4194303-1") as elsewhere,
    ):
        assert dead in program.sweep()
        names = docker("ps", "--all", "--format", "{{.Names}}").stdout.split()
        assert mine in names
        assert elsewhere in names
        assert dead not in names
        assert program.sweep() == []


AS_USER = """
import asyncio, json, os, sys
from pathlib import Path
os.environ["DOCKER_HOST"] = "unix://" + sys.argv[1]
from operator_core.errors import SandboxUnavailable
from operator_core.sandbox import Policy, open_sandbox
from operator_core.sandbox.options import Options
async def main():
    base = Path(os.environ["HOME"])
    (base / "ws").mkdir()
    options = Options(docker_image=sys.argv[2])
    sandbox = open_sandbox("docker", Policy(base / "ws"), session_dir=base / "s", options=options)
    try:
        report = await sandbox.start()
    except SandboxUnavailable as error:
        print(json.dumps([error.reason, error.remedy]))
        return
    done = await sandbox.exec("touch made; mkdir -p ~/a /tmp/b; chmod 0 ~/a; id -u; echo x >/dev/stderr")
    await sandbox.close()
    print(json.dumps([report.level, done.stdout.text(), done.stderr.text(), os.listdir(base)]))
asyncio.run(main())
"""


def test_as_an_ordinary_user(unprivileged: Unprivileged, docker_image: str) -> None:
    with Forwarder(unprivileged.folder / "docker.sock", Path("/var/run/docker.sock")) as socket:
        done = unprivileged.python(AS_USER, str(socket), docker_image)
        assert done.returncode == 0, done.stderr
        level, output, error, left = json.loads(done.stdout)
        assert (level, output, error) == ("isolated", f"{unprivileged.uid}\n", "x\n")
        assert sorted(left) == ["docker.sock", "ws"]
        assert (unprivileged.folder / "ws" / "made").stat().st_uid == unprivileged.uid


def test_a_socket_that_is_not_ours(unprivileged: Unprivileged, docker_image: str) -> None:
    """Requirement A-008."""
    with Forwarder(unprivileged.folder / "docker.sock", Path("/var/run/docker.sock"), mode=0o600) as socket:
        done = unprivileged.python(AS_USER, str(socket), docker_image)
        reason, remedy = json.loads(done.stdout)
    assert "permission denied" in reason
    assert "as root, or add its user to the group" in remedy


@pytest.mark.parametrize(
    ("change", "image", "reason", "remedy"),
    [({"PATH": "/nowhere"}, "x", "docker is not installed", "install docker"),
     ({"DOCKER_HOST": "unix:///nowhere.sock"}, "x", "Cannot connect", "start the daemon"),
     ({}, "operator-no-such-image", "No such image|Unable to find image", "operator-no-such-image"),
     ({}, None, "no image is configured", "docker_image")],
)  # fmt: skip
async def test_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker_image: str,
    change: dict[str, str], image: str | None, reason: str, remedy: str,
) -> None:  # fmt: skip
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    sandbox = open_sandbox("docker", Policy(tmp_path), session_dir=tmp_path / "s", options=Options(docker_image=image))
    with pytest.raises(SandboxUnavailable, match=reason) as caught:
        await sandbox.start()
    assert remedy in caught.value.remedy
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("change", "reason", "remedy"),
    [("ln -sf /bin/false /usr/local/bin/python3", "server in it did not connect", "--entrypoint python3"),
     ("rm /bin/bash", "/bin/bash", "an image with Python 3.9 or later and bash")],
)  # fmt: skip
async def test_an_image_that_cannot_do_it(
    tmp_path: Path, docker_image: str, change: str, reason: str, remedy: str
) -> None:
    name = f"operator-test-{RUN}"
    docker("run", "--name", name, "--network", "none", "python:3.12-slim", "/bin/sh", "-c", change)
    try:
        docker("commit", name, name)
        sandbox = open_sandbox(
            "docker", Policy(tmp_path), session_dir=tmp_path / "s", options=Options(docker_image=name)
        )
        with pytest.raises(SandboxUnavailable, match=reason) as caught:
            await sandbox.start()
        assert remedy in caught.value.remedy
    finally:
        docker("rm", "-f", name)
        docker("rmi", "-f", name, check=False)


async def test_a_job_that_fills_the_room_with_processes(make: Make) -> None:
    """The next command still starts, says what is wrong, and the session goes on after it."""
    sandbox = await make(limits=Limits(procs=20, jobs=1))
    fork = "  try:\n    os.fork() or time.sleep(60)\n  except OSError: os.write(1, b'full')\n"
    fill = f"import os, time\nwhile True:\n{fork}  time.sleep(0.001)\n"
    await sandbox.write_file("fill.py", fill.encode())
    job = await sandbox.spawn("python3 fill.py")
    await wait_until_async(lambda: b"full" in job.output())
    assert (await sandbox.exec("echo builtin")).stdout.text() == "builtin\n"
    assert "Resource temporarily unavailable" in (await sandbox.exec("trap 'exit 9' CHLD; (true)")).stderr.text()
    await job.kill()
    assert await out(sandbox, "/bin/echo alive") == "alive"


async def test_a_container_that_is_gone(make: Make) -> None:
    sandbox = await make()
    running = asyncio.create_task(sandbox.exec(f"echo begun; sleep 85.{RUN}"))
    await wait_until_async(lambda: processes_of(f"85.{RUN}"))
    (container,) = containers_of_this_process()
    docker("rm", "-f", container)
    result = await running
    assert (result.exit_code, result.reason, result.stdout.text()) == (None, "exited", "begun\n")
    with pytest.raises(SandboxError, match=r"The sandbox has ended .*, so the command has not run"):
        await sandbox.exec("echo x")


def test_reasons_and_remedies() -> None:
    text = 'docker: Error response: exec: "python3": executable file not found in $PATH: unknown.'
    assert "Python 3.9" in explain("docker", "alpine", text)[1]
    reason, remedy = explain("podman", "x", "")
    assert reason == "podman failed with `nothing`"
    assert remedy.startswith("run `podman run --rm x true`")


def test_mounts(tmp_path: Path) -> None:
    found = binds([Mount(Path("/a"), "/b", True), Mount(None, "/c")], empty=tmp_path)
    assert found == [Bind("/a", "/b", True), Bind(f"{tmp_path}/1", "/c", False)]
    make_points([*found, Bind("/usr", "/c/d/e", False), Bind("/etc/passwd", "/c/f", False)], [tmp_path / "1"])
    assert (tmp_path / "1" / "d" / "e").is_dir()
    assert (tmp_path / "1" / "f").is_file()
    assert Bind('/a,"b"', "/x", True).option() == ["--mount", 'type=bind,"source=/a,""b""",target=/x']


DOCTOR = """
import asyncio, json, os, sys
os.environ["DOCKER_HOST"] = "unix://" + sys.argv[1]
from operator_core.cli.doctor import look_at_docker
from operator_core.cli.finding import Finding
from operator_core.config import Settings
found = {}
for name, sandbox in (("plain", {}), ("configured", {"docker_image": sys.argv[2]})):
    settings = Settings(sandbox=sandbox)
    answer = asyncio.run(look_at_docker(settings, Finding("sandbox", "ok", "", {"backend": "bubblewrap 0.8.0"})))
    found[name] = [item._asdict() for item in answer]
print(json.dumps(found))
"""


@pytest.mark.parametrize(("mode", "states"), [(0o600, ["skipped", "warning"]), (0o666, [None, "ok"])])
def test_doctor_looks_at_the_socket(
    unprivileged: Unprivileged, docker_image: str, mode: int, states: list[str | None]
) -> None:
    """Requirement A-008: who may not use the daemon is told what to do, and a fallback that would fail is said so."""
    if unprivileged.uid == 0:
        pytest.skip("root may use every socket")
    with Forwarder(unprivileged.folder / "docker.sock", Path("/var/run/docker.sock"), mode=mode) as path:
        done = unprivileged.python(DOCTOR, str(path), docker_image)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, state in zip(("plain", "configured"), states, strict=True):
        assert [item["state"] for item in found[name]] == ([state] if state else []), found
        if state in ("skipped", "warning"):
            assert "permission denied" in found[name][0]["detail"]
            assert "as root, or add its user to the group" in found[name][0]["detail"]
