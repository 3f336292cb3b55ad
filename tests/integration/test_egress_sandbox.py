"""The way out of a real sandbox: its proxy and nothing else, with its decisions in the journal's hands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operator_core.errors import ConfigError
from operator_core.sandbox import Policy, Sandbox, open_sandbox
from operator_core.sandbox.options import Decision, Options
from tests.support.egress import Origin


class Backend(NamedTuple):
    name: str
    image: str | None = None


@pytest.fixture(params=["bubblewrap", "docker"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "docker":
        return Backend("docker", request.getfixturevalue("docker_image"))
    request.getfixturevalue("require_bubblewrap")
    return Backend("bubblewrap")


@asynccontextmanager
async def sandboxed(backend: Backend, folder: Path, **policy: Any) -> AsyncIterator[tuple[Sandbox, list[Decision]]]:
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    decisions: list[Decision] = []

    async def note(decision: Decision) -> None:
        decisions.append(decision)

    box = open_sandbox(
        backend.name,
        Policy(workspace, network="allowlist", **policy),
        session_dir=folder / "session",
        options=Options(on_egress=note, docker_image=backend.image),
    )
    try:
        await box.start()
        yield box, decisions
    finally:
        await box.close()


async def said(box: Sandbox, command: str) -> str:
    done = await box.exec(command, timeout=30)
    return (done.stdout.text() + done.stderr.text()).strip()


async def test_commands_reach_what_is_allowed_and_nothing_else(tmp_path: Path, backend: Backend) -> None:
    async with Origin() as origin:
        url = f"http://127.0.0.1:{origin.port}/"
        async with sandboxed(backend, tmp_path, allow_hosts=(f"127.0.0.1:{origin.port}",)) as (box, decisions):
            assert box.report().controls["network"].state == "verified"
            assert decisions == [], "what the self-test asks is nobody's decision"
            assert await said(box, f"curl -sS -m 10 {url}") == "hello"
            assert await said(box, f"curl -sS -m 10 -p {url}") == "hello"
            python = f"import urllib.request as u; print(u.urlopen('{url}', timeout=10).read().decode())"
            assert await said(box, f'python3 -c "{python}"') == "hello"
            assert "evil.example:80 is not among the allowed hosts" in await said(box, "curl -sS http://evil.example/")
            assert "response 403" in await said(box, "curl -sS https://evil.example/")
            # Who goes around the proxy finds nobody: neither the service, nor a name server, nor a route.
            assert "(7)" in await said(box, f"curl -sS -m 10 --noproxy '*' {url}")
            assert "(6)" in await said(box, "curl -sS -m 10 --noproxy '*' http://example.org/")
            assert await said(box, "cat /proc/net/route | wc -l") == "1"
        assert origin.connections == 3
    methods = [(d.method, d.allowed) for d in decisions]
    assert methods == [("GET", True), ("CONNECT", True), ("GET", True), ("GET", False), ("CONNECT", False)]


async def test_other_ways_to_the_host_are_closed(tmp_path: Path, backend: Backend) -> None:
    async with Origin() as origin:
        attempts = [
            f"curl -sS -m 5 http://localhost:{origin.port}/",
            f"curl -sS -m 5 --proxy $HTTP_PROXY --noproxy '' http://localhost:{origin.port}/",
            f"curl -sS -m 5 --proxy $HTTP_PROXY --noproxy '' http://2130706433:{origin.port}/",
            f"curl -sS -m 5 --proxy $HTTP_PROXY --noproxy '' 'http://[::ffff:127.0.0.1]:{origin.port}/'",
            f"curl -sS -m 5 --proxy $HTTP_PROXY --noproxy '' http://0:{origin.port}/",
            f"curl -sS -m 5 --socks5 127.0.0.1:3128 http://127.0.0.1:{origin.port}/",
            f"printf 'GET / HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n' > /dev/tcp/127.0.0.1/{origin.port}",
            "curl -sS -m 5 --proxy $HTTP_PROXY --noproxy '' http://169.254.169.254/latest/meta-data/",
        ]
        async with sandboxed(backend, tmp_path, allow_hosts=("example.org",)) as (box, decisions):
            for attempt in attempts:
                assert "hello" not in await said(box, attempt)
    assert origin.connections == 0
    assert not any(d.allowed for d in decisions)


async def test_a_server_of_the_session_is_reached_without_the_proxy(tmp_path: Path, backend: Backend) -> None:
    # The same port outside is allowed, so that the two could be taken for each other.
    async with (
        Origin() as origin,
        sandboxed(backend, tmp_path, allow_hosts=(f"127.0.0.1:{origin.port}",)) as (box, decisions),
    ):
        await box.write_file("page", b"inside")
        await box.spawn(f"python3 -m http.server {origin.port}")
        inside = f"until curl -s http://localhost:{origin.port}/page; do sleep 0.1; done"
        assert await said(box, inside) == "inside"
        assert await said(box, f"curl -sS http://127.0.0.1:{origin.port}/page") == "hello"
        assert [d.host for d in decisions] == ["127.0.0.1"]


async def test_background_jobs_have_the_way_out_too(tmp_path: Path, backend: Backend) -> None:
    async with (
        Origin() as origin,
        sandboxed(backend, tmp_path, allow_hosts=(f"127.0.0.1:{origin.port}",)) as (box, decisions),
    ):
        job = await box.spawn(f"curl -sS http://127.0.0.1:{origin.port}/")
        assert (await job.wait(20)).exit_code == 0
        assert job.output() == b"hello"
    assert len(decisions) == 1


async def test_a_secret_file_is_where_its_phase_looks_and_nowhere_else(tmp_path: Path, backend: Backend) -> None:
    (tmp_path / "token").write_text("canary-5f3c9e1b")
    (tmp_path / "token").chmod(0o600)
    async with sandboxed(backend, tmp_path, secret_files={"forge": tmp_path / "token"}) as (box, _):
        assert await said(box, "cat /run/secrets/forge") == "canary-5f3c9e1b"
        assert "canary" not in await said(box, "echo x >/run/secrets/forge; rm -f /run/secrets/forge; ls /run/secrets")
        assert await said(box, "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c canary") == "0"
    assert (tmp_path / "token").read_text() == "canary-5f3c9e1b"
    async with sandboxed(backend, tmp_path) as (box, _):
        assert "No such file" in await said(box, "cat /run/secrets/forge")


async def test_hosts_that_mean_nothing_stop_the_session(tmp_path: Path, backend: Backend) -> None:
    with pytest.raises(ConfigError, match="is no host that could be allowed"):
        async with sandboxed(backend, tmp_path, allow_hosts=("http://example.org/",)):
            pass


async def test_what_the_journal_needs_is_json(tmp_path: Path, backend: Backend) -> None:
    async with sandboxed(backend, tmp_path, allow_hosts=("example.org",)) as (box, decisions):
        await said(box, "curl -sS http://evil.example/ $'http://\\xff/'")
    assert json.loads(json.dumps([d._asdict() for d in decisions]))[0]["host"] == "evil.example"
