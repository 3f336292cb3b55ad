"""What sessions read in the entries of a journal, and the entry with their closure report."""

from __future__ import annotations

from collections.abc import Iterable

from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.usage import Usage
from operator_core.model.verdict import Verdict
from operator_core.text import clip
from operator_core.verify.report import ClosureReport

__all__ = ["newest", "outcome_of", "report_draft", "spent", "verdict_of"]


def report_draft(report: ClosureReport, phase: str | None = None) -> Draft:
    """The entry with a closure report."""
    return Draft(EntryKind.REPORT, clip(report.headline), report.markdown(), body=report.to_dict(), phase=phase)


def newest(entries: list[Entry], kind: EntryKind, phase: str | None = None) -> Entry | None:
    """The newest entry of a kind (and phase)."""
    return next((e for e in reversed(entries) if e.entry_type == kind and phase in (None, e.phase)), None)


def outcome_of(entry: Entry) -> Outcome:
    """The outcome in its entry."""
    return Outcome(OutcomeKind((entry.meta or {})["outcome"]), entry.raw_content or "", entry.body)


def spent(entries: Iterable[Entry]) -> Usage:
    """What all paid calls in these entries used."""
    total = Usage()
    for entry in entries:
        if entry.meta and "usage" in entry.meta:
            total = total.plus(Usage(**entry.meta["usage"]))
    return total


def verdict_of(entry: Entry) -> Verdict:
    """The verdict in its entry."""
    return Verdict.from_dict(entry.body)
