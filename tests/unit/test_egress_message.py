"""What two programs could read differently does not pass."""

from __future__ import annotations

import asyncio
import contextlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from operator_core.sandbox.egress.body import chunk, read_body
from operator_core.sandbox.egress.message import Malformed, parse_request, parse_response

GET = b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n"
POST = b"POST http://example.org/ HTTP/1.1\r\nHost: example.org\r\n"


def test_a_request_is_read() -> None:
    head = (
        b"POST http://Example.org.:8080/a?b=http://c@d HTTP/1.1\r\nHost: EXAMPLE.org:8080\r\nA: 1\r\nA:\t2 \r\n"
        b"Connection: close, X-Hop\r\nX-Hop: gone\r\nProxy-Authorization: Basic eDp5\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: x\r\nTE: trailers\r\nKeep-Alive: 5\r\nContent-Length: 12\r\nExpect: 100-continue\r\n\r\n"
    )
    request = parse_request(head)
    assert (request.method, request.host.name, request.port) == ("POST", "example.org", 8080)
    assert request.path == "/a?b=http://c@d"
    assert request.headers == [("A", "1"), ("A", "2")]
    assert (request.length, request.expects, request.version) == (12, True, 1)


@pytest.mark.parametrize(
    ("line", "host", "port", "path"),
    [
        (b"GET http://example.org HTTP/1.1", "example.org", 80, "/"),
        (b"GET http://example.org?q HTTP/1.1", "example.org", 80, "/?q"),
        (b"GET HTTP://example.org/ HTTP/1.1", "example.org", 80, "/"),
        (b"CONNECT example.org:443 HTTP/1.1", "example.org", 443, ""),
        (b"CONNECT [2001:db8::1]:443 HTTP/1.1", "2001:db8::1", 443, ""),
        (b"GET http://[2001:db8::1]:81/ HTTP/1.0", "2001:db8::1", 81, "/"),
    ],
)
def test_where_it_goes(line: bytes, host: str, port: int, path: str) -> None:
    authority = line.split()[1].removeprefix(b"http://").removeprefix(b"HTTP://").split(b"/")[0].split(b"?")[0]
    request = parse_request(line + b"\r\nHost: " + authority + b"\r\n\r\n")
    assert (request.host.name, request.port, request.path) == (host, port, path)


HOSTILE = {
    "both lengths": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n",
    "the same length twice": POST + b"Content-Length: 4\r\nContent-Length: 4\r\n",
    "a list of lengths": POST + b"Content-Length: 4, 4\r\n",
    "a length with a sign": POST + b"Content-Length: +4\r\n",
    "a length in hex": POST + b"Content-Length: 0x4\r\n",
    "a negative length": POST + b"Content-Length: -4\r\n",
    "a length with a vertical tab": POST + b"Content-Length: \x0b4\r\n",
    "an empty length": POST + b"Content-Length:\r\n",
    "digits that are not ASCII": POST + b"Content-Length: \xb2\r\n",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "a hidden coding": POST + b"Transfer-Encoding: \x0bchunked\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n",
    "a blank before the colon": POST + b"Transfer-Encoding : chunked\r\n",
    "a blank before the name": POST + b" Transfer-Encoding: chunked\r\n",
    "a folded header": GET + b"X: a\r\n\tb\r\n",
    "a bare line feed": GET + b"X: a\nTransfer-Encoding: chunked\r\n",
    "a bare carriage return": GET + b"X: a\rTransfer-Encoding: chunked\r\n",
    "NUL in a value": GET + b"X: a\0b\r\n",
    "no colon": GET + b"Xa\r\n",
    "no name": GET + b": a\r\n",
    "a name with a slash": GET + b"A/B: c\r\n",
    "a name that is not ASCII": GET + b"H\xf6st: c\r\n",
    "too many headers": GET + b"X: y\r\n" * 200,
    "a method without an end": GET.replace(b"GET", b"G" * 33, 1),  # the journal keeps it
    "no host": b"GET http://example.org/ HTTP/1.1\r\n",
    "two hosts": GET + b"Host: example.org\r\n",
    "another host": b"GET http://example.org/ HTTP/1.1\r\nHost: evil.example\r\n",
    "another port": b"GET http://example.org/ HTTP/1.1\r\nHost: example.org:81\r\n",
    "a path only": b"GET / HTTP/1.1\r\nHost: example.org\r\n",
    "a path with a URL": b"GET /http://example.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "two slashes": b"GET //example.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "another scheme": b"GET https://example.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "ftp": b"GET ftp://example.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "a user name": b"GET http://example.org@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n",
    "a user name with a port": b"GET http://example.org:80@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n",
    "a backslash": b"GET http://example.org\\@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n",
    "a fragment": b"GET http://example.org/#@evil.example HTTP/1.1\r\nHost: example.org\r\n",
    "a fragment at once": b"GET http://example.org#@evil.example/ HTTP/1.1\r\nHost: example.org\r\n",
    "percent in the host": b"GET http://example%2eorg/ HTTP/1.1\r\nHost: example.org\r\n",
    "no host in the URL": b"GET http:/// HTTP/1.1\r\nHost: example.org\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\nHost: example.org\r\n",
    "a tab in the line": b"GET\thttp://example.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "two blanks in the line": b"GET  http://example.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "four words": b"GET http://example.org/ x HTTP/1.1\r\nHost: example.org\r\n",
    "HTTP/0.9": b"GET http://example.org/\r\n",
    "HTTP/2.0": b"GET http://example.org/ HTTP/2.0\r\nHost: example.org\r\n",
    "HTTP/1.2": b"GET http://example.org/ HTTP/1.2\r\nHost: example.org\r\n",
    "the beginning of HTTP/2": b"PRI * HTTP/2.0\r\n",
    "a method that is none": b"GE:T http://example.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "a path that is not ASCII": b"GET http://example.org/\xff HTTP/1.1\r\nHost: example.org\r\n",
    "a host that is not ASCII": b"GET http://ex\xe4mple.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "CONNECT without a port": b"CONNECT example.org HTTP/1.1\r\nHost: example.org\r\n",
    "CONNECT with a URL": b"CONNECT http://example.org/ HTTP/1.1\r\nHost: example.org\r\n",
    "CONNECT with a path": b"CONNECT example.org:443/x HTTP/1.1\r\nHost: example.org\r\n",
    "CONNECT with a body": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\nContent-Length: 4\r\n",
    "CONNECT with chunks": b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nTransfer-Encoding: chunked\r\n",
    "CONNECT for another": b"CONNECT example.org:443 HTTP/1.1\r\nHost: evil.example:443\r\n",
    "CONNECT with a user name": b"CONNECT a@example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n",
    "chunks of HTTP/1.0": b"POST http://example.org/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n",
    "an empty line first": b"\r\n" + GET,
}


