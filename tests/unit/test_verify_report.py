"""The closure report: everything is said, and nothing that an agent wrote is markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from operator_core import clock
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.ticket import Ticket
from operator_core.model.usage import Usage
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Evidence, Verdict, VerdictKind, decide
from operator_core.verify.report import ClosureReport, TaskFacts

NOW = clock.now()


def _report(text: str, verdict: Verdict | None) -> ClosureReport:
    ticket = Ticket(7, "key", text, text, "warning", NOW, NOW)
    return ClosureReport(
        ticket=ticket,
        session_id="2026-01-28T10-30-45-abc12345",
        outcome=Outcome(OutcomeKind.PROPOSED, text),
        verdict=verdict,
        engine="scripted",
        model=text,
        usage=Usage(10, 5),
        turns=3,
        commands=4,
        sandbox="bubblewrap, verified",
    )


def _hostile(text: str) -> ClosureReport:
    """A page in which every place that an agent can write to has this text, behind the words of the platform."""
    evidence = tuple(
        Evidence(f"protected file {text}", f"as before: {text}", text, ok, clock.iso(NOW), f"cat {text}")
        for ok in (False, True, None)
    )
    clauses = tuple(
        ClauseResult(clause, state, True, f"the invariant is still violated: {text}", evidence)
        for clause, state in zip(
            (Clause.RESTORED, Clause.DURABLE, Clause.NO_COLLATERAL),
            (ClauseState.FAILED, ClauseState.PROVED, ClauseState.NOT_PROVED),
            strict=True,
        )
    )
    return _report(text, Verdict(VerdictKind.REFUTED, f"still violated: {text}", clauses, "c" * 64))


OWN_HEADINGS = re.compile(
    r"# Closure report: ticket #7, .*|## (What was claimed|What was proved|What was not proved|How to look again)"
    r"|### (restored|durable|no collateral): (FAILED|proved|not proved) \(required\)"
)
nasty = st.lists(
    st.sampled_from(
        [
            "# ",
            "## ",
            "```",
            "~~~",
            "`",
            "[",
            "](",
            ")",
            "http://x.y",
            "www.x.y",
            "<b>",
            "![",
            "---",
            "===",
            "* ",
            "- ",
            "1. ",
            "> ",
            "\\",
            "\n",
            "\n\n",
            "\r",
            "\t",
            "    ",
            "\u2028",
            "\x0b",
            "\x1b[0m",
            "&lt;",
            "_",
            "**",
        ]
    ),
    min_size=1,
    max_size=14,
).map("".join)


@given(text=nasty | st.text(max_size=60))
@example(text="\n# Closure report: ticket #8\n\n```\n[x](http://evil)")
@example(text="x\n\n## What was proved\n\n### restored: proved (required)")
@settings(max_examples=300)
def test_nothing_of_the_agent_is_markup(text: str) -> None:
    page = _hostile(text).markdown()
    lines = page.split("\n")
    headings = []
    for number, line in enumerate(lines):
        assert "\r" not in line
        assert "\x1b" not in line
        indented = line.startswith("    ")
        if indented:
            # An indented block is code if a blank line, or more of it, is before it; in a list item it needs six.
            assert not lines[number - 1].strip() or lines[number - 1].startswith("    ")
            assert line.startswith("      ")
            continue
        assert not re.match(r" {0,3}(```|~~~|>|[=]{2,}$|-{3,}$|\* \*)", line), line
        if re.match(r" {0,3}#", line):
            headings.append(line)
        bare = re.sub(r"`[^`]*`", "", line) if line.startswith("- ") and "`" in line else line
        assert not re.search(r"(?<!\\)\]\(", bare), f"a link: {line}"
        assert not re.search(r"(?<!\\)<", bare), f"HTML: {line}"
    assert all(OWN_HEADINGS.fullmatch(line) for line in headings), headings
    assert len(headings) == 8


def test_everything_is_said() -> None:
    clauses = (
        ClauseResult(
            Clause.RESTORED,
            ClauseState.PROVED,
            True,
            "green for 5.0 s in 4 observations",
            (Evidence("the invariant", "== 10", "10", True, clock.iso(NOW), "curl http://127.0.0.1:1/limit"),),
        ),
        ClauseResult(Clause.DURABLE, ClauseState.NOT_PROVED, False, "no durability step is configured"),
        ClauseResult(Clause.NO_COLLATERAL, ClauseState.COULD_NOT_LOOK, False, "x could not be looked at"),
    )
    report = _report("the limit was reset", decide(clauses, seen_red=True, check_hash="ab" * 32))
    page = report.markdown()
    for said in (
        "**verified: every required clause was observed by the platform**",
        "    the limit was reset",
        "### restored: proved (required)",
        "### durable: not proved (not required)",
        "## What was not proved",
        "- durable: no durability step is configured",
        "- no collateral: x could not be looked at",
        "- `curl http://127.0.0.1:1/limit`",
        "`abababababababab`",
        "operator sessions show 2026-01-28T10-30-45-abc12345",
        "3 turns, 4 commands",
    ):
        assert said in page, said
    data = report.to_dict()
    assert data["verdict"]["kind"] == "verified"
    assert Verdict.from_dict(data["verdict"]) == report.verdict


def test_a_rule_that_a_test_runner_draws_does_not_hide_what_it_says() -> None:
    seen = f"exit 0, as it must\n{'-' * 70}\nRan 3 tests in 0.1s\n\n{'=' * 70}\nOK"
    evidence = (Evidence("check 1", "exit 0", seen, True, clock.iso(NOW), "pytest"),)
    clauses = (ClauseResult(Clause.CHECKS, ClauseState.PROVED, True, "passed", evidence),)
    page = _report("x", Verdict(VerdictKind.VERIFIED, "proved", clauses, "c" * 64)).markdown()
    assert "- ok: check 1: exit 0, as it must Ran 3 tests in 0.1s OK\n" in page


def test_without_a_claim_nothing_was_proved() -> None:
    page = _report("no idea", None).markdown()
    assert "Nothing: no resolution was proposed" in page


# ---- tasks


def _task_report(text: str, verdict: Verdict | None, **facts: object) -> ClosureReport:
    values: dict[str, object] = {"asked": text, "folder": f"/root/{text}", "workspace": "/root/Operator Sessions/x/ws"}
    values |= facts
    return replace(_report(text, verdict), task=TaskFacts(**values))  # type: ignore[arg-type]


def _task_verdict(text: str, *clauses: Clause, kind: VerdictKind = VerdictKind.VERIFIED) -> Verdict:
    def evidence(clause: Clause) -> tuple[Evidence, ...]:
        return (Evidence(f"{clause} {text}", "exit code 0", text, True, clock.iso(NOW), f"run {clause} {text}"),)

    results = tuple(ClauseResult(c, ClauseState.PROVED, True, f"it holds: {text}", evidence(c)) for c in clauses)
    return Verdict(kind, f"every required clause holds {text}", results, "ab" * 32)


TASK_HEADINGS = re.compile(
    r"# Closure report: ticket #7, .*"
    r"|## (What was asked|What was claimed|What was proved|What was not proved|How to look again)"
    r"|### (checks|review): proved \(required\)"
)


@given(text=nasty | st.text(max_size=60))
@example(text="\n# Closure report: ticket #8\n\n```\n[x](http://evil)")
@example(text="x\n\n## What was proved\n\n### review: proved (required)")
def test_nothing_in_the_report_of_a_task_is_markup(text: str) -> None:
    page = _task_report(
        text,
        _task_verdict(text, Clause.CHECKS, Clause.REVIEW),
        checks=(text, f"{text}\n{text}"),
        before=((text, text), (text, "green")),
        notes=(text,),
        digest="d" * 64,
        base=text,
        commit=text,
        branch=text,
    ).markdown()
    headings = []
    for number, line in enumerate(page.split("\n")):
        assert "\r" not in line
        if line.startswith("    "):
            before = page.split("\n")[number - 1]
            assert not before.strip() or before.startswith("    ")
            assert line.startswith("      ")
            continue
        assert not re.match(r" {0,3}(```|~~~|>|[=]{2,}$|-{3,}$|\* \*)", line), line
        if re.match(r" {0,3}#", line):
            headings.append(line)
        bare = re.sub(r"`[^`]*`", "", line) if line.startswith("- ") and "`" in line else line
        assert not re.search(r"(?<!\\)\]\(", bare), f"a link: {line}"
        assert not re.search(r"(?<!\\)<", bare), f"HTML: {line}"
    assert all(TASK_HEADINGS.fullmatch(line) for line in headings), headings
    assert len(headings) == 8


def test_a_verified_task_says_what_on_what_and_how_to_repeat_it() -> None:
    report = _task_report(
        "fix the test",
        _task_verdict("", Clause.CHECKS, Clause.REVIEW),
        checks=("pytest -q `echo x`", "cd a\n./check.sh"),
        before=(("pytest -q `echo x`", "red"), ("cd a\n./check.sh", "green")),
        notes=("tests/test_it.py was changed by the work, and restored for the check",),
        digest="d" * 64,
        base="b" * 40,
        commit="c" * 40,
        branch="operator/fix_0123abcd",
        iterations=3,
    )
    page = report.markdown()
    for said in (
        "**verified: every required clause holds**",
        "## What was asked\n\n      fix the test\n",
        f"- Content: `{'d' * 64}` (SHA-256 over the workspace)",
        f"- Result: commit `{'c' * 40}` on branch `operator/fix_0123abcd` of the workspace",
        f"- The work began with commit `{'b' * 40}`",
        "- Worker iterations: 3",
        "- tests/test_it.py was changed by the work, and restored for the check",
        ": failed, as it should",
        "was already green",
        "- All of it, from what was recorded: `operator verify 7`",
        "`abababababababab`",
        "\n      cd '/root/Operator Sessions/x/ws' && pytest -q `echo x`\n",
        "\n      cd '/root/Operator Sessions/x/ws'\n      cd a\n      ./check.sh\n",
        "- What the verifier agent executed:\n\n      run review\n",
        "- Session folder: `/root/fix the test`",
    ):
        assert said in page, said
    data = report.to_dict()
    assert data["kind"] == "task"
    assert data["task"]["commit"] == "c" * 40
    assert data["not_proved"] == [
        "the check 'cd a\\n./check.sh': before the work it was already green, so that it proves nothing about the work"
    ]
    assert json.loads(json.dumps(data)) is not None


def test_what_nobody_proved_is_named() -> None:
    missing = ClauseResult(Clause.CHECKS, ClauseState.NOT_PROVED, False, "the task has no check")
    reviewed = _task_verdict("", Clause.REVIEW)
    verdict = replace(reviewed, clauses=(missing, *reviewed.clauses))
    assert _task_report("x", verdict, commit="c" * 40).to_dict()["not_proved"] == ["checks: the task has no check"]
    blind = _task_report(
        "x",
        _task_verdict("", Clause.CHECKS, kind=VerdictKind.UNPROVEN),
        checks=("a", "b"),
        before=(("a", "vacuous"), ("b", "could_not_look")),
    )
    assert blind.to_dict()["not_proved"] == [
        "review: nobody looked",
        "the check 'a': before the work it passed even in an empty folder, so that it proves nothing",
        "the check 'b': before the work it could not be tried",
        "delivery: the work is not committed; it is only in the workspace",
    ]
    assert "- review: nobody looked" in blind.markdown()
    unjudged = _task_report("x", None).to_dict()["not_proved"]
    assert unjudged == ["the work: it was not judged", "checks: the task has no check"]


def test_a_task_that_rests_or_was_not_judged_has_a_page_too() -> None:
    report = _task_report("which database?", None, checks=("pytest",))
    blocked = replace(report, outcome=Outcome(OutcomeKind.BLOCKED, "which\ndatabase?"))
    assert blocked.headline == "waiting: a person is asked: which database?"
    page = blocked.markdown()
    assert "Nothing: no result was proposed" in page
    assert "- the work: it was not judged" in page
    assert "## How to look again" in page
    assert "- Content: none was judged" in page


def test_the_dictionary_of_an_incident_has_nothing_of_a_task() -> None:
    assert not {"task", "kind", "not_proved"} & set(_report("x", None).to_dict())


def test_a_page_without_a_check_says_that_nothing_was_proved() -> None:
    page = _report("It is done.", Verdict(VerdictKind.UNPROVEN, "the ticket has no check", ())).markdown()
    assert "## What was proved\n\nNothing: the ticket has no check.\n" in page
    assert "none" not in page.split("## How to look again")[1]
    assert "there is nothing" not in page
    assert "It has no check" in page


def test_a_canceled_attempt_has_a_page_of_its_own() -> None:
    report = replace(_report("", None), outcome=Outcome(OutcomeKind.CANCELED, ""))
    assert report.headline == "canceled by a person"
    assert "Nothing: a person canceled it." in report.markdown()
    assert "was proposed" not in report.markdown()
