"""Verdicts, clauses and the evidence under them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Clause", "ClauseResult", "ClauseState", "Evidence", "Verdict", "VerdictKind", "decide"]


class VerdictKind(StrEnum):
    """Could-not-look is never nothing-found: ``inconclusive`` is neither proof nor refutation."""

    VERIFIED = "verified"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    UNPROVEN = "unproven"


class Clause(StrEnum):
    """The three clauses of a proved incident, then the two of a proved task (``design.md``, "Verification")."""

    RESTORED = "restored"
    DURABLE = "durable"
    NO_COLLATERAL = "no_collateral"
    CHECKS = "checks"
    """The frozen checks pass on a copy of the work."""
    REVIEW = "review"
    """A verifier agent tried the work and did not refute it."""


class ClauseState(StrEnum):
    """What observation says about one clause."""

    PROVED = "proved"
    FAILED = "failed"
    COULD_NOT_LOOK = "could_not_look"
    NOT_PROVED = "not_proved"
    """The clause is not configured: nobody looked, and the report says so."""


@dataclass(frozen=True)
class Evidence:
    """One observation by the platform.

    Attributes:
        what: What was looked at (a command, a probe, a protected thing).
        expected: What would count as good.
        observed: What was seen, raw and bounded.
        ok: True, False, or None when the look itself failed.
        at: When (ISO 8601, UTC).
        how: How a person can look again: a command or a request.
    """

    what: str
    expected: str
    observed: str
    ok: bool | None
    at: str
    how: str = ""


@dataclass(frozen=True)
class ClauseResult:
    """One clause with its evidence."""

    clause: Clause
    state: ClauseState
    required: bool
    why: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The platform's decision about one claimed fix."""

    kind: VerdictKind
    why: str
    clauses: tuple[ClauseResult, ...] = ()
    check_hash: str | None = None
    failed: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Verdict:
        """What :meth:`to_dict` wrote."""
        clauses = tuple(
            ClauseResult(
                Clause(c["clause"]),
                ClauseState(c["state"]),
                c["required"],
                c["why"],
                tuple(Evidence(**e) for e in c["evidence"]),
            )
            for c in data["clauses"]
        )
        return cls(VerdictKind(data["kind"]), data["why"], clauses, data["check_hash"], tuple(data["failed"]))


def decide(clauses: tuple[ClauseResult, ...], *, seen_red: bool, check_hash: str | None) -> Verdict:
    """The verdict over the clauses: required ones decide, and nothing is proved that was never seen red.

    A required clause that failed refutes; one that could not be looked at is inconclusive; one that is not configured
    is unproven. Clauses that are not required are reported and do not decide.
    """
    required = [c for c in clauses if c.required]
    failed = tuple(c.clause.value for c in required if c.state is ClauseState.FAILED)
    if failed:
        first = next(c for c in required if c.state is ClauseState.FAILED)
        return Verdict(VerdictKind.REFUTED, first.why, clauses, check_hash, failed)
    blind = [c for c in required if c.state is ClauseState.COULD_NOT_LOOK]
    if blind:
        return Verdict(
            VerdictKind.INCONCLUSIVE, blind[0].why, clauses, check_hash, tuple(c.clause.value for c in blind)
        )
    missing = [c for c in required if c.state is ClauseState.NOT_PROVED]
    if missing or not required:
        why = missing[0].why if missing else "no clause is required, so nothing was proved"
        return Verdict(VerdictKind.UNPROVEN, why, clauses, check_hash, tuple(c.clause.value for c in missing))
    if not seen_red:
        return Verdict(
            VerdictKind.UNPROVEN, "the invariant was already green before the work began", clauses, check_hash
        )
    return Verdict(VerdictKind.VERIFIED, "every required clause was observed by the platform", clauses, check_hash)
