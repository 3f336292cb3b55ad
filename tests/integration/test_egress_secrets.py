"""A credential is used for the agent and never shown to it, whatever the agent asks and the host answers."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from operator_core.errors import ConfigError
from operator_core.sandbox.egress import Bounds, Egress, Rules
from operator_core.sandbox.options import Secret
from tests.support.egress import Authority, Origin, ask, proxied

TOKEN = "tok_1/Zk+canary~5f3c9e1b"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_tls(authority: Authority) -> ssl.SSLContext:
    return authority.server("127.0.0.1")


def secret(port: int, read: Callable[[], str] = lambda: TOKEN, **other: str) -> Secret:
    given = {"name": "forge", "header": "Authorization", "value": "Bearer {}", **other}
    return Secret(hosts=(f"127.0.0.1:{port}",), read=read, **given)  # type: ignore[arg-type]


def get(port: int, path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    host = f"127.0.0.1:{port}"
    return "\r\n".join([f"{method} http://{host}{path} HTTP/{version}", f"Host: {host}", *headers, "", ""]).encode()


def show_all(head: bytes, body: bytes) -> bytes:
    """What a careless host answers: everything it was sent, in every form one can think of."""
    token = head.partition(b"Bearer ")[2].partition(b"\r\n")[0].decode()
    forms = {
        "plain": token,
        "json": json.dumps(token),
        "unicode": "".join(f"\\u{ord(c):04x}" for c in token),
        "percent": quote(token, safe=""),
        "percent all": "".join(f"%{ord(c):02X}" for c in token),
        "hex": token.encode().hex(),
        "base64": [base64.b64encode(b"x" * n + token.encode() + b"yz").decode() for n in range(3)],
        "url base64": base64.urlsafe_b64encode(f"user:{token}".encode()).decode(),
    }
    text = head + b"\n" + json.dumps(forms, ensure_ascii=False).encode()
    lines = [
        b"HTTP/1.1 200 Fine " + token.encode(),
        b"Content-Length: %d" % len(text),
        b"Location: http://elsewhere.example/?t=" + token.encode(),
        b"Set-Cookie: session=derived-from-the-token",
        b"X-Echo: " + base64.b64encode(token.encode()),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + text


def traces() -> Iterator[str]:
    """Every piece of the token of eight characters, in the encodings that are undone here."""
    raw = TOKEN.encode()
    for text in (TOKEN, quote(TOKEN, safe=""), raw.hex(), base64.b64encode(raw).decode()):
        yield from (text[at : at + 12] for at in range(len(text) - 12))


async def test_the_host_gets_the_credential_and_the_agent_does_not(
    authority: Authority, server_tls: ssl.SSLContext
) -> None:
    async with (
        Origin(show_all, tls=server_tls) as origin,
        proxied([], [secret(origin.port)], tls=authority.client()) as (port, decisions),
    ):
        answer = await ask(
            port,
            get(origin.port, "/me", "authorization: Bearer mine", "AUTHORIZATION: x", "Accept-Encoding: gzip",
                "Range: bytes=0-9"),
        )  # fmt: skip
    head = origin.heads[0].decode()
    assert head.lower().count("authorization") == 1
    assert f"\r\nAuthorization: Bearer {TOKEN}\r\n" in head
    assert "\r\nAccept-Encoding: identity\r\n" in head
    assert "gzip" not in head
    assert "Range" not in head
    text = answer.decode()
    assert "HTTP/1.1 200 Fine [REDACTED]\r\n" in text
    assert "Location: http://elsewhere.example/?t=[REDACTED]\r\n" in text
    assert "Set-Cookie" not in text
    assert "Transfer-Encoding: chunked\r\n" in text
    assert "Content-Length" not in text, "it is not the length of what is shown"
    assert text.count("[REDACTED]") >= 11
    assert [trace for trace in traces() if trace in text] == []
    assert [(d.allowed, d.credential) for d in decisions] == [(True, "forge")]
    assert TOKEN not in repr(decisions)


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_a_credential_that_comes_in_pieces_is_taken_out(
    authority: Authority, server_tls: ssl.SSLContext, size: int
) -> None:
    def in_chunks(head: bytes, body: bytes) -> bytes:
        text = b"before " + head.partition(b"Bearer ")[2].partition(b"\r\n")[0] + b" after tok_1/"
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        wire = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + wire + b"0\r\n\r\n"

    async with (
        Origin(in_chunks, tls=server_tls) as origin,
        proxied([], [secret(origin.port)], tls=authority.client()) as (port, _),
    ):
        old = await ask(port, get(origin.port, "/", version="1.0"))
        new = await ask(port, get(origin.port, "/"))
    assert old.endswith(b"\r\n\r\nbefore [REDACTED] after tok_1/"), "what only begins like it is shown at the end"
    assert new.endswith(b"0\r\n\r\n")
    assert TOKEN.encode() not in new


async def test_what_only_looks_like_a_credential_comes_through(
    authority: Authority, server_tls: ssl.SSLContext
) -> None:
    text = b'{"key": "ghp_' + b"a" * 36 + b'"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
    async with (
        Origin(lambda head, body: answer, tls=server_tls) as origin,
        proxied([], [secret(origin.port)], tls=authority.client()) as (port, _),
    ):
        assert text in await ask(port, get(origin.port, "/", version="1.0"))


async def test_a_compressed_answer_is_not_shown(authority: Authority, server_tls: ssl.SSLContext) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"
    async with (
        Origin(lambda head, body: answer, tls=server_tls) as origin,
        proxied([], [secret(origin.port)], tls=authority.client()) as (port, _),
    ):
        got = await ask(port, get(origin.port, "/"))
    assert got.startswith(b"HTTP/1.1 502 127.0.0.1 answered in a coding that cannot be searched")
    assert b"\x1f\x8b" not in got


async def test_a_certificate_that_is_not_valid_gets_no_credential(
    authority: Authority, server_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path)
    async with Origin(tls=server_tls) as origin, Origin(tls=authority.server("10.9.8.7")) as other:
        secrets = [secret(origin.port), secret(other.port)]
        async with proxied([], secrets, tls=stranger.client()) as (port, _):
            unknown = await ask(port, get(origin.port, "/"))
        async with proxied([], secrets, tls=authority.client()) as (port, _):
            misnamed = await ask(port, get(other.port, "/"))
    authority.server("127.0.0.1")
    assert b"cannot be reached (its certificate is not valid: " in unknown
    assert b"cannot be reached (its certificate is not valid: " in misnamed
    assert origin.heads == other.heads == []


async def test_a_host_without_tls_gets_no_credential(authority: Authority) -> None:
    how = {"tls": authority.client(), "bounds": Bounds(connect_s=0.5)}
    async with Origin() as origin, proxied([], [secret(origin.port)], **how) as (port, _):
        answer = await ask(port, get(origin.port, "/"))
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert origin.heads == []


async def test_the_agent_cannot_take_the_header_away(authority: Authority, server_tls: ssl.SSLContext) -> None:
    async with (
        Origin(tls=server_tls) as origin,
        proxied([], [secret(origin.port)], tls=authority.client()) as (port, _),
    ):
        await ask(port, get(origin.port, "/", "Connection: Authorization, Accept-Encoding"))
    assert f"\r\nAuthorization: Bearer {TOKEN}\r\nAccept-Encoding: identity\r\n".encode() in origin.heads[0]


async def test_a_tunnel_needs_a_rule_of_its_own_and_carries_nothing(
    authority: Authority, server_tls: ssl.SSLContext
) -> None:
    async with Origin(tls=server_tls) as origin:
        host = f"127.0.0.1:{origin.port}"
        connect = f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        async with proxied([], [secret(origin.port)], tls=authority.client()) as (port, decisions):
            refused = await ask(port, connect)
        async with proxied([host], [secret(origin.port)], tls=authority.client()) as (port, allowed):
            assert b" 200 " in await ask(port, connect, b"this is no TLS at all\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 403 ")
    assert b"for its credential ask `http://127.0.0.1/...` without TLS" in refused
    assert decisions[0].allowed is False
    assert allowed[0].credential == ""


async def test_other_hosts_get_nothing(authority: Authority, server_tls: ssl.SSLContext) -> None:
    async with Origin(tls=server_tls) as origin, Origin() as other:
        rules = [f"127.0.0.1:{other.port}"]
        async with proxied(rules, [secret(origin.port)], tls=authority.client()) as (port, decisions):
            assert b" 200 " in await ask(port, get(other.port, "/", "Authorization: Bearer mine"))
    assert b"Authorization: Bearer mine\r\n" in other.heads[0]
    assert TOKEN.encode() not in other.heads[0]
    assert decisions[0].credential == ""


async def test_a_rotated_credential_is_taken_up(
    authority: Authority, server_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    async with (
        Origin(show_all, tls=server_tls) as origin,
        proxied([], [secret(origin.port, file.read_text)], tls=authority.client()) as (port, _),
    ):
        for value in ("first-token-1111", "second-token-2222"):
            file.write_text(f"{value}\n")
            assert value.encode() not in await ask(port, get(origin.port, "/"))
    assert b"Bearer first-token-1111\r\n" in origin.heads[0]
    assert b"Bearer second-token-2222\r\n" in origin.heads[1]


@pytest.mark.parametrize("value", ["", "short", "with\r\nX: smuggled-header", "not-ascii-ümläut", "nul-\0-nul-nul"])
async def test_a_value_that_no_header_can_carry_is_not_sent(
    authority: Authority, server_tls: ssl.SSLContext, value: str
) -> None:
    async with (
        Origin(tls=server_tls) as origin,
        proxied([], [secret(origin.port, lambda: value)], tls=authority.client()) as (port, _),
    ):
        answer = await ask(port, get(origin.port, "/"))
    assert answer.startswith(b"HTTP/1.1 502 the credential forge ")
    assert len(value) < 8 or value.encode() not in answer
    assert origin.heads == []


async def test_a_credential_that_cannot_be_read_is_said_without_its_place(
    authority: Authority, server_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    read = (tmp_path / "missing").read_text
    async with (
        Origin(tls=server_tls) as origin,
        proxied([], [secret(origin.port, read)], tls=authority.client()) as (port, _),
    ):
        answer = await ask(port, get(origin.port, "/"))
    assert b"the credential forge cannot be read" in answer
    assert str(tmp_path).encode() not in answer


async def test_what_basic_carries_is_taken_out_too(authority: Authority, server_tls: ssl.SSLContext) -> None:
    carried = base64.b64encode(b"me:hunter2-hunter2").decode()

    def decode(head: bytes, body: bytes) -> bytes:
        plain = base64.b64decode(head.partition(b"Basic ")[2].partition(b"\r\n")[0])
        return b"HTTP/1.0 200 OK\r\n\r\n" + plain + b" and " + plain.partition(b":")[2]

    basic = secret(0, lambda: carried, value="Basic {}")
    async with Origin(decode, tls=server_tls) as origin:
        basic = basic._replace(hosts=(f"127.0.0.1:{origin.port}",))
        async with proxied([], [basic], tls=authority.client()) as (port, _):
            answer = await ask(port, get(origin.port, "/", version="1.0"))
    assert answer.endswith(b"[REDACTED] and [REDACTED]")


async def test_two_credentials_go_to_one_host(authority: Authority, server_tls: ssl.SSLContext) -> None:
    async with Origin(show_all, tls=server_tls) as origin:
        both = [secret(origin.port), secret(origin.port, lambda: "second-secret-2", name="tenant", header="X-Key")]
        async with proxied([], both, tls=authority.client()) as (port, decisions):
            answer = await ask(port, get(origin.port, "/"))
    assert b"X-Key: Bearer second-secret-2\r\n" in origin.heads[0]
    assert b"second-secret-2" not in answer
    assert decisions[0].credential == "forge, tenant"


async def test_plain_http_means_tls_at_443() -> None:
    async def resolve(name: str) -> list[str]:
        return ["127.0.0.9"]

    given = [secret(1)._replace(hosts=("api.example.org",))]
    how = {"resolve": resolve, "closed": lambda address: "", "bounds": Bounds(connect_s=2)}
    async with proxied(["api.example.org:8080"], given, **how) as (port, decisions):
        head = "Host: api.example.org\r\n\r\n"
        answer = await ask(port, f"GET http://api.example.org/ HTTP/1.1\r\n{head}".encode())
    assert b"502 api.example.org:443 cannot be reached" in answer, "and not port 80"
    assert decisions[0].credential == "forge"


def test_a_credential_is_never_sent_in_the_clear() -> None:
    with pytest.raises(ConfigError, match=r"forge is sent over TLS only; write `api\.example`"):
        Egress(Rules(), [Secret("forge", ("api.example:80",), "Authorization", "Bearer {}", str)])
