"""Host names and addresses, read strictly: one spelling of each, and everything else is refused."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

__all__ = ["Address", "Host", "parse_authority", "parse_host", "parse_port"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")
_LONGEST = 253


class Host(NamedTuple):
    """A host.

    Attributes:
        name: Lower case, without a dot at the end; an IPv6 address without brackets.
        address: The address, if that is what the name is.
    """

    name: str
    address: Address | None = None

    def at(self, port: int) -> str:
        """``host:port``, as a person would write it."""
        return f"[{self.name}]:{port}" if self.address and self.address.version == 6 else f"{self.name}:{port}"


def parse_host(text: str) -> Host:
    """A host as it stands in a URL or a rule; an IPv6 address may have brackets.

    Raises:
        ValueError: It is none, or an address in another than its usual spelling; a clause that says why.
    """
    name = text.lower()
    if name.startswith("[") or ":" in name:
        return _ipv6(name.removeprefix("[").removesuffix("]") if name.startswith("[") else name)
    name = name.removesuffix(".")
    if not name:
        raise ValueError("there is no host")
    if not name.isascii():
        raise ValueError("the host is not written in ASCII; give its `xn--` form")
    if len(name) > _LONGEST or not all(map(_LABEL.match, name.split("."))):
        raise ValueError("the host is no valid name")
    try:
        return Host(name, ipaddress.IPv4Address(name))
    except ValueError:
        # The system's resolver would read `127.1`, `0x7f000001` and `2130706433` as addresses.
        if _NUMBER.match(name.rsplit(".", 1)[-1]):
            raise ValueError("the host is an address in an unusual spelling; write it as four plain numbers") from None
    return Host(name)


def _ipv6(text: str) -> Host:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("the host is no valid IPv6 address") from None
    if address.scope_id is not None:
        raise ValueError("the address names an interface")
    if address.ipv4_mapped is not None:
        raise ValueError("the address is an IPv4 address in an IPv6 spelling; write the IPv4 address")
    return Host(str(address), address)


def parse_port(text: str) -> int:
    """A port.

    Raises:
        ValueError: It is none; a clause that says why.
    """
    if not _PORT.match(text) or not 0 < int(text) < 1 << 16:
        raise ValueError("the port is not a number from 1 to 65535")
    return int(text)


def parse_authority(text: str, default_port: int | None) -> tuple[Host, int]:
    """``host`` or ``host:port``, as in a URL.

    Args:
        default_port: If there is none in it; None: there must be one.

    Raises:
        ValueError: It is neither; a clause that says why.
    """
    if "@" in text:
        raise ValueError("there is a user name in the address; leave it out")
    if text.startswith("["):
        inside, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("the host is no valid IPv6 address")
        host, port = inside + bracket, rest[1:] if rest else None
    else:
        host, colon, after = text.partition(":")
        port = after if colon else None
    if port is None:
        if default_port is None:
            raise ValueError("there is no port")
        return parse_host(host), default_port
    return parse_host(host), parse_port(port)
