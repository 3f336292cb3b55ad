"""A real server and clients that are slow, greedy, hostile, or still there when it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from operator_core.config import Settings, WebSettings
from operator_core.db.engine import Database
from operator_core.errors import ConfigError
from operator_core.http_server import HttpServer, listen
from operator_core.model.person import Role
from operator_core.web.app import create_app
from operator_core.web.serve import serve
from operator_core.web.site import make_site
from tests.support import wait_until, wait_until_async
from tests.support.store import start_work
from tests.support.web import Served, make_tokens, served, web_settings


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "operator.db") as running:
        yield running


class Raw:
    """A connection on which anything can be said."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def send(self, text: str | bytes) -> None:
        self.socket.sendall(text.encode("latin-1") if isinstance(text, str) else text)

    def answer(self) -> bytes:
        """Everything until the server closes."""
        found = b""
        while piece := self.socket.recv(65536):
            found += piece
        return found

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def hello(token: str | None = None, *, method: str = "GET", path: str = "/livez", more: str = "") -> str:
    auth = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{auth}{more}\r\n"


def test_it_says_where_it_is(server: Served) -> None:
    wait_until(lambda: server.lines, 20)
    assert server.lines == [f"Console and API at {server.url}"]
    assert httpx2.get(f"{server.url}/livez").text == "ok\n"


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /livez HTTP/1.1\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        "nonsense\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\rb\r\n\r\n",
        "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked, x\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(server: Served, request_line: str) -> None:
    with Raw(server.port) as client:
        client.send(request_line.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"))
        assert client.answer().startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")), request_line
    assert httpx2.get(f"{server.url}/livez").status_code == 200


def test_a_head_without_end_is_dropped(server: Served) -> None:
    with Raw(server.port) as client:
        client.send(hello().removesuffix("\r\n") + "X: ")
        with pytest.raises(ConnectionError):
            client.send("x" * 100_000_000)
    assert httpx2.get(f"{server.url}/livez").status_code == 200


def test_an_answer_cannot_be_given_headers(server: Served) -> None:
    with Raw(server.port) as client:
        client.send(
            hello(path="/tickets/1?a=%0d%0aSet-Cookie:%20x=1", more="Accept: text/html\r\nConnection: close\r\n")
        )
        head = client.answer().partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 303")
        assert b"\r\nset-cookie" not in head


async def until_dropped(port: int, first: str, *, trickle: str = "", then: str = "") -> bytes:
    """Say something, perhaps more after an answer, and perhaps a little again and again; all that is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        async with asyncio.timeout(10):
            writer.write(first.encode())
            if then:
                answer += await reader.readuntil(b"ok\n")
                writer.write(then.encode())
            while True:
                try:
                    async with asyncio.timeout(0.1):
                        piece = await reader.read(65536)
                except TimeoutError:
                    writer.write(trickle.encode())
                    continue
                if not piece:
                    return answer
                answer += piece
    except ConnectionError:
        return answer
    finally:
        writer.transport.abort()


async def test_slow_heads_bodies_and_readers_are_dropped(tmp_path: Path) -> None:
    settings = web_settings(tmp_path / "operator.db")
    async with Database.open(settings.store.url) as database:
        token = (await make_tokens(database))[Role.ADMIN]
        site = make_site(settings, database)
        stop = asyncio.Event()
        with listen("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            server = HttpServer(create_app(site, body_s=0.5, send_s=0.5), stop, head_s=0.5)
            running = asyncio.create_task(server.serve(sockets=[listener]))
            unfinished = "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            answers = await asyncio.gather(
                until_dropped(port, ""),
                until_dropped(port, "GET /livez HT"),
                until_dropped(port, unfinished, trickle="X: y\r\n"),
            )
            assert answers == [b""] * 3
            again = await until_dropped(port, hello(), then=unfinished, trickle="X: y\r\n")
            assert again.count(b"HTTP/1.1") == 1
            slow = hello(token, method="POST", path="/api/v1/tokens", more="Content-Length: 1000\r\n")
            body = await until_dropped(port, slow, trickle="x")
            assert body.startswith(b"HTTP/1.1 408"), body
            assert b"connection: close" in body.lower()
            # Somebody who asks for much and takes nothing.
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(hello(token, path="/api/v1/openapi.json").encode() * 400)
            await wait_until_async(lambda: bool(server.server_state.connections))
            await wait_until_async(lambda: not server.server_state.connections, what="the greedy client is dropped")
            writer.transport.abort()
            stop.set()
            await running
        await site.close()


def test_a_client_that_still_sends_sees_why_it_is_refused(tmp_path: Path) -> None:
    settings = Settings(web=WebSettings(max_body_bytes=100_000, port=0))
    with served(tmp_path / "operator.db", settings) as server:
        token = server.tokens[Role.ADMIN]
        for who, status in ((token, 413), (None, 413)):
            with Raw(server.port) as client:
                client.send(hello(who, method="POST", path="/api/v1/tokens", more="Content-Length: 150000\r\n"))
                client.send(b"x" * 150_000)
                assert client.answer().startswith(f"HTTP/1.1 {status}".encode())
        with Raw(server.port) as client:
            # The connection is still of use.
            client.send(hello(None, method="POST", path="/api/v1/tokens", more="Content-Length: 90000\r\n"))
            client.send(b"x" * 90_000)
            client.send(hello(more="Connection: close\r\n"))
            answer = client.answer()
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"HTTP/1.1 200" in answer
        with Raw(server.port) as client:
            # Nobody knows how much there is to come.
            client.send(hello(None, method="POST", path="/api/v1/tokens", more="Transfer-Encoding: chunked\r\n"))
            client.send(b"5\r\nhello\r\n0\r\n\r\n")
            assert client.answer().startswith(b"HTTP/1.1 401")
        with Raw(server.port) as client:
            more = "Expect: 100-continue\r\nContent-Length: 1000\r\n"
            client.send(hello(None, method="POST", path="/api/v1/tokens", more=more))
            answer = client.answer()
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"100" not in answer.split(b"\r\n")[0]


def test_streams_end_with_the_server_and_requests_before_it(tmp_path: Path) -> None:
    store = tmp_path / "operator.db"
    with served(store) as server:
        headers = {"Authorization": f"Bearer {server.tokens[Role.VIEWER]}"}
        with (
            httpx2.Client(timeout=30) as client,
            client.stream("GET", f"{server.url}/api/v1/stream", headers=headers) as s,
        ):
            assert s.status_code == 200
            pieces = s.iter_raw()
            next(pieces)
            wait_until(
                lambda: "operator_stream_clients 1.0" in httpx2.get(f"{server.url}/metrics", headers=headers).text
            )
            began = time.monotonic()
            server.stop()
            list(pieces)
            assert time.monotonic() - began < 4
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/livez")
    # The port is free at once.
    with served(store, tokens=server.tokens, port=server.port) as again:
        assert httpx2.get(f"{again.url}/api/v1/me", headers=headers).json()["name"] == "test viewer"


def test_two_servers_on_one_machine_have_two_logins(tmp_path: Path) -> None:
    with served(tmp_path / "one.db") as one, served(tmp_path / "other.db") as other, httpx2.Client() as browser:
        for server in (one, other):
            assert browser.post(f"{server.url}/login", data={"token": server.tokens[Role.VIEWER]}).status_code == 303
        for server in (one, other):
            assert browser.get(f"{server.url}/api/v1/me").status_code == 200


async def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = web_settings(tmp_path / "operator.db", Settings(web=WebSettings(port=port)))
        async with Database.open(settings.store.url) as database:
            with pytest.raises(ConfigError, match=f"Port {port} of 127.0.0.1 is in use"):
                await serve(make_site(settings, database), asyncio.Event(), print)


def test_late_work_is_told(tmp_path: Path, server: Served) -> None:
    assert httpx2.get(f"{server.url}/readyz").json()["work"] == "ok"

    async def lonely() -> None:
        async with Database.open(tmp_path / "operator.db") as database:
            work = await start_work(database, lease_s=0.001)
            await work.tickets.open_ticket("cpu", "nobody works on this")

    asyncio.run(lonely())
    wait_until(lambda: json.loads(httpx2.get(f"{server.url}/readyz").text)["work"] == "late", what="the work is late")
    assert httpx2.get(f"{server.url}/readyz").status_code == 200
