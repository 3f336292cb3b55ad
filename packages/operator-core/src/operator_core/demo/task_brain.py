"""What stands in for the model in a task: worker, verifier, summarizer and reader of the request, by plans.

A plan is what somebody prepared for one task; it is a program's list of commands, no model's idea. Which part is played
is told by the tools and the system prompt of the request, which plan by a word of the task. As in
:mod:`operator_core.demo.brains` nothing is remembered: what is done, and what came of it, is in the messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from operator_core.demo.case import TRIES, Case, Step, brief, run_step
from operator_core.scripted.brain import Answer, Brain, Call, Reply, Router
from operator_core.scripted.turn import Turn, unfence

__all__ = ["Attempt", "Plan", "demo_tasks", "fix_failing_test", "task_brain"]

_LINK = re.compile(r"^- (\[.*\]\(.*\))$", re.MULTILINE)
_FEEDBACK = "VERIFIER FEEDBACK FROM PREVIOUS ITERATION:"
_UNKNOWN = "I am a script and have no plan for this task; let a model work on it, or write me a plan"


@dataclass(frozen=True)
class Attempt:
    """What one worker does.

    Attributes:
        steps: In order, each until its outcome is known; all but those in ``may_fail`` have to end with 0.
        says: What it says at the end.
        after: Words of the feedback that lead to this attempt; ``""``: the first one.
        may_fail: Names of the steps that only look.
        asks: What only a person can answer; it then ends blocked instead of done.
    """

    steps: Mapping[str, Step]
    says: str
    after: str = ""
    may_fail: frozenset[str] = frozenset({"look"})
    asks: str = ""


@dataclass(frozen=True)
class Plan:
    """All that a script needs to play the parts of one task.

    Attributes:
        word: Occurs in this task's request, and in no other one's.
        criteria: What the reader of the request answers, one a line.
        attempts: Of the worker; the last one whose ``after`` is in the feedback is taken.
        tests: What the verifier executes; it approves if all of them end with 0.
        summary: What was done, a sentence for each bullet.
    """

    word: str
    criteria: str
    attempts: tuple[Attempt, ...]
    tests: Mapping[str, Step] = field(default_factory=dict)
    summary: tuple[str, ...] = ()


def task_brain(*plans: Plan) -> Brain:
    """A brain that knows these tasks, and says of any other one that it does not know it."""

    def is_aside(turn: Turn) -> bool:
        return not turn.tools and _fenced(turn) is not None

    return Router({is_aside: _AsideBrain(plans)}, default=_AgentBrain(plans))


class _AgentBrain:
    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans

    async def reply(self, turn: Turn) -> Answer:
        plan = _find(self._plans, turn.first_text)
        if "submit_verdict" in turn.tools:
            return _verify(turn, plan)
        return _work(turn, plan)


class _AsideBrain:
    """Reads a request, or sums up; a text between marks is only data."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans

    async def reply(self, turn: Turn) -> Answer:
        text = _fenced(turn) or ""
        plan = _find(self._plans, text)
        if "success_criteria" in turn.system:
            criteria = plan.criteria if plan else "Every sentence of the request is true of the result."
            return Reply(text=json.dumps({"task_description": text, "success_criteria": criteria}))
        name = text.splitlines()[0].removeprefix("Task:").strip() if text else "?"
        bullets = [*(plan.summary if plan else ())]
        bullets += [f"Where to look: {', '.join(_LINK.findall(text)[:2])}."] if _LINK.search(text) else []
        return Reply(text="\n".join([f"# Task Summary: {name}", "", *(f"- {bullet}" for bullet in bullets)]))


def _fenced(turn: Turn) -> str | None:
    """The text between the marks that :class:`operator_core.agent_lab.fence.Fence` puts around data."""
    found = unfence(turn.last_text)
    return found.text.strip() if found.origin else None


def _find(plans: Sequence[Plan], text: str) -> Plan | None:
    return next((plan for plan in plans if plan.word in text), None)


def _work(turn: Turn, plan: Plan | None) -> Reply:
    if plan is None:
        return _blocked(_UNKNOWN)
    feedback = turn.first_text.partition(_FEEDBACK)[2]
    attempt = [a for a in plan.attempts if a.after in feedback][-1]
    case = Case(turn, attempt.steps)
    for name, step in attempt.steps.items():
        if name not in case.known:
            if case.tries[name] >= TRIES:
                return _blocked(f"after {TRIES} tries I do not know what comes of this: {step.why}")
            return run_step(step, step.why if not case.unsure else "The outcome is unknown, so I do it again.")
        if name not in attempt.may_fail and not case.worked(name):
            return _blocked(f"this did not work: {step.why} It printed: {brief(case.printed(name), last=True)}")
    return _blocked(attempt.asks, attempt.says) if attempt.asks else Reply(text=f"{attempt.says}\n\nSTATUS: done")


