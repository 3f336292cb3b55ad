"""What a Python subject and its checker have to offer, and the generic values that subjects share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from operator_core.model.ticket import InvariantViolation

__all__ = ["ClusterMetrics", "InvariantCheckerProtocol", "Store", "StoreMetrics", "SubjectProtocol"]


@runtime_checkable
class SubjectProtocol(Protocol):
    """A system under watch."""

    async def observe(self) -> dict[str, Any]:
        """Look at everything once; JSON-like. An exception says that nothing could be seen: everything is unknown."""
        ...


@runtime_checkable
class InvariantCheckerProtocol(Protocol):
    """The invariants of a subject.

    Two further methods are used when a checker has them. ``unknown(observation) -> Mapping[str, str]`` gives the keys
    (``{invariant_name}`` or ``{invariant_name}:{store_id}``) that this observation says nothing about, each with the
    reason. ``restore(first_seen: Mapping[str, datetime])`` is called once before the first check: the keys that were
    violated when the monitor stopped, and since when, so that a grace period goes on and does not begin anew.
    """

    def check(self, observation: dict[str, Any]) -> list[InvariantViolation]:
        """What does not hold now. What is neither here nor unknown is healthy."""
        ...


@dataclass(frozen=True)
class Store:
    """One member of a distributed store."""

    id: str
    address: str
    state: str


@dataclass(frozen=True)
class StoreMetrics:
    """What one member does: requests per second, milliseconds, bytes, percent, and entries of replication lag."""

    store_id: str
    qps: float
    latency_p99_ms: float
    disk_used_bytes: int
    disk_total_bytes: int
    cpu_percent: float
    raft_lag: int


@dataclass(frozen=True)
class ClusterMetrics:
    """Counts of the whole store."""

    store_count: int
    region_count: int
    leader_count: int
