"""Probes against real servers and real processes, also those that mean harm."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from operator_core.model.invariant import CommandProbe, HttpProbe, Invariant, Probe, PromQLProbe, Subject, TcpProbe
from operator_core.probes import Observation, look_at, observe
from tests.support import free_port, processes_of, wait_until_async

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[int]:
    """A server that answers each connection with ``handler`` after the request's head was read."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
        writer.close()
        tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answer(body: bytes | str, status: int = 200, headers: str = "") -> Handler:
    data = body.encode() if isinstance(body, str) else body

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n{headers}\r\n"
        writer.write(head.encode() + data)
        await writer.drain()

    return handler


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"ok": 1, "x": "')
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def trickle_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"ok": 1, "x": "')
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"ok": 1}')
    await writer.drain()


def http(port: int, *, value: str | None = None, timeout_s: float = 5.0, **more: object) -> HttpProbe:
    return HttpProbe.model_validate(
        {"type": "http", "url": f"http://127.0.0.1:{port}/health", "value": value, "timeout_s": timeout_s, **more}
    )


async def look(probe: Probe, expect: str | None = None, **more: object) -> Observation:
    invariant = Invariant.model_validate({"name": "n", "probe": probe, "expect": expect, **more})
    return await observe(invariant)


async def look_served(
    handler: Handler, expect: str | None = None, on_error: str | None = None, **probe: object
) -> Observation:
    async with serve(handler) as port:
        return await look(http(port, **probe), expect, on_error=on_error)  # type: ignore[arg-type]


@pytest.mark.parametrize("handler", [silence, trickle, trickle_head], ids=lambda h: h.__name__)
@pytest.mark.parametrize(("value", "light"), [(None, "red"), ("ok", "unknown")])
async def test_a_server_that_never_ends_its_answer_costs_the_timeout_and_no_more(
    handler: Handler, value: str | None, light: str
) -> None:
    started = time.monotonic()
    seen = await look_served(handler, value=value, timeout_s=0.4)
    assert 0.3 < time.monotonic() - started < 2
    assert seen.light == light
    assert seen.value is None
    assert "0.4 s" in seen.detail


async def test_an_endless_body_is_read_to_a_limit() -> None:
    started = time.monotonic()
    seen = await look_served(endless, "== 1", value="ok", timeout_s=10)
    assert time.monotonic() - started < 5
    assert seen.light == "unknown"
    assert "1024 KiB" in seen.detail
    assert len(seen.raw) <= 2000


async def test_an_answer_that_packs_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b'{"ok": 1}' + b" " * (50 << 20))
    seen = await look_served(answer(bomb, headers="Content-Encoding: gzip\r\n"), "== 1", value="ok")
    assert seen.light == "unknown"
    assert "compressed" in seen.detail


@pytest.mark.parametrize(
    ("body", "expect", "light", "value"),
    [
        ('{"a": [{"b": 10}]}', "== 10", "green", 10),
        ('{"a": [{"b": 11}]}', "== 10", "red", 11),
        ('{"a": [{"b": 0}]}', "== 10", "red", 0),
        ('{"a": [{"b": "ok"}]}', "=~ ^ok$", "green", "ok"),
        ('{"a": [{"b": true}]}', "== true", "green", True),
        ('{"a": [{"b": null}]}', "== null", "green", None),
        ('{"a": [{"b": []}]}', "== []", "green", "[]"),
        ('{"a": [{"b": 1}]}', None, "green", 1),
        ('{"a": [{"b": "many"}]}', "< 10", "unknown", "many"),
        ('{"a": []}', "== 10", "unknown", None),
        ('{"a": [{"b": NaN}]}', "!= 10", "unknown", None),
        ("<html>", "== 10", "unknown", None),
        ("", "== 10", "unknown", None),
        ("[" * 100_000, "== 10", "unknown", None),
        ('{"a": [{"b": ' + "9" * 5000 + "}]}", "== 10", "unknown", None),
    ],
)
async def test_a_value_is_taken_from_the_answer_or_nothing_is_known(
    body: str, expect: str | None, light: str, value: object
) -> None:
    seen = await look_served(answer(body), expect, value="a[0].b")
    assert (seen.light, seen.value) == (light, value), seen
    assert seen.at.tzinfo is not None
    json.dumps(seen.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("status", "probe", "expect", "light"),
    [
        (200, {}, None, "green"),
        (503, {}, None, "red"),
        (302, {}, None, "red"),
        (204, {"status": [200, 204]}, None, "green"),
        (503, {"status": []}, None, "green"),
        (404, {}, "< 500", "green"),
        (500, {}, "< 500", "red"),
        (200, {"value": "x"}, "== 1", "green"),
        (500, {"value": "x"}, "== 1", "unknown"),
        (500, {"value": "x", "status": []}, "== 1", "green"),
    ],
)
async def test_a_status_is_the_value_or_decides_whether_there_is_one(
    status: int, probe: dict[str, object], expect: str | None, light: str
) -> None:
    seen = await look_served(answer('{"x": 1}', status, "Location: /elsewhere\r\n"), expect, **probe)
    assert seen.light == light, seen


