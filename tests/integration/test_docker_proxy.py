"""The docker proxy over real sockets: what reaches a daemon, whatever the caller sends.

The daemon here writes down every byte that it gets and answers as docker does, so that the witness is not the proxy.
The same is tried on a real daemon in ``test_docker_proxy_daemon.py``.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operator_core.errors import ConfigError
from operator_core.safety.docker_proxy import Decision, DockerProxy
from operator_core.safety.docker_rules import Rules
from operator_core.safety.unix_socket import listen_unix
from tests.support import run_operator, wait_until_async

WEB, OTHER, MIGHTY = ("1" * 64, "2" * 64, "3" * 64)
EXEC = "e" * 64
NAMES = {WEB: "web", OTHER: "other", MIGHTY: "mighty"}
PREFIXES = {"web": WEB, WEB: WEB, WEB[:12]: WEB, "other": OTHER, OTHER: OTHER, OTHER[:12]: OTHER, "mighty": MIGHTY}
ALLOWED = ("restart,logs,exec:web,mighty", "top:web")

# What the daemon may be asked at most, with these rules.
EXPECTED = re.compile(
    r"(GET|HEAD) (/v1\.\d+)?/_ping"
    r"|GET (/v1\.\d+)?/version"
    r"|GET (/v1\.\d+)?/containers/json(\?[a-z0-9=&%A-Z+]*)?"
    r"|GET (/v1\.\d+)?/containers/[A-Za-z0-9][A-Za-z0-9_.-]{0,127}/json(\?size=\w*)?"
    rf"|POST (/v1\.\d+)?/containers/({WEB}|{MIGHTY})/restart(\?[a-zA-Z0-9=&-]*)?"
    rf"|GET (/v1\.\d+)?/containers/({WEB}|{MIGHTY})/logs(\?[a-zA-Z0-9=&.%:+-]*)?"
    rf"|GET (/v1\.\d+)?/containers/{WEB}/top(\?ps_args=[A-Za-z-]*)?"
    rf"|POST (/v1\.\d+)?/containers/{WEB}/exec"
    rf"|(POST|GET) (/v1\.\d+)?/exec/{EXEC}/(start|json|resize)(\?[hw0-9=&-]*)?"
)


class Seen(NamedTuple):
    line: str
    headers: str
    body: bytes


class RecordingDaemon:
    """Answers as docker does, and keeps every request."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.connections = 0
        self.stream = b""
        self.stream_ended = asyncio.Event()
        self.follow = asyncio.Event()
        self.gone = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, _, headers = head.partition("\r\n")
            length = re.search(r"^content-length: (\d+)", headers, re.MULTILINE | re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            self.requests.append(Seen(line.removesuffix(" HTTP/1.1"), headers, body))
            await self.answer(line.split()[0], line.split()[1], reader, writer)
            # Nothing may follow on the same connection.
            rest = await reader.read()
            assert not rest or self.stream_ended.is_set(), rest
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(
        self, method: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = re.sub(r"^/v1\.\d+", "", target.partition("?")[0])
        status, document = 200, b"{}"
        if found := re.fullmatch(r"/containers/([^/]+)/json", path):
            identity = PREFIXES.get(found[1])
            if identity is None:
                status, document = 404, b'{"message": "No such container"}'
            else:
                document = json.dumps(
                    {
                        "Id": identity,
                        "Name": f"/{NAMES[identity]}",
                        "Config": {"Env": ["TOKEN=hunter2"]},
                        "HostConfig": {"Privileged": identity == MIGHTY},
                    }
                ).encode()
        elif path == "/containers/json":
            names = [["/other/alias", "/web"], ["/web/other", "/other"], ["/mighty"], ["/webb"]]
            document = json.dumps([{"Id": str(n), "Names": name} for n, name in enumerate(names)]).encode()
        elif path.endswith("/exec"):
            status, document = 201, json.dumps({"Id": EXEC}).encode()
        elif path.endswith("/start"):
            writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhello ")
            while data := await reader.read(1000):
                self.stream += data
                writer.write(data.upper())
            self.stream_ended.set()
            return
        elif path.endswith("/logs") and "follow" in target:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Secret: no\r\n\r\n3\r\nabc\r\n")
            await self.follow.wait()
            try:
                for _ in range(200):
                    writer.write(b"3\r\ndef\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.01)
            except ConnectionError:
                self.gone.set()
            return
        elif path.endswith("/restart"):
            status, document = 204, b""
        reply = f"HTTP/1.1 {status} X\r\nContent-Length: {len(document)}\r\nApi-Version: 1.41\r\nX-Secret: no\r\n\r\n"
        writer.write(reply.encode() + (b"" if method == "HEAD" else document))
        await writer.drain()


class Rig(NamedTuple):
    daemon: RecordingDaemon
    proxy: DockerProxy
    path: Path
    decisions: list[Decision]

    async def send(self, data: bytes, *, answers: int = 1, patience: float = 5.0) -> bytes:
        """What comes back for these bytes, until the proxy closes or so many answers are there."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        got = b""
        try:
            writer.write(data)
            async with asyncio.timeout(patience):
                while got.count(b"HTTP/1.1 ") < answers or not _complete(got, answers):
                    part = await reader.read(65536)
                    if not part:
                        break
                    got += part
        except ConnectionError:
            pass
        finally:
            writer.close()
        return got


def _complete(got: bytes, answers: int) -> bool:
    parts = re.split(rb"(?=HTTP/1\.1 \d{3} )", got)[1:]
    if len(parts) < answers:
        return False
    head, _, body = parts[-1].partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    if length:
        return len(body) >= int(length[1])
    return b" 204 " in head[:20] or body.endswith(b"0\r\n\r\n")


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    head = [f"{line} HTTP/1.1", "Host: docker", *headers]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with make_rig(tmp_path) as made:
        yield made


class make_rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __aenter__(self) -> Rig:
        daemon = RecordingDaemon()
        self.server = await asyncio.start_unix_server(daemon.handle, self.folder / "daemon.sock")
        decisions: list[Decision] = []

        async def write_down(decision: Decision) -> None:
            decisions.append(decision)

        self.proxy = DockerProxy(Rules.parse(ALLOWED), self.folder / "daemon.sock", write_down)
        self.listener = listen_unix(self.folder / "proxy.sock")
        await self.proxy.serve(self.listener)
        return Rig(daemon, self.proxy, self.folder / "proxy.sock", decisions)

    async def __aexit__(self, *error: object) -> None:
        await self.proxy.close()
        self.listener.close()
        self.server.close()


async def test_an_allowed_request_is_made_anew_for_the_full_id(rig: Rig) -> None:
    hostile = ("X-Registry-Auth: secret", "Authorization: x", "User-Agent: evil", "Host2: x", "Cookie: a=b")
    answer = await rig.send(request("POST /v1.41/containers/web/restart?t=3", *hostile, "Content-Length: 0"))
    assert answer.startswith(b"HTTP/1.1 204")
    assert b"X-Secret" not in answer
    looked, done = rig.daemon.requests
    assert looked.line == "GET /v1.41/containers/web/json"
    assert done.line == f"POST /v1.41/containers/{WEB}/restart?t=3"
    names = {line.partition(":")[0].lower() for line in done.headers.splitlines() if line}
    assert names == {"host", "user-agent", "connection", "content-length"}
    assert [(d.allowed, d.verb, d.container) for d in rig.decisions] == [(True, "restart", "web")]


@pytest.mark.parametrize("reference", ["other", OTHER, OTHER[:12], "nosuch"])
async def test_another_container_is_refused_by_whatever_name(rig: Rig, reference: str) -> None:
    answer = await rig.send(request(f"POST /containers/{reference}/restart"))
    assert answer.startswith(b"HTTP/1.1 403")
    message = json.loads(answer.partition(b"\r\n\r\n")[2])["message"]
    assert f"`restart` is not allowed for the container `{reference}`" in message
    assert "--allow restart:" in message
    assert [seen.line for seen in rig.daemon.requests] == [f"GET /containers/{reference}/json"]
    assert [d.allowed for d in rig.decisions] == [False]


@pytest.mark.parametrize("reference", [WEB, WEB[:12]])
async def test_an_id_of_an_allowed_container_is_as_good_as_its_name(rig: Rig, reference: str) -> None:
    assert (await rig.send(request(f"POST /containers/{reference}/restart"))).startswith(b"HTTP/1.1 204")


async def test_a_verb_that_is_not_allowed_for_this_one_is_refused(rig: Rig) -> None:
    for line in ("POST /containers/web/stop", "POST /containers/web/kill?signal=KILL", "GET /containers/mighty/top"):
        assert (await rig.send(request(line))).startswith(b"HTTP/1.1 403")
    assert all(seen.line.endswith("/json") for seen in rig.daemon.requests)


async def test_a_container_with_the_name_of_another_ones_alias_is_told_apart(rig: Rig) -> None:
    answer = await rig.send(request("GET /v1.41/containers/json?all=1"))
    listed = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert [container["Names"][-1] for container in listed] == ["/web", "/mighty"]


async def test_looking_does_not_show_the_secrets_in_the_environment(rig: Rig) -> None:
    for target in ("/containers/web/json", "/v1.41/containers/web/json?size=1"):
        answer = await rig.send(request(f"GET {target}"))
        assert b"TOKEN=[hidden]" in answer
        assert b"hunter2" not in answer


async def test_an_exec_in_a_privileged_container_is_refused_although_it_is_listed(rig: Rig) -> None:
    answer = await rig.send(request("POST /containers/mighty/exec", body=b'{"Cmd": ["id"]}'))
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"in no sandbox, because it is privileged" in answer


async def test_an_exec_is_one_stream_and_its_words_are_written_down(rig: Rig) -> None:
    made = await rig.send(
        request("POST /containers/web/exec", body=b'{"Cmd": ["sh", "-c", "id"], "Privileged": false}')
    )
    assert json.loads(made.partition(b"\r\n\r\n")[2]) == {"Id": EXEC}
    assert json.loads(rig.daemon.requests[-1].body) == {"Cmd": ["sh", "-c", "id"]}
    assert rig.decisions[-1].command == ("sh", "-c", "id")
    reader, writer = await asyncio.open_unix_connection(rig.path)
    # A second request behind the first is input of the exec, not a request.
    smuggled = request("POST /v1.41/containers/create")
    start = request(f"POST /exec/{EXEC}/start", "Connection: Upgrade", "Upgrade: tcp", body=b'{"Detach": false}')
    writer.write(start + smuggled)
    writer.write_eof()
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 101")
    assert answer.endswith(b"hello " + smuggled.upper())
    assert rig.daemon.stream == smuggled
    assert [seen.line for seen in rig.daemon.requests][2:] == [f"POST /exec/{EXEC}/start"]


async def test_an_exec_that_was_made_elsewhere_is_refused(rig: Rig) -> None:
    for line in (f"GET /exec/{EXEC}/json", f"POST /exec/{EXEC}/resize?h=1&w=1"):
        assert b"not made through this socket" in await rig.send(request(line))
    start = request(f"POST /exec/{EXEC}/start", "Connection: Upgrade", "Upgrade: tcp", body=b"{}")
    assert (await rig.send(start)).startswith(b"HTTP/1.1 403")
    assert rig.daemon.requests == []


async def test_following_a_log_streams_and_ends_with_the_caller(rig: Rig) -> None:
    reader, writer = await asyncio.open_unix_connection(rig.path)
    writer.write(request("GET /containers/web/logs?follow=1&stdout=1"))
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"abc\r\n")).startswith(b"HTTP/1.1 200")
    rig.daemon.follow.set()
    async with asyncio.timeout(5):
        await reader.readuntil(b"def\r\n")
        writer.close()
        await rig.daemon.gone.wait()


async def test_a_connection_serves_one_request_after_another_each_judged(rig: Rig) -> None:
    lines = ["HEAD /_ping", "POST /containers/web/restart", "HEAD /containers/web/archive", "POST /containers/create"]
    answer = await rig.send(b"".join(request(line) for line in [*lines, "GET /containers/web/top"]), answers=5)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
    assert statuses == [b"200", b"204", b"403", b"403", b"200"]
    assert rig.daemon.connections == len(rig.daemon.requests)


async def test_what_cannot_be_written_down_is_not_done(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:

        async def full(decision: Decision) -> None:
            raise OSError(28, "No space left on device")

        rig.proxy._on_decision = full
        answer = await rig.send(request("POST /containers/web/restart"))
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"cannot be written down" in answer
        assert not [seen for seen in rig.daemon.requests if "restart" in seen.line]


RESTART = b"POST /containers/web/restart HTTP/1.1\r\nHost: d\r\n"
CREATE = b"POST /containers/create HTTP/1.1\r\nHost: d\r\n\r\n"

HOSTILE = {
    "both lengths": RESTART + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + CREATE,
    "two lengths": RESTART + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + CREATE,
    "a length with a sign": RESTART + b"Content-Length: +0\r\n\r\n",
    "odd chunked": RESTART + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "folded header": RESTART + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "space before the colon": RESTART + b"Content-Length : 0\r\n\r\n",
    "only line feeds": b"POST /containers/other/restart HTTP/1.1\nHost: d\n\n",
    "no version": b"POST /containers/other/restart\r\n\r\n",
    "an old version": b"POST /containers/other/restart HTTP/1.0\r\n\r\n",
    "a newer version": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "h2c": request("POST /containers/web/restart", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"),
    "upgrade where none is": request("GET /containers/web/logs", "Connection: Upgrade", "Upgrade: tcp"),
    "an absolute address": request("POST http://docker/containers/create"),
    "another host in it": request("POST //evil/containers/web/restart"),
    "a NUL": b"POST /containers/web\0/restart HTTP/1.1\r\nHost: d\r\n\r\n",
    "a header in the address": b"POST /containers/web/restart?t=1 HTTP/1.1\r\nX: y HTTP/1.1\r\nHost: d\r\n\r\n",
    "two spaces": b"POST  /containers/create HTTP/1.1\r\nHost: d\r\n\r\n",
    "override": request(
        "POST /containers/web/restart", "X-HTTP-Method-Override: DELETE", "X-Original-URL: /containers/create"
    ),
    "chunked with an extension": RESTART + b"Transfer-Encoding: chunked\r\n\r\n0;POST /containers/create\r\n\r\n",
    "trailers": b"POST /containers/web/exec HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'f\r\n{"Cmd": ["id"]}\r\n0\r\nContent-Length: 100\r\n\r\n' + CREATE,
    "a body for what has none": request(
        "POST /containers/web/restart", body=b"POST /containers/create HTTP/1.1\r\n\r\n"
    ),
    "duplicate keys": request(
        "POST /containers/web/exec", body=b'{"Cmd": ["id"], "Privileged": true, "Privileged": false}'
    ),
    "binary": bytes(range(256)) * 10,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 200,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
async def test_nothing_hostile_reaches_the_daemon(rig: Rig, data: bytes) -> None:
    await send_all(rig, data)
    for seen in rig.daemon.requests:
        assert EXPECTED.fullmatch(seen.line), seen
        assert "create" not in seen.line + seen.headers + seen.body.decode("latin-1")
        assert "rivileged" not in seen.body.decode("latin-1")


async def send_all(rig: Rig, data: bytes) -> None:
    """Send, and end our side, so that the proxy has to deal with all of it."""
    reader, writer = await asyncio.open_unix_connection(rig.path)
    try:
        writer.write(data)
        async with asyncio.timeout(0.2):
            while await reader.read(65536):
                pass
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()


@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from(
                [
                    b"POST ", b"GET ", b"/v1.41", b"/containers/", b"web", b"other", b"/restart", b"/json", b"/create",
                    b"/exec", b"?t=1", b"%2e%2e", b"/../", b" HTTP/1.1", b"\r\n", b"\n", b"Host: d\r\n", b"\r\n\r\n",
                    b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n", b"{}", b"0\r\n\r\n", b" ", b"\0",
                    b"Connection: Upgrade\r\n", b"Upgrade: tcp\r\n", b'{"Cmd":["id"]}', EXEC.encode(), b"/exec/",
                    b"/start", RESTART,
                ]
            ),
            st.binary(max_size=8),
        ),
        max_size=25,
    )
)  # fmt: skip
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_make_the_daemon_do_something_else(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    async def attempt() -> list[Seen]:
        async with make_rig(tmp_path_factory.mktemp("r")) as rig:
            reader, writer = await asyncio.open_unix_connection(rig.path)
            try:
                writer.write(b"".join(parts))
                writer.write_eof()
                async with asyncio.timeout(1):
                    while await reader.read(65536):
                        pass
            except (ConnectionError, TimeoutError):
                pass
            finally:
                writer.transport.abort()
            return rig.daemon.requests

    for seen in asyncio.run(attempt()):
        assert EXPECTED.fullmatch(seen.line), seen


async def test_a_long_head_and_a_long_body_are_refused(rig: Rig) -> None:
    assert (await rig.send(request("GET /version", "X: " + "a" * 40_000))).startswith(b"HTTP/1.1 431")
    body = json.dumps({"Cmd": ["a" * 100_000]}).encode()
    assert (await rig.send(request("POST /containers/web/exec", body=body))).startswith(b"HTTP/1.1 413")
    assert rig.daemon.requests == []


async def test_a_crowd_is_turned_away_and_others_are_served_when_it_leaves(rig: Rig) -> None:
    crowd = []
    for _ in range(100):
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        try:
            client.connect(str(rig.path))
        except BlockingIOError:
            client.close()
            continue
        crowd.append(client)
        await asyncio.sleep(0)
    await wait_until_async(lambda: len(rig.proxy._tasks) == 64)
    for client in crowd:
        client.close()
    await wait_until_async(lambda: not rig.proxy._tasks)
    assert (await rig.send(request("GET /version"))).startswith(b"HTTP/1.1 200")


async def test_without_a_daemon_it_says_so(tmp_path: Path) -> None:
    proxy = DockerProxy(Rules.parse(ALLOWED), tmp_path / "none.sock")
    with pytest.raises(ConfigError, match="No docker daemon answers at"):
        await proxy.check()


def test_the_socket_is_for_its_owner_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = listen_unix(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="answers at"):
        listen_unix(path)
    first.close()
    listen_unix(path, 0o666).close()
    assert path.stat().st_mode & 0o777 == 0o666
    path.unlink()
    path.write_text("precious")
    with pytest.raises(ConfigError, match="No socket can be made"):
        listen_unix(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--allow", "create:web"], "There is no verb 'create' that can be allowed"),
        (["--allow", "restart:web", "--mode", "rw"], "'rw' is no file mode"),
        (["--allow", "restart:web", "--log", "/nowhere/log"], "Nothing can be appended to /nowhere/log"),
        (["--allow", "restart:web", "--socket", "/nowhere/docker.sock"], "No docker daemon answers at"),
        ([], "--allow"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = run_operator("docker-proxy", "--listen", str(tmp_path / "s"), *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()