@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_what_does_not_pass(head: bytes) -> None:
    with pytest.raises(Malformed) as error:
        parse_request(head + b"\r\n")
    assert error.value.why
    assert error.value.status in (400, 431, 505)


def test_the_plain_forms_of_the_hostile_ones_pass() -> None:
    for head in (GET, POST, POST + b"Content-Length: 4\r\n", POST + b"Transfer-Encoding: Chunked\r\n"):
        parse_request(head + b"\r\n")


@given(head=st.binary(max_size=200) | st.lists(st.sampled_from(list(HOSTILE.values())), max_size=3).map(b"".join))
def test_any_bytes_are_a_request_or_malformed(head: bytes) -> None:
    with contextlib.suppress(Malformed):
        request = parse_request(head + b"\r\n\r\n")
        assert all("\r" not in value and "\n" not in value for _, value in request.headers)


def test_an_answer_is_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n"
    response = parse_response(head, "GET")
    assert (response.status, response.length, response.declared) == (200, 5, 5)
    assert response.headers == [("Set-Cookie", "a"), ("Set-Cookie", "b")]
    response = parse_response(head, "HEAD")
    assert (response.length, response.declared) == (0, 5)
    assert parse_response(b"HTTP/1.0 204\r\n\r\n", "GET").length == 0
    assert parse_response(b"HTTP/1.1 200 \r\n\r\n", "GET").length == -1
    assert parse_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET").length is None


@pytest.mark.parametrize(
    "head",
    [b"HTTP/2 200 OK\r\n\r\n", b"ICY 200 OK\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 200 O\0K\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"],
)  # fmt: skip
def test_an_answer_that_does_not_pass(head: bytes) -> None:
    with pytest.raises(Malformed) as error:
        parse_response(head, "GET")
    assert error.value.status >= 400


# ---- bodies


async def body(data: bytes, length: int | None, most: int = 1000) -> bytes:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return b"".join([part async for part in read_body(reader, length, most)])


@given(parts=st.lists(st.binary(min_size=1, max_size=20), max_size=5))
async def test_chunks_are_read_as_they_were_written(parts: list[bytes]) -> None:
    wire = b"".join(map(chunk, [*parts, b""]))
    assert await body(wire, None) == b"".join(parts)


async def test_extensions_and_trailers_are_left_behind() -> None:
    assert await body(b"3;a=b\r\nabc\r\n0\r\nHost: evil\r\n\r\nGET http://evil", None) == b"abc"
    assert await body(b"abcdef", 3) == b"abc"
    assert await body(b"abcdef", -1) == b"abcdef"


@pytest.mark.parametrize(
    "wire",
    [b"3\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b"+3\r\nabc\r\n0\r\n\r\n",
     b"-1\r\n", b" 3\r\nabc\r\n", b"\r\n", b"g\r\n", b"3\r\nab", b"3\r\nabc\n\n0\r\n\r\n", b"fffffffffffff\r\n",
     b"ffffffffff\r\n", b"3 4\r\nabc\r\n", b"3;\n\r\nabc\r\n0\r\n\r\n", b"0\r\n" + b"A: b\r\n" * 70 + b"\r\n"],
)  # fmt: skip
async def test_chunks_that_are_none(wire: bytes) -> None:
    with pytest.raises((Malformed, asyncio.IncompleteReadError)):
        await body(wire, None)


@pytest.mark.parametrize(("wire", "length"), [(b"x" * 11, 11), (b"x" * 11, -1), (b"b\r\n" + b"x" * 11, None)])
async def test_a_body_has_a_limit(wire: bytes, length: int | None) -> None:
    with pytest.raises(Malformed, match="too long") as error:
        await body(wire, length, most=10)
    assert error.value.status == 413


async def test_a_body_that_breaks_off() -> None:
    with pytest.raises(Malformed, match="before its length"):
        await body(b"abc", 4)