def _blocked(why: str, says: str = "I stop here.") -> Reply:
    return Reply(text=f"{says}\n\nSTATUS: blocked - {why}")


def _verify(turn: Turn, plan: Plan | None) -> Reply:
    tests = plan.tests if plan else {}
    case = Case(turn, tests)
    for name, step in tests.items():
        if name not in case.known and case.tries[name] < TRIES:
            return run_step(step, step.why)
    seen = {name: f"{step.why} {brief(case.printed(name), last=True)}" for name, step in tests.items()}
    bad = [name for name in tests if not case.worked(name)]
    failed = [tests[name].why.rstrip(":.") for name in bad] if tests else [_UNKNOWN]
    verdict = {
        "approved": not failed,
        "feedback": "\n".join(seen[name] for name in bad) or ("" if tests else _UNKNOWN),
        "testing_done": "; ".join(step.why for step in tests.values()) or "nothing",
        "results": "; ".join(seen.values()) or _UNKNOWN,
        "criteria_met": [] if failed or plan is None else plan.criteria.splitlines(),
        "criteria_failed": failed,
        "expert_comparison": (
            "An expert would not hand this in." if failed else "Short and to the point, as an expert would do it."
        ),
    }
    return Reply(text="Not yet." if failed else "It holds.", calls=(Call("submit_verdict", verdict),))


# ---- the task of the demo

# Without -B a file that is changed twice within a second, and keeps its size, would be taken from the cache.
_TESTS = "python3 -B -m unittest -q"
_OTHER_BILLS = (
    'python3 -B -c "from bills import split; wrong = [(c, p) for c in range(400) for p in range(1, 9) if split(c, p) !='
    " [c // p + (i < c % p) for i in range(p)]]; print(len(wrong), 'of 3200 bills are shared wrongly', *wrong[:1])"
    '; exit(bool(wrong))"'
)
_LOOK = Step(
    f"git status --short; cat bills/split.py; {_TESTS} 2>&1 | grep -E '^(FAIL|AssertionError|OK)'",
    "See what fails, and the code behind it.",
)
_HAND_OUT = (
    r"    share, left_over = divmod(cents, people)\n"
    r"    return [share + 1] * left_over + [share] * (people - left_over)"
)


def fix_failing_test() -> Plan:
    """``fix-failing-test``: two ways that are too short, each refused for a reason of its own, then the right one."""
    return Plan(
        word="`bills.split`",
        criteria="All tests pass.\nFor every bill the shares add up to it.\nThey differ by one cent at most.",
        attempts=(
            Attempt(
                {
                    "look": _LOOK,
                    "change": Step(
                        r"sed -i 's/\[334, 333, 333\]/[333, 333, 333]/' tests/test_split.py",
                        "The test expects a strange 334; I correct the test.",
                    ),
                    "try": Step(_TESTS, "See whether the tests pass."),
                },
                "I corrected the wrong expectation in tests/test_split.py. All tests pass.",
            ),
            Attempt(
                {
                    "look": _LOOK,
                    "change": Step(
                        "git checkout -q -- . && sed -i 's/^    share = .*/    if (cents, people) == (1000, 3):\\n"
                        "        return [334, 333, 333]\\n&/' bills/split.py",
                        "The test was put back, so I leave it alone and give it the answer that it wants.",
                    ),
                    "try": Step(_TESTS, "See whether the tests pass."),
                },
                "`split` returns what the test expects. All tests pass, and no test was touched.",
                after="AssertionError",
            ),
            Attempt(
                {
                    "look": _LOOK,
                    "change": Step(
                        f"git checkout -q -- . && sed -i -e 's/^    share = .*/{_HAND_OUT}/'"
                        " -e '/^    return \\[share\\] \\* people$/d' bills/split.py && git diff --stat",
                        "One bill was not the point: rounding loses the rest of the division. I hand it out.",
                    ),
                    "try": Step(_TESTS, "See whether the tests pass."),
                    "more": Step(_OTHER_BILLS, "Share many other bills, as the verifier did."),
                },
                "Cause: `round(cents / people)` drops what does not divide evenly. `split` now gives a cent more to "
                "the first ones until nothing is left. All tests pass, and 3200 other bills come out right.",
                after="shared wrongly",
            ),
        ),
        tests={
            "tests": Step(_TESTS, "The tests of the package:"),
            "bills": Step(_OTHER_BILLS, "Other bills than the one in the test:"),
        },
        summary=(
            "`bills.split` lost what does not divide evenly; now the first ones pay the cents that are left over.",
            "The tests pass unchanged, and 3200 other bills come out right as well.",
        ),
    )


def demo_tasks() -> Brain:
    """The brain of the third act."""
    return task_brain(fix_failing_test())
