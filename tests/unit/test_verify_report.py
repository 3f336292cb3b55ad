"""The closure report: everything is said, and nothing that an agent wrote is markup."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from operator_core import clock
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.ticket import Ticket
from operator_core.model.usage import Usage
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Evidence, Verdict, VerdictKind, decide
from operator_core.verify.report import ClosureReport

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
        for clause, state in zip(Clause, (ClauseState.FAILED, ClauseState.PROVED, ClauseState.NOT_PROVED), strict=True)
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


def test_without_a_claim_nothing_was_proved() -> None:
    page = _report("no idea", None).markdown()
    assert "Nothing: no resolution was proposed" in page
