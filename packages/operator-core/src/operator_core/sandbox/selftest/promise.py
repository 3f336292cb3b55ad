"""What a backend says that it enforces, before the self-test tries to prove it wrong."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from operator_core.sandbox.report import Control, Level

__all__ = ["NAMESPACES", "STATUS", "Promise"]

NAMESPACES = ("pid", "mnt", "user", "ipc", "uts")
STATUS: Mapping[str, str] = MappingProxyType(
    {"CapEff:": "0" * 16, "CapPrm:": "0" * 16, "CapBnd:": "0" * 16, "NoNewPrivs:": "1", "Seccomp:": "2"}
)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_NO_CONTROLS: Mapping[str, Control] = MappingProxyType({})


class Promise(NamedTuple):
    """What a backend says that it enforces.

    Attributes:
        backend: Name and version, for the report.
        level: What it is at best; with the network of the host it is ``open``.
        how: By control, how it is enforced, where that differs from bubblewrap.
        gaps: Controls it does not promise, as the report is to state them; they are not attacked.
        found: Controls that the backend has looked at itself; they are taken over.
        namespaces: Kinds of namespaces that differ from ours; the network's is added unless commands have ours, or
            there are none at all.
        processes: How many processes a command may see.
        hidden: Paths that must not exist in there; None: a list for a root that is made of chosen parts of ours.
        status: What lines of ``/proc/self/status`` say.
    """

    backend: str
    level: Level = "isolated"
    how: Mapping[str, str] = _NOTHING
    gaps: Mapping[str, Control] = _NO_CONTROLS
    found: Mapping[str, Control] = _NO_CONTROLS
    namespaces: tuple[str, ...] = NAMESPACES
    processes: int = 8
    hidden: tuple[str, ...] | None = None
    status: Mapping[str, str] = STATUS
