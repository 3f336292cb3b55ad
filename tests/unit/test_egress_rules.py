"""Which hosts a rule means, in whatever spelling, and which addresses no name may lead to."""

from __future__ import annotations

import ipaddress
import socket

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from operator_core.errors import ConfigError
from operator_core.sandbox.egress.addresses import is_own, why_closed
from operator_core.sandbox.egress.host import Host, parse_authority, parse_host
from operator_core.sandbox.egress.rules import Rules

LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
NAME = st.lists(LABEL, min_size=1, max_size=4).map(".".join)


def allows(rules: list[str], host: str, port: int) -> bool:
    return Rules.parse(rules).find(parse_host(host), port) is not None


@pytest.mark.parametrize(
    ("rule", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 8080, False),
        ("example.org:8080", "example.org", 8080, True),
        ("example.org:8080", "example.org", 80, False),
        ("Example.ORG.", "EXAMPLE.org", 443, True),
        ("example.org", "example.org.", 443, True),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "notexample.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "a.b.example.org.", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("*.example.org:8443", "www.example.org", 443, False),
        ("xn--bcher-kva.example", "XN--bcher-kva.example", 443, True),
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.0.0.1:8080", "127.0.0.1", 8081, False),
        ("[::1]:8080", "[0:0:0:0:0:0:0:1]", 8080, True),
        ("2001:db8::1", "[2001:DB8:0::1]", 443, True),
        ("203.0.113.7", "203.0.113.7", 443, True),
        ("*.0.113.7.example", "203.0.113.7", 443, False),
    ],
)
def test_what_a_rule_means(rule: str, host: str, port: int, allowed: bool) -> None:
    assert allows([rule], host, port) is allowed


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ("", "no host"), ("*", "`*`"), ("*.", "no host"), ("*.*.example.org", "`*`"), ("a.*.org", "`*`"),
        ("ex*mple.org", "`*`"), ("https://example.org", "scheme"), ("example.org/path", "path"),
        ("10.0.0.0/8", "mask"), ("user@example.org", "user name"), ("example.org:0", "port"),
        ("example.org:65536", "port"), ("example.org:http", "port"), ("example.org:", "port"), ("a..b", "valid name"),
        ("bücher.example", "xn--"), ("localhost:8080", "127.0.0.1:8080"), ("x.localhost", "127.0.0.1:8080"),
        ("127.1:80", "unusual"), ("0x7f000001", "unusual"), ("2130706433", "unusual"), ("[::1", "IPv6"),
        ("[::ffff:127.0.0.1]:80", "IPv4 address"), ("fe80::1%eth0", "interface"), ("*.127.0.0.1", "below an address"),
        ("a b.example", "valid name"), ("-a.example", "valid name"), (f"{'a' * 64}.example", "valid name"),
        ("example.org\n", ""), ("exa\0mple.org", "valid name"),
    ],
)  # fmt: skip
def test_rules_that_mean_nothing_are_refused(rule: str, word: str) -> None:
    if rule == "example.org\n":
        assert Rules.parse([rule]).rules[0].text == "example.org"
        return
    with pytest.raises(ConfigError, match="is no host that could be allowed") as error:
        Rules.parse([rule])
    assert word in str(error.value)


@given(name=NAME, other=NAME, port=st.integers(1, 65535))
def test_a_rule_allows_its_host_and_no_other(name: str, other: str, port: int) -> None:
    assume(name != other and not name.endswith("localhost"))
    rules = Rules.parse([f"{name}:{port}"])
    assert rules.find(Host(name), port) is not None
    assert rules.find(Host(other), port) is None
    assert rules.find(Host(f"{other}.{name}"), port) is None
    assert rules.find(Host(f"{name}.{other}"), port) is None
    assert rules.find(Host(f"{other}{name}"), port) is None
    assert rules.find(Host(name), port % 65535 + 1) is None


@given(name=NAME, below=NAME, other=NAME)
def test_a_wildcard_allows_what_is_below_it(name: str, below: str, other: str) -> None:
    assume(not name.endswith("localhost") and not f".{name}.{other}".endswith(f".{name}"))
    rules = Rules.parse([f"*.{name}"])
    assert rules.find(Host(f"{below}.{name}"), 443) is not None
    assert rules.find(Host(name), 443) is None
    assert rules.find(Host(f"x{name}"), 443) is None
    assert rules.find(Host(f"{name}.{other}"), 443) is None


@given(number=st.integers(0, 2**32 - 1), data=st.data())
def test_an_address_has_one_spelling(number: int, data: st.DataObject) -> None:
    address = ipaddress.IPv4Address(number)
    a, b, c, d = address.packed
    spellings = [
        str(number), hex(number), hex(number).upper(), f"0{number:o}", f"{a}.{b}.{c * 256 + d}",
        f"{a}.{b * 65536 + c * 256 + d}", f"0x{a:x}.{b}.{c}.{d}", f"{a}.{b}.{c}.0{d:o}", f"{a}.{b}.{c}.{d}.0x",
        f"[::ffff:{address}]", f"::ffff:{a:02x}{b:02x}:{c:02x}{d:02x}", f"{address}%eth0", f"{a}..{b}.{c}.{d}",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"host|address"):
        parse_host(data.draw(st.sampled_from(spellings)))
    assert parse_host(str(address)) == Host(str(address), address)
    assert parse_host(f"{address}.") == Host(str(address), address)


@given(text=st.text(max_size=40))
def test_any_text_is_a_host_or_a_reason(text: str) -> None:
    try:
        host, port = parse_authority(text, 80)
    except ValueError:
        return
    assert host.name == host.name.lower()
    assert host.name.isascii()
    assert "@" not in host.name
    assert 0 < port < 65536
    assert parse_authority(host.at(port), None) == (host, port), "what is shown means the same"


@pytest.mark.parametrize(
    "text",
    ["user@host:80", "user:pw@host", "host:80@evil", "host:", "host:80:80", "[::1]80", "[::1", "::1:80", "host:+80",
     "host:0x50", "host:8 0", "host: 80", "", ":80", "ho st", "host\\evil", "host%2eevil", "h\u0000st", "host:٣"],
)  # fmt: skip
def test_what_is_no_authority(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_authority(text, 80)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.1.1", "224.0.0.1",
        "239.255.255.250", "255.255.255.255", "240.0.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:0:127.0.0.1", "::ffff:169.254.169.254", "fe80::1",
        "fe80::1%lo", "ff02::1", "fd00:ec2::254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1",
        "2002:7f00:1::", "2002:7f00:1::808:808", "2002:a9fe:a9fe::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "fec0::1", "100::1",
    ],
)  # fmt: skip
def test_addresses_to_which_no_name_may_lead(text: str) -> None:
    assert why_closed(ipaddress.ip_address(text), own=lambda address: False)


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "10.0.0.5",
        "192.168.1.9",
        "100.64.0.1",
        "2606:4700::1111",
        "fd12:3456::1",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_addresses_that_are_open(text: str) -> None:
    assert why_closed(ipaddress.ip_address(text), own=lambda address: False) == ""


def test_the_addresses_of_this_machine_are_known() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("192.0.2.1"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("127.0.0.1", 9))
        mine = ipaddress.ip_address(probe.getsockname()[0])
    assert is_own(mine)
    assert why_closed(ipaddress.ip_address("64:ff9b::a00:5"), own=lambda address: str(address) == "10.0.0.5")
    assert why_closed(ipaddress.ip_address("10.0.0.5"), own=lambda address: True)
