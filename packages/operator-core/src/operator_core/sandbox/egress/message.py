"""HTTP/1 heads, read strictly: what two programs could read differently is refused, never guessed."""

from __future__ import annotations

import re
from typing import NamedTuple

from operator_core.sandbox.egress.host import Host, parse_authority

__all__ = ["HOP_BY_HOP", "Malformed", "Request", "Response", "parse_request", "parse_response"]

Headers = list[tuple[str, str]]

HOP_BY_HOP = frozenset(
    {
        "connection", "expect", "http2-settings", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}\Z")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")
_TARGET = re.compile(r"[\x21-\x7e]+\Z")
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\Z")
_LENGTH = re.compile(r"[0-9]{1,15}\Z")
_MOST_HEADERS = 200


class Malformed(Exception):
    """A message that is not passed on.

    Args:
        why: A clause.
        status: For the answer.
    """

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.why = why
        self.status = status


class Request(NamedTuple):
    """The head of a request.

    Attributes:
        method: ``GET``, ``CONNECT``, ...
        host: Where it is to go.
        port: TCP port; of ``http://`` 80 unless it says another.
        path: With the query; empty for ``CONNECT``.
        headers: Name and value, without what concerns one connection only, ``Host`` and the length.
        version: 0 or 1, of HTTP/1.
        length: Bytes of the body; None: it comes in chunks.
        expects: Whether the client waits for a word before it sends the body.
    """

    method: str
    host: Host
    port: int
    path: str
    headers: Headers
    version: int
    length: int | None
    expects: bool


class Response(NamedTuple):
    """The head of a response.

    Attributes:
        status: ``200``, ...
        reason: The words after it.
        headers: As in :class:`Request`, without the length.
        length: Bytes of the body; -1: as many as come; None: it comes in chunks.
        declared: The length in the head, which ``HEAD`` has without a body; -1: there is none.
    """

    status: int
    reason: str
    headers: Headers
    length: int | None
    declared: int = -1


def parse_request(head: bytes) -> Request:
    """Read the head of a request to a proxy, with the empty line at its end.

    Raises:
        Malformed: It is not passed on.
    """
    first, headers = _split(head)
    words = first.split(" ")
    if len(words) == 3 and not words[1].isascii():
        raise Malformed("the URL holds a character that must be percent-encoded")
    if len(words) != 3 or not _METHOD.match(words[0]) or not _TARGET.match(words[1]):
        raise Malformed("the first line is not `METHOD URL HTTP/1.1`")
    method, target, protocol = words
    if protocol not in ("HTTP/1.0", "HTTP/1.1"):
        raise Malformed("only HTTP/1.0 and HTTP/1.1 pass", 505)
    version = int(protocol[-1])
    host, port, path = _target(method, target)
    _check_host(headers, host, port, required=version == 1)
    length = _framing(headers, 0)
    if method == "CONNECT" and length != 0:
        raise Malformed("CONNECT has no body")
    if length is None and version == 0:
        raise Malformed("a request of HTTP/1.0 has no chunks")
    expects = any(name == "expect" for name, _ in _lower(headers))
    return Request(method, host, port, path, _end_to_end(headers, {"host"}), version, length, expects)


def parse_response(head: bytes, method: str) -> Response:
    """Read the head of a response, with the empty line at its end.

    Args:
        method: Of the request.

    Raises:
        Malformed: It is not passed on.
    """
    first, headers = _split(head)
    match = _STATUS.match(first)
    if match is None:
        raise Malformed("the first line of the answer is not one of HTTP/1", 502)
    status = int(match[2])
    try:
        framing = _framing(headers, -1)
    except Malformed as error:
        raise Malformed(f"in the answer {error.why}", 502) from None
    bodyless = method == "HEAD" or status < 200 or status in (204, 304)
    declared = -1 if framing is None or (bodyless and method != "HEAD") else framing
    return Response(status, match[3] or "", _end_to_end(headers, set()), 0 if bodyless else framing, declared)


def _split(head: bytes) -> tuple[str, Headers]:
    lines = head.decode("latin-1").split("\r\n")
    if len(lines) < 3 or lines[-2:] != ["", ""]:
        raise Malformed("the head has no end")
    first, *rest = lines[:-2]
    if len(rest) > _MOST_HEADERS:
        raise Malformed(f"there are more than {_MOST_HEADERS} headers", 431)
    headers = []
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.match(name):
            # Also a line that begins with a blank and so would belong to the one before.
            raise Malformed("a header is not `Name: value` on one line")
        value = value.strip(" \t")
        if not _VALUE.match(value):
            raise Malformed("a header holds a control character")
        headers.append((name, value))
    return first, headers


def _lower(headers: Headers) -> Headers:
    return [(name.lower(), value) for name, value in headers]


def _values(headers: Headers, wanted: str) -> list[str]:
    return [value for name, value in _lower(headers) if name == wanted]


def _target(method: str, target: str) -> tuple[Host, int, str]:
    try:
        if method == "CONNECT":
            return *parse_authority(target, None), ""
        scheme, separator, rest = target.partition("://")
        if not separator or target.startswith("/"):
            raise Malformed("this is a proxy, and the URL names no host; ask for `http://HOST/...`")
        if scheme.lower() != "http":
            raise Malformed(f"`{scheme}` URLs do not pass; ask for `http://HOST/...`, or CONNECT for TLS")
        cut = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
        authority, path = rest[:cut], rest[cut:]
        if "\\" in authority:
            raise Malformed("the URL holds a `\\` before its path")
        if "#" in path:
            raise Malformed("the URL has a fragment; leave out `#` and what follows")
        return *parse_authority(authority, 80), path if path.startswith("/") else f"/{path}"
    except ValueError as error:
        raise Malformed(str(error)) from None


def _check_host(headers: Headers, host: Host, port: int, *, required: bool) -> None:
    values = _values(headers, "host")
    if len(values) > 1 or (required and not values):
        raise Malformed("there must be one `Host` header")
    if values:
        try:
            named, at = parse_authority(values[0], port)
        except ValueError as error:
            raise Malformed(f"in the `Host` header {error}") from None
        if (named, at) != (host, port):
            raise Malformed("the `Host` header names another host than the URL")


def _framing(headers: Headers, otherwise: int) -> int | None:
    """The length of the body; None: it comes in chunks."""
    codings, lengths = _values(headers, "transfer-encoding"), _values(headers, "content-length")
    if codings:
        if lengths:
            raise Malformed("there are both `Content-Length` and `Transfer-Encoding`")
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise Malformed("the only transfer coding that passes is `chunked`")
        return None
    if not lengths:
        return otherwise
    if len(lengths) > 1 or not _LENGTH.match(lengths[0]):
        raise Malformed("`Content-Length` is not one number")
    return int(lengths[0])


def _end_to_end(headers: Headers, dropped: set[str]) -> Headers:
    named = {word.strip().lower() for value in _values(headers, "connection") for word in value.split(",")}
    gone = HOP_BY_HOP | named | dropped | {"content-length"}
    return [(name, value) for name, value in headers if name.lower() not in gone]
