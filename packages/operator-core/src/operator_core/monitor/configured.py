"""Subjects that need no code: the invariants of ``operator.toml``, looked at with the built-in probes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from operator_core.clock import Clock, iso, parse_iso
from operator_core.model.invariant import Invariant, Subject
from operator_core.model.ticket import InvariantViolation
from operator_core.probes import Observation, look_at

__all__ = ["ConfiguredChecker", "ConfiguredSubject"]

_AT_ONCE = 32
_SPARE_S = 10.0


class ConfiguredSubject:
    """The invariants of a subject that have a probe.

    Args:
        spec: The subject; commands run in its ``workspace`` with its ``env``.
        clock: Whose time of day the observations carry.

    Attributes:
        deadline_s: Real seconds after which :meth:`observe` has ended for certain, since every probe has its own limit.
    """

    def __init__(self, spec: Subject, clock: Clock | None = None) -> None:
        self.spec = spec
        self.invariants: tuple[Invariant, ...] = tuple(i for i in spec.invariant if i.probe is not None)
        self._clock = clock or Clock()
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self.deadline_s = _SPARE_S + sum(i.probe.timeout_s for i in self.invariants if i.probe is not None)

    async def observe(self) -> dict[str, Any]:
        """Look at all of them at the same time.

        Returns:
            ``{"subject": name, "at": iso, "invariants": {name: Observation.to_dict()}}``.
        """
        at = iso(self._clock.now())
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(self._look(invariant)) for invariant in self.invariants]
        seen = {i.name: look.result().to_dict() for i, look in zip(self.invariants, looks, strict=True)}
        return {"subject": self.spec.name, "at": at, "invariants": seen}

    async def _look(self, invariant: Invariant) -> Observation:
        async with self._gate:
            return await look_at(self.spec, invariant, clock=self._clock)


class ConfiguredChecker:
    """Reads the lights of what :class:`ConfiguredSubject` saw. Grace periods are the loop's: it remembers nothing."""

    def __init__(self, spec: Subject) -> None:
        self._invariants = {i.name: i for i in spec.invariant if i.probe is not None}

    def check(self, observation: dict[str, Any]) -> list[InvariantViolation]:
        """A violation for every red light."""
        out = []
        for name, seen in self._seen(observation, "red").items():
            invariant, at = self._invariants[name], parse_iso(seen["at"])
            message = f"Does not hold: {(invariant.description or name).rstrip('.')} ({seen['detail']})"
            out.append(InvariantViolation(name, message, at, at, severity=invariant.severity))
        return out

    def unknown(self, observation: dict[str, Any]) -> dict[str, str]:
        """The invariants that could not be looked at, each with the reason."""
        return {name: seen["detail"] for name, seen in self._seen(observation, "unknown").items()}

    def values(self, observation: dict[str, Any]) -> dict[str, str]:
        """What was seen of each invariant, as text; those that could not be looked at are left out."""
        seen = observation["invariants"]
        return {name: str(seen[name]["value"]) for name in self._invariants if seen[name]["light"] != "unknown"}

    def snapshot(self, observation: dict[str, Any], violation: InvariantViolation) -> dict[str, Any]:
        """The observation of that one invariant."""
        seen: dict[str, Any] = observation["invariants"][violation.invariant_name]
        return {violation.invariant_name: seen}

    def _seen(self, observation: dict[str, Any], light: str) -> dict[str, Mapping[str, Any]]:
        seen = observation["invariants"]
        return {name: seen[name] for name in self._invariants if seen[name]["light"] == light}
