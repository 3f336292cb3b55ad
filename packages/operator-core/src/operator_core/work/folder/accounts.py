"""What a session cost: money, tokens, turns and time, by phase and by model, from its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from operator_core.clock import parse_iso
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.usage import Usage

__all__ = ["Accounts", "PhaseAccount", "accounts_of"]


@dataclass
class PhaseAccount:
    """One phase.

    Attributes:
        duration_ms: Working time; waiting for a person, or for a worker after a crash, is not in it.
        api_ms: The part of it before replies of the model came.
        turns: Paid calls that were answered.
    """

    name: str
    usage: Usage = field(default_factory=Usage)
    duration_ms: int = 0
    api_ms: int = 0
    turns: int = 0


@dataclass
class Accounts:
    """A session: its phases in the order in which they began, and its models."""

    phases: list[PhaseAccount] = field(default_factory=list)
    models: dict[str, Usage] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        """Everything together; its cost is None when a part of it is not known."""
        total = Usage()
        for phase in self.phases:
            total = total.plus(phase.usage)
        return total

    @property
    def duration_ms(self) -> int:
        """Working time of all phases."""
        return sum(phase.duration_ms for phase in self.phases)

    @property
    def api_ms(self) -> int:
        """The part of it before replies of the model came."""
        return sum(phase.api_ms for phase in self.phases)

    @property
    def turns(self) -> int:
        """Paid calls that were answered."""
        return sum(phase.turns for phase in self.phases)


def accounts_of(entries: Iterable[Entry]) -> Accounts:
    """Add up a journal."""
    accounts = Accounts()
    phases: dict[str, PhaseAccount] = {}
    before: Entry | None = None
    for entry in entries:
        name = entry.phase or ""
        if name not in phases:
            phases[name] = PhaseAccount(name)
            accounts.phases.append(phases[name])
        phase = phases[name]
        meta = entry.meta or {}
        used = Usage(**meta["usage"]) if isinstance(meta.get("usage"), dict) else None
        answered = _is_answer(entry, used)
        phase.turns += answered
        if used is not None:
            phase.usage = phase.usage.plus(used)
            model = str(meta.get("model") or "unknown")
            accounts.models[model] = accounts.models.get(model, Usage()).plus(used)
        if before is not None and not _nobody_worked(before, entry):
            passed = parse_iso(entry.timestamp) - parse_iso(before.timestamp)
            milliseconds = max(0, round(passed.total_seconds() * 1000))
            phase.duration_ms += milliseconds
            phase.api_ms += milliseconds if answered else 0
        before = entry
    return accounts


def _is_answer(entry: Entry, used: Usage | None) -> bool:
    if entry.entry_type == EntryKind.MESSAGE:
        return isinstance(entry.body, dict) and entry.body.get("role") == "assistant"
    return entry.entry_type in (EntryKind.TASK, EntryKind.SUMMARY) and used is not None


def _nobody_worked(before: Entry, entry: Entry) -> bool:
    blocked = before.entry_type == EntryKind.OUTCOME and (before.meta or {}).get("outcome") == "blocked"
    return blocked or entry.entry_type == EntryKind.RESUMED