async def test_an_answer_that_breaks_off_is_no_answer() -> None:
    assert (await look_served(hang_up, "== 1", value="ok")).light == "unknown"
    assert (await look_served(hang_up)).light == "red"


async def test_on_error_says_what_a_failed_look_means_and_nothing_else() -> None:
    port = free_port()
    assert (await look(http(port))).light == "red"
    assert (await look(http(port), on_error="unknown")).light == "unknown"
    assert (await look(http(port, value="x"), "== 1")).light == "unknown"
    assert (await look(http(port, value="x"), "== 1", on_error="red")).light == "red"
    assert (await look_served(answer('{"x": 2}'), "== 1", on_error="unknown", value="x")).light == "red"
    assert (await look_served(answer("no", 503), on_error="unknown")).light == "red"


async def test_the_request_is_what_was_configured_and_ignores_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_port()}")
    asked: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readexactly(4))
        await answer("{}")(reader, writer)

    assert (await look_served(handler, method="POST", body="ping")).light == "green"
    assert asked == [b"ping"]


async def test_no_file_descriptors_is_our_fault_and_not_an_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serve(answer("{}")) as port:
        await look(http(port))  # everything that is imported late has been imported
        taken = [os.open("/dev/null", os.O_RDONLY)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
        try:
            seen = [await look(http(port)), await look(TcpProbe(type="tcp", port=port))]
            command = await look(CommandProbe(type="command", command="true"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.close(taken[0])
        assert [s.light for s in [*seen, command]] == ["unknown"] * 3
        assert (await look(http(port))).light == "green"


# ---- TCP


async def test_a_port_accepts_or_does_not() -> None:
    async with serve(silence) as port:
        seen = await look(TcpProbe(type="tcp", port=port))
        assert (seen.light, seen.value) == ("green", True)
    seen = await look(TcpProbe(type="tcp", port=free_port()))
    assert (seen.light, seen.value) == ("red", None)
    assert "no connection" in seen.detail


# ---- PromQL


def vector(*values: object) -> str:
    result = [{"metric": {"i": str(i)}, "value": [1.0, v]} for i, v in enumerate(values)]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def scalar(value: str) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "scalar", "result": [1.0, value]}})


@pytest.mark.parametrize(
    ("body", "status", "light"),
    [
        (vector("0.2"), 200, "green"),
        (vector("0.9"), 200, "red"),
        (vector("+Inf"), 200, "red"),
        (scalar("0.2"), 200, "green"),
        (scalar("7"), 200, "red"),
        (vector(), 200, "unknown"),
        (vector("0.1", "0.2"), 200, "unknown"),
        (vector("NaN"), 200, "unknown"),
        (vector("0.2"), 500, "unknown"),
        ('{"status": "error", "error": "bad query"}', 200, "unknown"),
        ('{"status": "success", "data": {"resultType": "matrix", "result": []}}', 200, "unknown"),
        ('{"status": "success"}', 200, "unknown"),
        ('["success"]', 200, "unknown"),
        ("not json", 200, "unknown"),
    ],
)
async def test_only_one_sample_of_a_good_answer_is_a_value(body: str, status: int, light: str) -> None:
    """A missing series is not zero, and zero would have been healthy (D-27)."""
    async with serve(answer(body, status)) as port:
        seen = await look(PromQLProbe(type="promql", url=f"http://127.0.0.1:{port}", query="q"), "< 0.5")
    assert seen.light == light, seen
    json.dumps(seen.to_dict(), allow_nan=False)


async def test_the_query_reaches_the_server_as_it_is() -> None:
    lines: list[bytes] = []
    server = await asyncio.start_server(lambda r, w: _note(r, w, lines), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        query = 'sum(rate(x{a="b c"}[5m])) > 1 & 2'
        await look(PromQLProbe(type="promql", url=f"http://127.0.0.1:{port}/prom/", query=query), "< 1")
    from urllib.parse import parse_qs, urlsplit

    parts = urlsplit(lines[0].split()[1].decode())
    assert parts.path == "/prom/api/v1/query"
    assert parse_qs(parts.query) == {"query": [query]}


async def _note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lines: list[bytes]) -> None:
    lines.append(await reader.readline())
    writer.close()


