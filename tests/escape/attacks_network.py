"""Talking to somebody. The policy of the session has the network ``none``."""

from __future__ import annotations

from tests.escape.attack import KIT, Attack, Benign, claimed, heard
from tests.escape.field import Field

__all__ = ["ATTACKS", "PROXY_ATTACKS", "PROXY_WORK"]


def _met(field: Field) -> bool:
    return field.server_reached


ATTACKS = [
    Attack("a service on the loopback interface", f'{KIT} tcp 127.0.0.1 "$PORT"', heard),
    Attack("the same by bash alone", 'exec 3<>"/dev/tcp/127.0.0.1/$PORT"; echo "$ID" >&3; head -n 1 <&3', heard),
    Attack("the same by IPv6", f'{KIT} tcp ::1 "$PORT6"', heard, machine=True),
    Attack("the same by the address 0.0.0.0", f'{KIT} tcp 0.0.0.0 "$PORT"', heard),
    Attack("the same by an IPv4 address in IPv6", f'{KIT} tcp ::ffff:127.0.0.1 "$PORT"', heard, machine=True),
    Attack("a service on other addresses of the host", f'{KIT} tcp "$ADDRESSES" "$PORT"', heard),
    Attack("data with the first packet, without connect(2)", f'{KIT} fast_open "$PORT"', heard, machine=True),
    Attack("a connection over several paths (MPTCP)", f'{KIT} multipath "$PORT"', heard, machine=True),
    Attack("a datagram", f'{KIT} udp 127.0.0.1 "$UDP"', heard),
    Attack("a service with a name in the file system", f'{KIT} unix "$SERVICE"', heard),
    Attack("a service with an abstract name", f'{KIT} unix "$ABSTRACT"', heard),
    Attack("a datagram to the host's log", f'{KIT} datagram "$LOG"', heard),
    Attack("posing as a service of the host", f'{KIT} serve "$FREE"', _met),
    Attack(
        "the docker daemon",
        "for s in /run/docker.sock /var/run/docker.sock; do curl -s -m 2 --unix-socket $s http://docker/version; done "
        '| grep -q ApiVersion && echo "$SAY"',
        claimed,
        machine=True,
    ),
    Attack("packets past the system (AF_PACKET)", f"{KIT} family 17 3 768", claimed, machine=True),
    Attack("raw packets", f"{KIT} family 2 3 1", claimed, machine=True),
    Attack("the host of this virtual machine (AF_VSOCK)", f"{KIT} family 40 1 0", claimed, machine=True),
    Attack(
        "the kernel's cryptography (AF_ALG)",
        f"{KIT} family 38 5 0",
        claimed,
        machine=True,
        idle="that machine's kernel has none",
    ),
]


def _connect(name: str, place: str) -> Attack:
    return Attack(f"a tunnel to {name}", f'{KIT} proxied "CONNECT {place} HTTP/1.1" "Host: {place}"', heard)


def _get(name: str, place: str, host: str = "") -> Attack:
    line = f'"GET http://{place}/$ID HTTP/1.1" "Host: {host or place}"'
    return Attack(f"a request to {name}", f"{KIT} proxied {line}", heard)


# With the network `allowlist`, of which one port of 127.0.0.1 is a part.
PROXY_WORK = Benign(
    "the service that is allowed",
    (
        f'{KIT} proxied "CONNECT 127.0.0.1:$LISTED HTTP/1.1" "Host: 127.0.0.1:$LISTED" | grep " 200 "',
        f'{KIT} proxied "GET http://127.0.0.1:$LISTED/ HTTP/1.1" "Host: 127.0.0.1:$LISTED"',
    ),
    "served",
)
PROXY_ATTACKS = [
    _connect("another port of the same host", "127.0.0.1:$PORT"),
    _connect("a name of the same host", "localhost:$PORT"),
    _connect("its address as one number", "2130706433:$PORT"),
    _connect("its address in other digits", "0x7f.0.0.1:$PORT"),
    _connect("its address in eights", "0177.0.0.1:$PORT"),
    _connect("its short address", "127.1:$PORT"),
    _connect("its IPv6 address", "[::1]:$PORT6"),
    _connect("its IPv4 address in IPv6", "[::ffff:127.0.0.1]:$PORT"),
    _connect("the unspecified address", "0.0.0.0:$PORT"),
    _connect("another address of the host", "${ADDRESSES%%,*}:$PORT"),
    _connect("an allowed name with another behind it", "127.0.0.1:$LISTED@127.0.0.1:$PORT"),
    _get("another port of the same host", "127.0.0.1:$PORT"),
    _get("an allowed place, with the other one in the header", "127.0.0.1:$LISTED", "127.0.0.1:$PORT"),
    _get("a name and a password that look like the allowed place", "127.0.0.1:$LISTED@127.0.0.1:$PORT"),
    _get("an allowed place, cut off by a line break", "127.0.0.1:$LISTED\r\nX: @127.0.0.1:$PORT"),
    Attack(
        "a second request behind the first",
        f'{KIT} proxied "GET http://127.0.0.1:$LISTED/ HTTP/1.1" "Host: 127.0.0.1:$LISTED" "Content-Length: 0" "" '
        '"GET http://127.0.0.1:$PORT/$ID HTTP/1.1" "Host: 127.0.0.1:$PORT"',
        heard,
    ),
    Attack(
        "a request in the body of another",
        f'{KIT} proxied "POST http://127.0.0.1:$LISTED/ HTTP/1.1" "Host: 127.0.0.1:$LISTED" "Content-Length: 4" '
        '"Transfer-Encoding: chunked" "" "0" "" "GET http://127.0.0.1:$PORT/$ID HTTP/1.1" "Host: 127.0.0.1:$PORT"',
        heard,
    ),
]
