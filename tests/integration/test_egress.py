"""The egress proxy over real sockets: what passes, what is refused and says so, and what cannot wear it down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence

import pytest

from operator_core.errors import StoreUnavailable
from operator_core.sandbox.egress import Bounds, Egress, Rules
from operator_core.sandbox.egress.host import Address
from operator_core.sandbox.options import Decision
from tests.support.egress import Origin, ask, proxied
from tests.support.waiting import wait_until_async


def get(target: str, host: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = [f"{method} {target} HTTP/{version}", f"Host: {host}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def at(port: int) -> tuple[str, str]:
    return f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}"


def open_(address: Address) -> str:
    """In these tests names lead to this machine."""
    return ""


async def to_loopback(name: str) -> Sequence[str]:
    return ["127.0.0.1"]


# ---- what passes


async def test_a_plain_request_passes_and_is_written_anew() -> None:
    async with Origin() as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, decisions):
        raw = get(f"http://127.0.0.1:{origin.port}/a?b", f"127.0.0.1:{origin.port}", "X: 1", "Proxy-Connection: close")
        answer = await ask(port, raw)
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    assert origin.heads == [
        f"GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:{origin.port}\r\nX: 1\r\nConnection: close\r\n\r\n".encode()
    ]
    why = f"The rule 127.0.0.1:{origin.port} names this very address and port, although it is this machine."
    assert decisions == [Decision(True, "GET", "127.0.0.1", origin.port, why, ("127.0.0.1",))]


@pytest.mark.parametrize("coding", ["length", "chunks"])
async def test_a_body_passes_in_both_directions(coding: str) -> None:
    def echo(head: bytes, body: bytes) -> bytes:
        if coding == "length":
            return b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        return b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % body

    sent = b"x" * 100_000
    header, body = f"Content-Length: {len(sent)}", sent
    if coding == "chunks":
        header, body = "Transfer-Encoding: chunked", b"%x\r\n%b\r\n" % (len(sent), sent) + b"0\r\n\r\n"
    async with Origin(echo) as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, _):
        url, host = at(origin.port)
        answer = await ask(port, get(url, host, header, "Expect: 100-continue", method="POST"), body, pause=0.05)
    interim, _, rest = answer.partition(b"\r\n\r\n")
    assert interim == b"HTTP/1.1 100 Continue"
    assert rest.startswith(b"HTTP/1.1 201 Created\r\n")
    assert rest.count(b"x") == len(sent)
    assert b"expect" not in origin.heads[0].lower()


async def test_a_tunnel_carries_anything_until_both_sides_end() -> None:
    def answer(head: bytes, body: bytes) -> bytes:
        return head[::-1]

    async with Origin(answer) as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, decisions):
        host = f"127.0.0.1:{origin.port}"
        got = await ask(port, get(host, host, method="CONNECT"), b"\x16\x03\x01 anything\r\n\r\n", pause=0.05)
    assert got == b"HTTP/1.1 200 Connection established\r\n\r\n" + b"\x16\x03\x01 anything\r\n\r\n"[::-1]
    assert [d.method for d in decisions] == ["CONNECT"]


async def test_names_in_any_spelling_and_the_answer_of_one_look_up() -> None:
    asked: list[str] = []

    async def resolve(name: str) -> Sequence[str]:
        asked.append(name)
        return ["127.0.0.1"]

    async with Origin() as origin:
        rule = f"*.Example.org:{origin.port}"
        async with proxied([rule], resolve=resolve, closed=open_) as (port, decisions):
            name = f"WWW.example.ORG.:{origin.port}"
            assert b" 200 " in await ask(port, get(f"http://{name}/", name))
    assert asked == ["www.example.org"], "asked once: whoever answers differently a moment later changes nothing"
    assert decisions[0][:4] == (True, "GET", "www.example.org", origin.port)
    assert f"Host: www.example.org:{origin.port}\r\n".encode() in origin.heads[0]


async def test_head_keeps_its_length_and_old_clients_get_no_chunks() -> None:
    def chunks(head: bytes, body: bytes) -> bytes:
        if head.startswith(b"HEAD"):
            return b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n"
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"

    async with Origin(chunks) as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, _):
        url, host = at(origin.port)
        assert b"Content-Length: 77\r\n" in await ask(port, get(url, host, method="HEAD"))
        assert (await ask(port, get(url, host))).endswith(b"\r\n\r\n2\r\nab\r\n0\r\n\r\n")
        old = await ask(port, get(url, host, version="1.0"))
        assert old.endswith(b"\r\n\r\nab")
        assert b"chunked" not in old


async def test_what_follows_a_request_on_its_connection_is_never_read() -> None:
    async with Origin() as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, decisions):
        url, host = at(origin.port)
        answer = await ask(port, get(url, host) + get("http://evil.example/", "evil.example") + b"z" * 200_000)
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"hello"), "the answer comes whole, however much the client still says"
    assert len(decisions) == origin.connections == 1


# ---- what is refused


async def test_a_refusal_says_what_why_and_who_can_change_it() -> None:
    async with proxied(["example.org", "*.example.net:8443"]) as (port, decisions):
        answer = await ask(port, get("http://evil.example/secret", "evil.example"))
        tunnel = await ask(port, get("evil.example:443", "evil.example:443", method="CONNECT"))
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 evil.example:80 is not among the allowed hosts\r\n")
    assert b"X-Operator-Egress: refused" in head
    assert text.decode() == (
        "The egress proxy of this sandbox refused the request, and nothing was sent.\n"
        "What: GET evil.example:80\n"
        "Why: evil.example:80 is not among the allowed hosts.\n"
        "Allowed: example.org, *.example.net:8443.\n"
        "Nothing that runs in here can change that. A person can, as `evil.example:80`: in `allow_hosts` of the system "
        "or of [sandbox] in operator.toml, or with `operator submit --allow-host`.\n"
    )
    assert tunnel.startswith(b"HTTP/1.1 403 evil.example:443 is not among the allowed hosts\r\n")
    why = "evil.example:80 is not among the allowed hosts."
    assert decisions[0] == Decision(False, "GET", "evil.example", 80, why)
    assert decisions[1][:4] == (False, "CONNECT", "evil.example", 443)


async def test_a_name_that_no_rule_allows_is_not_even_looked_up() -> None:
    asked: list[str] = []

    async def resolve(name: str) -> Sequence[str]:
        asked.append(name)
        return ["127.0.0.1"]

    async with proxied(["example.org"], resolve=resolve) as (port, _):
        assert b" 403 " in await ask(port, get("http://the-secret.evil.example/", "the-secret.evil.example"))
    assert asked == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"], ["::1"], ["169.254.169.254"], ["::ffff:127.0.0.1"], ["0.0.0.0"], ["64:ff9b::7f00:1"],
        ["93.184.216.34", "127.0.0.1"], ["fe80::1%lo"],
    ],
)  # fmt: skip
async def test_a_name_that_leads_to_a_closed_address_is_refused(addresses: list[str]) -> None:
    async def resolve(name: str) -> Sequence[str]:
        return addresses

    async with Origin() as origin, proxied([f"rebound.example:{origin.port}"], resolve=resolve) as (port, decisions):
        name = f"rebound.example:{origin.port}"
        answer = await ask(port, get(f"http://{name}/", name))
        tunnel = await ask(port, get(name, name, method="CONNECT"))
    assert b"HTTP/1.1 403 rebound.example leads to " in answer
    assert b"HTTP/1.1 403 rebound.example leads to " in tunnel
    assert b"by naming the address itself with its port" in answer
    assert origin.connections == 0
    assert [d.allowed for d in decisions] == [False, False]
    assert len(decisions[0].addresses) == len(addresses)


async def test_an_address_of_this_machine_needs_its_port_in_the_rule() -> None:
    async with Origin() as origin, proxied(["127.0.0.1", "example.org"]) as (port, _):
        url, host = at(origin.port)
        assert b" 403 " in await ask(port, get(url, host))
        assert b" 403 127.0.0.1 is refused: it is this machine" in await ask(
            port, get("http://127.0.0.1/", "127.0.0.1")
        )


async def test_a_rule_for_an_address_is_not_one_for_a_name_that_leads_there() -> None:
    async with Origin() as origin:
        rules = [f"127.0.0.1:{origin.port}", f"*.example.org:{origin.port}"]
        async with proxied(rules, resolve=to_loopback) as (port, _):
            name = f"www.example.org:{origin.port}"
            assert b" 403 " in await ask(port, get(f"http://{name}/", name))
    assert origin.connections == 0


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "localhost",
             "127.0.0.1.nip.example", "0", "127.0.0.1%00.example.org", "example.org@127.0.0.1", "⑫7.0.0.1"],
)  # fmt: skip
async def test_other_spellings_of_an_address_do_not_pass(host: str) -> None:
    async with Origin() as origin, proxied([f"127.0.0.1:{origin.port}", "example.org"]) as (port, decisions):
        for raw in (
            get(f"http://{host}:{origin.port}/", f"{host}:{origin.port}"),
            get(f"{host}:{origin.port}", f"{host}:{origin.port}", method="CONNECT"),
        ):
            status = int((await ask(port, raw)).split(b" ", 2)[1])
            assert status in (400, 403)
    assert origin.connections == 0
    assert [d.allowed for d in decisions] == [False, False]


@pytest.mark.parametrize(
    "raw",
    [
        b"POST {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET {url} HTTP/1.1\r\nHost: {host}\r\nX: a\r\n b\r\n\r\n",
        b"GET {url} HTTP/1.1\r\nHost: {host}\nX: y\r\n\r\n",
        b"GET {url} HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ],
)
async def test_what_is_malformed_gets_a_reason_and_goes_nowhere(raw: bytes) -> None:
    async with Origin() as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, decisions):
        url, host = at(origin.port)
        answer = await ask(port, raw.replace(b"{url}", url.encode()).replace(b"{host}", host.encode()))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"did not pass the request: " in answer
    assert origin.connections == 0
    assert decisions[0].why.startswith("The request is malformed: ")


async def test_chunks_that_lie_break_the_request_off() -> None:
    async with Origin() as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, _):
        url, host = at(origin.port)
        raw = get(url, host, "Transfer-Encoding: chunked", method="POST")
        answer = await ask(port, raw, b"3\r\nabcdef\r\n0\r\n\r\nGET http://evil.example/ HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 a chunk is longer than it says")
        await wait_until_async(lambda: origin.connections == 1)
    assert origin.bodies == [], "the server has never seen the end of the request"


async def test_trace_does_not_pass() -> None:
    async with Origin() as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, _):
        url, host = at(origin.port)
        assert b" 403 TRACE does not pass" in await ask(port, get(url, host, method="TRACE"))


async def test_nothing_leaves_that_could_not_be_recorded() -> None:
    order: list[str] = []

    async def fails(decision: Decision) -> None:
        order.append("asked")
        raise StoreUnavailable("The database postgres://me:hunter2@db cannot be reached.")

    async with Origin() as origin:
        rules = [f"127.0.0.1:{origin.port}"]
        async with proxied(rules, on_decision=fails) as (port, _):
            url, host = at(origin.port)
            answer = await ask(port, get(url, host))
            tunnel = await ask(port, get(host, host, method="CONNECT"))
    assert answer.startswith(b"HTTP/1.1 503 The decision could not be written to the journal")
    assert tunnel.startswith(b"HTTP/1.1 503 ")
    assert b"hunter2" not in answer
    assert origin.connections == 0
    assert order == ["asked", "asked"]


async def test_the_decision_is_durable_before_the_connection_is_made() -> None:
    seen: list[int] = []

    async with Origin() as origin:

        async def note(decision: Decision) -> None:
            await asyncio.sleep(0.1)
            seen.append(origin.connections)

        async with proxied([f"127.0.0.1:{origin.port}"], on_decision=note) as (port, _):
            url, host = at(origin.port)
            assert b" 200 " in await ask(port, get(url, host))
    assert seen == [0]


# ---- failures of the other side


async def test_what_cannot_be_reached_is_said() -> None:
    async def no_such_name(name: str) -> Sequence[str]:
        raise OSError("Name or service not known")

    async with Origin() as origin:
        dead = origin.port
    async with proxied([f"127.0.0.1:{dead}", "gone.example"], resolve=no_such_name) as (port, decisions):
        url, host = at(dead)
        assert b"HTTP/1.1 502 127.0.0.1:%d cannot be reached (connection refused)" % dead in await ask(
            port, get(url, host)
        )
        answer = await ask(port, get("http://gone.example/", "gone.example"))
    assert answer.startswith(b"HTTP/1.1 403 The name gone.example could not be looked up")
    assert [d.allowed for d in decisions] == [True, False]


async def test_the_next_address_is_tried() -> None:
    async def resolve(name: str) -> Sequence[str]:
        return ["127.0.0.9", "127.0.0.1"]

    async with Origin() as origin:
        rule = f"two.example:{origin.port}"
        async with proxied([rule], resolve=resolve, closed=open_) as (port, _):
            assert b" 200 " in await ask(port, get(f"http://{rule}/", rule))


@pytest.mark.parametrize(
    "wrong",
    [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
     b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40_000 + b"\r\n\r\n"],
    ids=["nothing", "another protocol", "two lengths", "an upgrade", "a long head"],
)  # fmt: skip
async def test_an_answer_that_is_none_is_said(wrong: bytes) -> None:
    async with Origin(lambda head, body: wrong) as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, _):
        answer = await ask(port, get(*at(origin.port)))
    assert answer.startswith(b"HTTP/1.1 502 ")


async def test_an_answer_that_breaks_off_breaks_off() -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nonly this"
    async with Origin(lambda head, body: short) as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, _):
        answer = await ask(port, get(*at(origin.port)))
    assert b"Content-Length: 50\r\n" in answer
    assert answer.endswith(b"only this"), "the client sees that something is missing"


async def test_an_answer_before_the_end_of_the_request_arrives() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too big\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    async with server, proxied([f"127.0.0.1:{server.sockets[0].getsockname()[1]}"]) as (port, _):
        url, host = at(server.sockets[0].getsockname()[1])
        answer = await ask(port, get(url, host, "Content-Length: 9999999", method="PUT"), b"x" * 50_000)
    assert answer.startswith(b"HTTP/1.1 413 Too big")
    assert answer.endswith(b"no")


# ---- bounds


async def test_a_head_has_a_size_and_a_time() -> None:
    bounds = Bounds(head=2048, head_s=0.2)
    async with proxied(["example.org"], bounds=bounds) as (port, decisions):
        assert (await ask(port, get("http://example.org/", "example.org", f"X: {'y' * 9000}"))).startswith(
            b"HTTP/1.1 431 "
        )
        started = time.monotonic()
        assert (await ask(port, b"GET http://example.org/ HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")
        assert (await ask(port, b"GET http://example.org/ HTTP/1.1\nHost: example.org\n\n")).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - started < 8
    assert [d.allowed for d in decisions] == [False] * 3


async def test_a_body_has_a_size_and_silence_a_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    bounds = Bounds(body=1000, idle_s=0.3)
    async with server, proxied([f"127.0.0.1:{server.sockets[0].getsockname()[1]}"], bounds=bounds) as (port, _):
        url, host = at(server.sockets[0].getsockname()[1])
        big = get(url, host, "Content-Length: 1001", method="POST")
        assert (await ask(port, big, b"x" * 1001)).startswith(b"HTTP/1.1 413 the body is too long")
        assert (await ask(port, get(url, host))).startswith(b"HTTP/1.1 504 127.0.0.1 said nothing for 0.3 s")
        tunnel = await ask(port, get(host, host, method="CONNECT"), b"hello")
        assert tunnel == b"HTTP/1.1 200 Connection established\r\n\r\n"


async def test_connections_and_requests_are_bounded() -> None:
    refusal = get("http://evil.example/", "evil.example")
    async with proxied(["example.org"], bounds=Bounds(connections=3, requests=5)) as (port, decisions):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        turned_away = await ask(port, refusal, b"x" * 50_000)
        assert turned_away.startswith(b"HTTP/1.1 503 there are 3 connections already")
        for _, writer in idle:
            writer.close()

        async def answers() -> bool:
            return b" 403 " in await ask(port, refusal)

        await wait_until_async(answers, what="room for another connection")
        for _ in range(6):
            last = await ask(port, refusal)
    assert last.startswith(b"HTTP/1.1 429 This session has made 5 requests")
    assert len(decisions) == 5, "the journal does not grow without end"


async def test_closing_ends_all_connections() -> None:
    async with Origin() as origin:
        async with proxied([f"127.0.0.1:{origin.port}"]) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            host = f"127.0.0.1:{origin.port}"
            writer.write(get(host, host, method="CONNECT"))
            await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.transport.abort()
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", port)


async def test_many_requests_at_once_all_get_their_own_answer() -> None:
    def echo(head: bytes, body: bytes) -> bytes:
        path = head.split(b" ")[1]
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path)

    async with Origin(echo) as origin, proxied([f"127.0.0.1:{origin.port}"]) as (port, _):
        url, host = at(origin.port)
        answers = await asyncio.gather(*(ask(port, get(f"{url}{n}", host)) for n in range(60)))
    assert [answer.rpartition(b"\r\n\r\n")[2] for answer in answers] == [b"/%d" % n for n in range(60)]


# ---- real clients


async def test_curl_and_python_find_it_in_the_environment() -> None:
    code = (
        "import json, urllib.request, urllib.error\n"
        "out = []\n"
        "for url in ('http://127.0.0.1:{port}/', 'http://evil.example/', 'https://evil.example/'):\n"
        "    try: out.append(urllib.request.urlopen(url, timeout=10).read().decode())\n"
        "    except urllib.error.HTTPError as e: out.append(f'{{e.code}} {{e.reason}}')\n"
        "    except OSError as e: out.append(str(e))\n"
        "print(json.dumps(out))"
    )
    async with Origin() as origin:
        rules = [f"127.0.0.1:{origin.port}"]
        async with proxied(rules) as (port, _):
            env = {"PATH": "/usr/bin:/bin", **Egress(Rules.parse(rules)).environment(port)}
            out = await _run(env, "python3", "-c", code.format(port=origin.port))
            said = json.loads(out)
            url = f"http://127.0.0.1:{origin.port}/"
            assert await _run(env, "curl", "-sS", "-m", "10", url) == "hello"
            assert await _run(env, "curl", "-sS", "-m", "10", "-p", url) == "hello"
            assert await _run(env, "curl", "-sS", "-m", "10", "-d", "@-", url, stdin=b"x" * 5000) == "hello"
            assert "evil.example:80 is not among" in await _run(env, "curl", "-sS", "-m", "10", "http://evil.example/")
    assert said == [
        "hello",
        "403 evil.example:80 is not among the allowed hosts",
        "<urlopen error Tunnel connection failed: 403 evil.example:443 is not among the allowed hosts>",
    ]
    assert origin.bodies[-1] == b"x" * 5000


async def _run(env: dict[str, str], *words: str, stdin: bytes = b"") -> str:
    process = await asyncio.create_subprocess_exec(
        *words, env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate(stdin)
    return out.decode()
