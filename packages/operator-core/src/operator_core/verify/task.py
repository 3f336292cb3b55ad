"""Is the work really done? One verdict from the checks and the review, each of which was looked at on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from operator_core.model.task import TaskSpec
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Verdict, VerdictKind
from operator_core.text import clip, printable
from operator_core.verify.checks import CheckSeen

__all__ = ["judge_task"]


def judge_task(
    checks: ClauseResult | None,
    review: ClauseResult | None,
    seen: Sequence[CheckSeen],
    spec: TaskSpec,
    *,
    require_checks: bool,
    digest: str,
) -> Verdict:
    """The verdict on one iteration of a task.

    A failure refutes; what could not be looked at is inconclusive; and it is verified only if all checks are green
    and either the verifier approved with evidence, or (in the profile ``operator``) the platform saw a check fail
    before the work. A check that passes even in an empty folder proves nothing.

    Args:
        checks: The checks on this work; None if they were not run.
        review: The review of this work; None if there was none.
        seen: How the checks were before the work, in the order of the spec.
        spec: The task.
        require_checks: Whether a task without a check that means something can never be verified.
        digest: Content digest of the judged work, for the sentence.
    """
    checks_needed, review_needed = bool(spec.checks) or require_checks, spec.profile == "shraga"
    clauses = (
        replace(checks, required=checks_needed)
        if checks is not None
        else _missing(Clause.CHECKS, checks_needed, _no_checks(spec)),
        replace(review, required=review_needed)
        if review is not None
        else _missing(Clause.REVIEW, review_needed, _no_review(spec)),
    )
    kind, why = _decide(clauses[0], clauses[1], seen, spec, require_checks, digest)
    wanted = {
        VerdictKind.REFUTED: (ClauseState.FAILED,),
        VerdictKind.INCONCLUSIVE: (ClauseState.COULD_NOT_LOOK,),
        VerdictKind.UNPROVEN: (ClauseState.NOT_PROVED,),
    }.get(kind, ())
    failed = tuple(c.clause.value for c in clauses if c.state in wanted and (c.required or kind is VerdictKind.REFUTED))
    return Verdict(kind, why, clauses, spec.digest, failed)


def _missing(clause: Clause, required: bool, found: tuple[ClauseState, str]) -> ClauseResult:
    return ClauseResult(clause, found[0], required, found[1])


def _no_checks(spec: TaskSpec) -> tuple[ClauseState, str]:
    if spec.checks:
        return ClauseState.COULD_NOT_LOOK, "the checks of the task were not run"
    return ClauseState.NOT_PROVED, "the task has no check"


def _no_review(spec: TaskSpec) -> tuple[ClauseState, str]:
    if spec.profile == "shraga":
        return ClauseState.COULD_NOT_LOOK, "no verifier has looked at the work"
    return (
        ClauseState.NOT_PROVED,
        "no verifier agent was asked to look: the profile has none, or the checks alone were wanted",
    )


def _decide(
    checks: ClauseResult,
    review: ClauseResult,
    seen: Sequence[CheckSeen],
    spec: TaskSpec,
    require_checks: bool,
    digest: str,
) -> tuple[VerdictKind, str]:
    both = (checks, review)
    for clause in both:
        if clause.state is ClauseState.FAILED:
            return VerdictKind.REFUTED, clause.why
    for clause in both:
        if clause.state is ClauseState.COULD_NOT_LOOK:
            return VerdictKind.INCONCLUSIVE, clause.why
    if not spec.checks:
        if require_checks:
            return VerdictKind.UNPROVEN, "the task has no check, and this installation wants one for every task"
    elif checks.state is not ClauseState.PROVED:
        return VerdictKind.UNPROVEN, checks.why
    if review.required and review.state is not ClauseState.PROVED:
        return VerdictKind.UNPROVEN, review.why
    if not spec.checks and review.state is not ClauseState.PROVED:
        return VerdictKind.UNPROVEN, "the task has no check and no verifier, so nothing was proved"
    if [s.command for s in seen] != [c.command for c in spec.checks]:
        # Looks at other checks say nothing about these.
        seen = ()
    telling = [s for s in seen if not s.vacuous]
    if require_checks and not telling:
        return VerdictKind.UNPROVEN, f"no check proves anything: {_how_they_were(seen)}"
    content = f"on the content {digest[:12]}"
    if review.state is ClauseState.PROVED:
        passed = f"{_passed(spec)} {content}, and " if spec.checks else f"{content}, "
        return VerdictKind.VERIFIED, f"{passed}{review.why}{_already_green(telling, seen)}"
    red = [s for s in telling if s.state == "red"]
    if not red:
        return VerdictKind.UNPROVEN, f"no check was seen failing before the work: {_how_they_were(seen)}"
    what = "the check that was" if len(red) == 1 else f"{len(red)} checks that were"
    return VerdictKind.VERIFIED, f"{_passed(spec)} {content}, {what} red before the work among them"


def _passed(spec: TaskSpec) -> str:
    return "the check passed" if len(spec.checks) == 1 else f"all {len(spec.checks)} checks passed"


def _already_green(telling: Sequence[CheckSeen], seen: Sequence[CheckSeen]) -> str:
    if not seen or any(s.state == "red" for s in telling):
        return ""
    return f" ({_how_they_were(seen)})"


def _how_they_were(seen: Sequence[CheckSeen]) -> str:
    """The checks before the work, those that prove nothing, in words."""
    said = []
    for check in seen:
        name = f"`{clip(' '.join(printable(check.command).split()), 80)}`"
        if check.vacuous:
            said.append(f"{name} passes even in an empty folder")
        elif check.state == "green":
            said.append(f"{name} was already green")
        elif check.state == "could_not_look":
            said.append(f"{name} could not be tried")
    return "; ".join(said) or "they were not tried"
