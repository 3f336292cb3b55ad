"""Small parts of the server: how often one may try to sign in, and where one goes on to."""

from __future__ import annotations

import socket
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.clock import Clock
from operator_core.errors import ConfigError
from operator_core.http_server import address_of, listen
from operator_core.web.limits import LoginLimit
from operator_core.web.login import local_path


class _Time(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


def test_an_address_waits_until_its_oldest_failure_is_over() -> None:
    time = _Time()
    limit = LoginLimit(per_address=3, together=100, window_s=60, time=time)
    for _ in range(3):
        assert limit.wait_s("192.0.2.1") == 0
        limit.failed("192.0.2.1")
        time.at += 10
    assert limit.wait_s("192.0.2.1") == 30
    assert limit.wait_s("192.0.2.2") == 0
    time.at += 29.5
    assert limit.wait_s("192.0.2.1") == 1
    time.at += 0.5
    assert limit.wait_s("192.0.2.1") == 0


def test_those_that_are_being_looked_at_count_until_they_have_ended() -> None:
    time = _Time()
    limit = LoginLimit(per_address=3, together=100, window_s=60, time=time)
    limit.failed("192.0.2.1")
    with limit.trying("192.0.2.1"):
        assert limit.wait_s("192.0.2.1") == 0
        with limit.trying("192.0.2.1"):
            assert limit.wait_s("192.0.2.1") == 1
            assert limit.wait_s("192.0.2.2") == 0
            time.at += 60
            assert limit.wait_s("192.0.2.1") == 0, "what failed long ago counts no more"
    with limit.trying("192.0.2.1"), limit.trying("192.0.2.1"), limit.trying("192.0.2.1"):
        assert limit.wait_s("192.0.2.1") == 1
    assert limit.wait_s("192.0.2.1") == 0, "those that succeeded cost nothing"


def test_many_addresses_wait_together() -> None:
    time = _Time()
    limit = LoginLimit(per_address=3, together=10, window_s=60, time=time)
    for n in range(10):
        assert limit.wait_s(f"192.0.2.{n}") == 0
        limit.failed(f"192.0.2.{n}")
    assert limit.wait_s("192.0.2.1") == 60
    assert limit.wait_s("198.51.100.1") == 0, "nobody is kept out by what others do"
    limit.failed("198.51.100.1")
    assert limit.wait_s("198.51.100.1") == 60
    time.at += 60
    assert limit.wait_s("192.0.2.1") == limit.wait_s("198.51.100.1") == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("unix", "unix", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    limit = LoginLimit(per_address=1)
    limit.failed(one)
    assert (limit.wait_s(other) > 0) is same


def test_a_flood_of_addresses_takes_no_memory() -> None:
    limit = LoginLimit()
    for n in range(30_000):
        limit.failed(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
    assert len(limit._by) <= 10_000
    assert len(limit._all) <= 200


@given(st.text(max_size=60) | st.from_regex(r"[/\\\\:.a-z@?#%\t\r\n ]{1,30}"))
def test_signing_in_never_leads_to_another_site(wanted: str) -> None:
    path = local_path(wanted)
    assert path == wanted or path == "/"
    # As a browser reads it: backslashes are slashes, and tabs and line breaks are nothing.
    read = path.replace("\\", "/")
    for nothing in "\t\r\n":
        read = read.replace(nothing, "")
    found = urlsplit(urljoin("http://here.example/login", read))
    assert (found.scheme, found.netloc) == ("http", "here.example")
    assert path.isprintable()


@pytest.mark.parametrize(
    "path", ["/", "/tickets/7", "/?status=open&status=running", "/tickets/1/evidence#x", "/approvals?a=b:c"]
)
def test_pages_of_ours_are_gone_on_to(path: str) -> None:
    assert local_path(path) == path


def test_an_address_that_is_taken_is_said_in_one_sentence() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert address_of(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=rf"Port {port} of 127\.0\.0\.1 is in use; .*--port"):
            listen("127.0.0.1", port)
    for host, known_as in (("0.0.0.0", "127.0.0.1"), ("127.0.0.2", "127.0.0.2")):
        with socket.create_server((host, 0)) as other:
            assert address_of(other) == f"http://{known_as}:{other.getsockname()[1]}"
    with listen("::1", 0) as six:
        assert address_of(six) == f"http://[::1]:{six.getsockname()[1]}"
