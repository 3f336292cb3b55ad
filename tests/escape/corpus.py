"""All attacks and all honest work, in the order of the table."""

from __future__ import annotations

from tests.escape import (
    attacks_blocklist,
    attacks_kernel,
    attacks_network,
    attacks_processes,
    attacks_read,
    attacks_resources,
    attacks_write,
    benign,
)
from tests.escape.attack import AREAS, Attack, Benign

__all__ = ["ATTACKS", "BENIGN", "PROXY_ATTACKS"]

_AREAS = {
    "write": attacks_write.ATTACKS,
    "read": attacks_read.ATTACKS,
    "processes": attacks_processes.ATTACKS,
    "kernel": attacks_kernel.ATTACKS,
    "network": attacks_network.ATTACKS,
    "resources": attacks_resources.ATTACKS,
    "blocklist": attacks_blocklist.ATTACKS,
}

ATTACKS: dict[str, Attack] = {f"{area}: {attack.name}": attack for area in AREAS for attack in _AREAS[area]}
"""By area and name."""

PROXY_ATTACKS = {f"proxy: {attack.name}": attack for attack in attacks_network.PROXY_ATTACKS}
"""For the network ``allowlist`` only."""

BENIGN: dict[str, Benign] = {item.name: item for item in benign.BENIGN}
assert len(ATTACKS) == sum(map(len, _AREAS.values())), "two attacks have the same name"
