"""Which addresses are never reached by a name: this machine, its network link, and what hands out credentials."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

from operator_core.sandbox.egress.host import Address

__all__ = ["is_own", "why_closed"]

# What clouds serve outside of the link-local range.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
_ZERO = ipaddress.IPv4Network("0.0.0.0/8")
_CARRIES_IPV4 = tuple(
    (ipaddress.IPv6Network(network), shift)
    for network, shift in (
        ("::/96", 0),  # IPv4-compatible
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated
        ("64:ff9b::/96", 0),  # NAT64
        ("2002::/16", 80),  # 6to4
    )
)
# Where the IPv4 address stands in them depends on somebody else's configuration, or it is scrambled.
_TUNNELS = tuple(map(ipaddress.IPv6Network, ("64:ff9b:1::/48", "2001::/32", "fec0::/10")))


def is_own(address: Address) -> bool:
    """Whether it is an address of this machine: only to such can a socket be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def why_closed(address: Address, own: Callable[[Address], bool] = is_own) -> str:
    """Why no name may lead there, as a clause; empty if it may.

    Args:
        own: Whether an address is one of this machine.
    """
    if address in _METADATA:
        return "it is a metadata service, which hands out the machine's credentials"
    if isinstance(address, ipaddress.IPv6Address):
        if address.is_unspecified or address.is_loopback:
            return "it is this machine"
        for network, shift in _CARRIES_IPV4:
            if address in network:
                return why_closed(ipaddress.IPv4Address(int(address) >> shift & 0xFFFFFFFF), own)
        if any(address in network for network in _TUNNELS):
            return "it is an address of a tunnel"
    if address.is_loopback or address in _ZERO:
        return "it is this machine"
    if address.is_link_local:
        return "it is on the machine's own network link"
    if address.is_multicast:
        return "it is a multicast address"
    if address.is_reserved:
        return "it is a reserved address"
    if own(address):
        return "it is an address of this machine"
    return ""