# ---- commands


def command(text: str, timeout_s: float = 10.0, value: str = "exit_code") -> CommandProbe:
    return CommandProbe.model_validate({"type": "command", "command": text, "timeout_s": timeout_s, "value": value})


@pytest.mark.parametrize(
    ("text", "expect", "light", "value"),
    [
        ("true", None, "green", 0),
        ("exit 1", None, "red", 1),
        ("exit 7", "== 7", "green", 7),
        ("echo blind >&2; exit 3", None, "unknown", None),
        ("kill -9 $$", None, "unknown", None),
    ],
)
async def test_an_exit_code_is_a_value_except_the_one_that_says_could_not_look(
    text: str, expect: str | None, light: str, value: object
) -> None:
    seen = await look(command(text), expect)
    assert (seen.light, seen.value) == (light, value), seen


@pytest.mark.parametrize(
    ("text", "expect", "light"),
    [
        ("echo ' 10 '", "== 10", "green"),
        ("echo 11", "== 10", "red"),
        ("echo 10; exit 1", "== 10", "unknown"),
        ("echo 10; exit 3", "== 10", "unknown"),
        ("head -c 70000 /dev/zero | tr '\\0' x", "=~ x", "unknown"),
    ],
)
async def test_what_a_command_prints_is_a_value_when_it_succeeds(text: str, expect: str, light: str) -> None:
    seen = await look(command(text, value="stdout"), expect)
    assert seen.light == light, seen


async def test_the_reason_of_a_failed_look_is_shown() -> None:
    assert "no such table" in (await look(command("echo 'no such table' >&2; exit 3"))).detail


async def test_a_command_that_hangs_is_killed_with_everything_it_started() -> None:
    marker = f"probe-{os.getpid()}-{time.monotonic_ns()}"
    started = time.monotonic()
    seen = await look(command(f"sleep 300.{os.getpid()} & exec -a {marker} sleep 300", timeout_s=0.5))
    assert time.monotonic() - started < 4
    assert seen.light == "unknown"
    await wait_until_async(lambda: not processes_of(marker), what="the end of the command")
    await wait_until_async(lambda: not processes_of(f"300.{os.getpid()}"), what="the end of its child")


async def test_a_child_that_keeps_the_output_open_does_not_hold_the_look() -> None:
    number = f"301.{os.getpid()}"
    started = time.monotonic()
    seen = await look(command(f"sleep {number} & echo 10", value="stdout"), "== 10")
    assert time.monotonic() - started < 4
    assert (seen.light, seen.value) == ("green", "10")
    await wait_until_async(lambda: not processes_of(number), what="the end of the child")


async def test_endless_output_ends() -> None:
    started = time.monotonic()
    seen = await look(command("yes", timeout_s=20))
    assert time.monotonic() - started < 10
    assert seen.light == "unknown"


async def test_a_command_sees_a_clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_CANARY", "seen")
    invariant = Invariant(name="n", probe=command('echo "$MY_CANARY|$GIVEN|$PWD"', value="stdout"), expect="=~ .")
    seen = await observe(invariant, cwd=tmp_path, env={"GIVEN": "given"})
    assert seen.value == f"|given|{tmp_path}"
    assert str(tmp_path) in seen.how


async def test_a_folder_that_is_not_there_is_a_failed_look(tmp_path: Path) -> None:
    seen = await observe(Invariant(name="n", probe=command("true")), cwd=tmp_path / "missing")
    assert seen.light == "unknown"
    assert "missing" in seen.detail


async def test_a_look_can_be_cancelled_and_leaves_nothing() -> None:
    number = f"302.{os.getpid()}"
    task = asyncio.create_task(look(command(f"sleep {number}")))
    await wait_until_async(lambda: processes_of(number), what="the command")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until_async(lambda: not processes_of(number), what="the end of the command")


async def test_a_command_does_not_load_what_an_agent_left_in_the_workspace(tmp_path: Path) -> None:
    """It runs outside of the sandbox: with the workspace as its folder, python would import the agent's module."""
    (tmp_path / "json.py").write_text("import os; open(os.environ['WORKSPACE'] + '/owned', 'w').close()")
    probe = CommandProbe(type="command", command="python3 -c 'import json'")
    subject = Subject(name="s", workspace=tmp_path, invariant=(Invariant(name="n", probe=probe),))
    seen = await look_at(subject, subject.invariant[0])
    assert (seen.light, (tmp_path / "owned").exists()) == ("green", False)
