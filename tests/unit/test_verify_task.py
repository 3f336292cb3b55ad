"""The one verdict from checks and review: a table, and what must never be verified."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Verdict, VerdictKind
from operator_core.verify.checks import CheckSeen
from operator_core.verify.task import judge_task

PROVED, FAILED, BLIND, NOT = (
    ClauseState.PROVED, ClauseState.FAILED, ClauseState.COULD_NOT_LOOK, ClauseState.NOT_PROVED,
)  # fmt: skip
VERIFIED, REFUTED, INCONCLUSIVE, UNPROVEN = (
    VerdictKind.VERIFIED, VerdictKind.REFUTED, VerdictKind.INCONCLUSIVE, VerdictKind.UNPROVEN,
)  # fmt: skip
DIGEST = "ab" * 32


def spec(count: int, profile: str = "shraga") -> TaskSpec:
    checks = tuple(TaskCheck(command=f"./check{n}") for n in range(count))
    return TaskSpec.model_validate({"name": "t", "prompt": "p", "checks": checks, "profile": profile})


def seen(*lights: str) -> tuple[CheckSeen, ...]:
    """``vacuous`` is green in an empty folder too."""
    found = []
    for number, light in enumerate(lights):
        state: Any = "green" if light == "vacuous" else light
        found.append(CheckSeen(f"./check{number}", state, 0, "", light == "vacuous"))
    return tuple(found)


def clause(which: Clause, state: ClauseState | None) -> ClauseResult | None:
    return None if state is None else ClauseResult(which, state, True, f"{which.value} {state.value}")


def judge(
    checks: ClauseState | None,
    review: ClauseState | None,
    lights: tuple[str, ...],
    profile: str = "shraga",
    require: bool = False,
    count: int | None = None,
) -> Verdict:
    return judge_task(
        clause(Clause.CHECKS, checks),
        clause(Clause.REVIEW, review),
        seen(*lights),
        spec(len(lights) if count is None else count, profile),
        require_checks=require,
        digest=DIGEST,
    )


RED, GREEN, EMPTY, UNSEEN = "red", "green", "vacuous", "could_not_look"


@pytest.mark.parametrize(
    ("checks", "review", "lights", "profile", "require", "kind", "why"),
    [
        # With a verifier.
        (PROVED, PROVED, (RED,), "shraga", False, VERIFIED, "the check passed on the content abababababab, and review"),
        (PROVED, PROVED, (RED, GREEN), "shraga", False, VERIFIED, "all 2 checks passed"),
        (PROVED, PROVED, (GREEN,), "shraga", False, VERIFIED, "(`./check0` was already green)"),
        (PROVED, PROVED, (EMPTY,), "shraga", False, VERIFIED, "(`./check0` passes even in an empty folder)"),
        (PROVED, PROVED, (EMPTY,), "shraga", True, UNPROVEN, "no check proves anything"),
        (PROVED, PROVED, (EMPTY, GREEN), "shraga", True, VERIFIED, "all 2"),
        (NOT, PROVED, (), "shraga", False, VERIFIED, "on the content abababababab, review proved"),
        (None, PROVED, (), "shraga", False, VERIFIED, "review proved"),
        (NOT, PROVED, (), "shraga", True, UNPROVEN, "wants one for every task"),
        (FAILED, PROVED, (RED,), "shraga", False, REFUTED, "checks failed"),
        (FAILED, None, (RED,), "shraga", False, REFUTED, "checks failed"),
        (PROVED, FAILED, (RED,), "shraga", False, REFUTED, "review failed"),
        (BLIND, FAILED, (RED,), "shraga", False, REFUTED, "review failed"),
        (BLIND, PROVED, (RED,), "shraga", False, INCONCLUSIVE, "checks could_not_look"),
        (BLIND, None, (RED,), "shraga", False, INCONCLUSIVE, "checks could_not_look"),
        (PROVED, BLIND, (RED,), "shraga", False, INCONCLUSIVE, "review could_not_look"),
        (PROVED, None, (RED,), "shraga", False, INCONCLUSIVE, "no verifier has looked"),
        (None, PROVED, (RED,), "shraga", False, INCONCLUSIVE, "the checks of the task were not run"),
        (PROVED, NOT, (RED,), "shraga", False, UNPROVEN, "review not_proved"),
        (NOT, NOT, (), "shraga", False, UNPROVEN, "review not_proved"),
        (NOT, PROVED, (RED,), "shraga", False, UNPROVEN, "checks not_proved"),
        # Checks only.
        (PROVED, None, (RED,), "operator", False, VERIFIED, "the check that was red before the work"),
        (PROVED, None, (RED, RED, GREEN), "operator", False, VERIFIED, "2 checks that were red"),
        (PROVED, None, (GREEN, EMPTY), "operator", False, UNPROVEN, "no check was seen failing before the work"),
        (PROVED, None, (UNSEEN,), "operator", False, UNPROVEN, "`./check0` could not be tried"),
        (NOT, None, (), "operator", False, UNPROVEN, "no check and no verifier"),
        (NOT, None, (), "operator", True, UNPROVEN, "wants one for every task"),
        (FAILED, None, (RED,), "operator", False, REFUTED, "checks failed"),
        (BLIND, None, (RED,), "operator", False, INCONCLUSIVE, "checks could_not_look"),
        (None, None, (RED,), "operator", False, INCONCLUSIVE, "were not run"),
        (PROVED, FAILED, (RED,), "operator", False, REFUTED, "review failed"),
    ],
)  # fmt: skip
def test_the_table(
    checks: ClauseState | None,
    review: ClauseState | None,
    lights: tuple[str, ...],
    profile: str,
    require: bool,
    kind: VerdictKind,
    why: str,
) -> None:
    verdict = judge(checks, review, lights, profile, require)
    assert verdict.kind is kind
    assert why in verdict.why
    assert verdict.check_hash == spec(len(lights), profile).digest
    assert [c.clause for c in verdict.clauses] == [Clause.CHECKS, Clause.REVIEW]
    assert verdict.clauses[0].required is bool(lights or require)
    assert verdict.clauses[1].required is (profile == "shraga")
    assert bool(verdict.failed) is (kind in (REFUTED, INCONCLUSIVE)) or kind is UNPROVEN
    assert Verdict.from_dict(verdict.to_dict()) == verdict


def test_looks_at_other_checks_do_not_count() -> None:
    verdict = judge(PROVED, None, (RED, RED), "operator", count=1)
    assert (verdict.kind, verdict.why) == (UNPROVEN, "no check was seen failing before the work: they were not tried")
    other = (CheckSeen("./other", "red", 1, ""),)
    checks = clause(Clause.CHECKS, PROVED)
    verdict = judge_task(checks, None, other, spec(1, "operator"), require_checks=False, digest=DIGEST)
    assert verdict.kind is UNPROVEN


States = st.sampled_from([None, PROVED, FAILED, BLIND, NOT])
Profiles: st.SearchStrategy[Literal["shraga", "operator"]] = st.sampled_from(["shraga", "operator"])


@given(
    checks=States,
    review=States,
    lights=st.lists(st.sampled_from([RED, GREEN, EMPTY, UNSEEN]), max_size=3).map(tuple),
    profile=Profiles,
    require=st.booleans(),
    count=st.one_of(st.none(), st.integers(0, 3)),
)
def test_never_verified_unless(
    checks: ClauseState | None,
    review: ClauseState | None,
    lights: tuple[str, ...],
    profile: str,
    require: bool,
    count: int | None,
) -> None:
    verdict = judge(checks, review, lights, profile, require, count)
    has_checks = bool(count if count is not None else lights)
    matching = count in (None, len(lights))
    assert verdict.why
    if FAILED in (checks, review):
        assert verdict.kind is REFUTED
    if verdict.kind is VERIFIED:
        assert FAILED not in (checks, review)
        assert BLIND not in (checks, review)
        assert checks is PROVED if has_checks else review is PROVED
        assert review is PROVED or profile == "operator"
        assert review is PROVED or (matching and RED in lights)
        assert not require or (has_checks and matching and {RED, GREEN, UNSEEN} & set(lights))
