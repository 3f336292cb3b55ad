"""The status of a worker: the last line of its reply, and nothing else (row B-017, defect D-45)."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operator_core.agent_lab.profiles import status_line
from operator_core.model.outcome import OutcomeKind


@pytest.mark.parametrize(
    ("text", "kind", "summary"),
    [
        ("It is made.\nSTATUS: done", OutcomeKind.PROPOSED, "It is made."),
        ("It is made.\n\n**STATUS: done**\n\n", OutcomeKind.PROPOSED, "It is made."),
        ("It is made.\nstatus: Done.", OutcomeKind.PROPOSED, "It is made."),
        ("STATUS: blocked - no key\nNo, I have found it.\nSTATUS: done", OutcomeKind.PROPOSED, None),
        ("STATUS: done\nBut then:\nSTATUS: blocked - no key", OutcomeKind.BLOCKED, "no key"),
        ("I cannot.\nSTATUS: blocked - the key is missing", OutcomeKind.BLOCKED, "the key is missing"),
        ("STATUS: blocked", OutcomeKind.BLOCKED, "(no reason given)"),
        ("STATUS: blocked - I may not say STATUS: done", OutcomeKind.BLOCKED, "I may not say STATUS: done"),
        ("STATUS: done\nor so I hope.", None, None),
        ("I shall say `STATUS: done`", None, None),
        ("> STATUS: done", None, None),
        ("- STATUS: done", None, None),
        ("```\nSTATUS: done\n```", None, None),
        ("`STATUS: done`", None, None),
        ("STATUS: done, apart from the tests", None, None),
        ("STATUS: done or STATUS: blocked - <reason>", None, None),
        ("STATUS: doneish", None, None),
        ("STATUS: nearly done", None, None),
        ("MY STATUS: done", None, None),
        ("STATUS:\ndone", None, None),
        ("", None, None),
    ],
)
def test_the_last_line_is_the_status_and_no_other(text: str, kind: OutcomeKind | None, summary: str | None) -> None:
    outcome = status_line(text)
    assert (outcome and outcome.kind) == kind
    assert summary is None or (outcome and outcome.summary) == summary


STATUS = st.sampled_from(["STATUS: done", "STATUS: blocked - why", "**STATUS: done**", "  status: DONE. "])
WORDS = st.text(min_size=1, max_size=40).filter(lambda t: t.strip("*_ \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029"))


@given(before=st.text(max_size=60), quoted=STATUS, after=WORDS)
@example(before="", quoted="STATUS: done", after="```")
def test_a_quoted_status_is_never_an_outcome(before: str, quoted: str, after: str) -> None:
    line = " ".join(after.split()).strip() or "x"
    if not re.match(r"[*_ ]*status:", line, re.IGNORECASE):
        assert status_line(f"{before}\n{quoted}\n{line}") is None  # followed by something
        assert status_line(f"{before}\n{line} {quoted}") is None or not line.strip("*_ ")  # behind something
    told = status_line(f"{before}\nSTATUS: blocked - {line}, not {quoted}")
    assert told is not None
    assert told.kind is OutcomeKind.BLOCKED


@given(text=st.text(max_size=200))
def test_any_reply_can_be_read(text: str) -> None:
    outcome = status_line(text)
    assert outcome is None or outcome.kind in (OutcomeKind.PROPOSED, OutcomeKind.BLOCKED)
