"""What a sandbox enforces here, as tested when the session started. There is no "enabled"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

__all__ = ["Control", "Level", "Report", "State"]

State = Literal["verified", "partial", "not_enforced", "unavailable"]
Level = Literal["isolated", "confined", "open"]

_WORDS: dict[str, str] = {
    "verified": "verified",
    "partial": "partial",
    "not_enforced": "NOT ENFORCED",
    "unavailable": "unavailable",
}


class Control(NamedTuple):
    """One thing a sandbox can enforce.

    Attributes:
        state: ``verified`` (an attack in this very sandbox failed), ``partial``, ``not_enforced``, or ``unavailable``
            (it could not be tested, which is not the same as held).
        how: How it is enforced, or why it is not.
    """

    state: State
    how: str


@dataclass(frozen=True)
class Report:
    """What holds in one sandbox.

    Attributes:
        backend: Name and version, e.g. ``bubblewrap 0.8.0``.
        level: ``isolated`` only if every core control is verified, the network included; ``confined`` for the degraded
            tier (landlock); otherwise ``open``.
        controls: By name, e.g. ``filesystem.write``.
        self_test_ms: Milliseconds the self-test took; 0.0 where there is nothing to test.
        warnings: Sentences a person must see.
    """

    backend: str
    level: Level
    controls: Mapping[str, Control]
    self_test_ms: float = 0.0
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return {
            "backend": self.backend,
            "level": self.level,
            "self_test_ms": round(self.self_test_ms, 1),
            "controls": {name: {"state": item.state, "how": item.how} for name, item in self.controls.items()},
            "warnings": list(self.warnings),
        }

    def summary(self) -> list[str]:
        """Plain lines for people and for the model: a headline, the warnings, then one line per control."""
        width = max((len(name) for name in self.controls), default=0)
        lines = [f"Sandbox: {self.backend}, level {self.level}."]
        lines += [f"Warning: {text}" for text in self.warnings]
        lines += [f"  {name:<{width}}  {_WORDS[item.state]}: {item.how}" for name, item in self.controls.items()]
        return lines
