"""Calls that nobody thought of, held against the rules of `[approvals]`: a doubt asks, and no text stalls.

What is expected of each call is known from how it was built, not from the code that is tested.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from operator_core.model.approval import ApprovalRule
from operator_core.model.invariant import Invariant
from operator_core.model.pattern import Pattern, Unreadable
from operator_core.model.ticket import TicketKind
from operator_core.safety.approvals import Circumstances, decide
from operator_core.safety.commands import CommandFilter

HERE = Circumstances("worker", "worker_1", TicketKind.TASK)
NEEDLE = 'drop "x"'
LONG = 100_000

# Surrogates too: a model can write half of one, and JSON can carry it.
TEXT = st.text(st.characters(), max_size=12).filter(lambda text: NEEDLE not in text)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
TREE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=10
)
ARGUMENTS = st.dictionaries(st.text(st.characters(), min_size=1, max_size=8), TREE, max_size=4)
STEP = st.sampled_from(["list", "value", "key"])


def rule(decision: str, **values: Any) -> ApprovalRule:
    return ApprovalRule.model_validate({"decision": decision, **values})


ASKS = {
    "contains": rule("ask", contains={"*": NEEDLE.upper()}),
    "matches": rule("ask", matches={"*": r'drop\s"[a-z]"'}),
    "named": rule("ask", contains={"here": NEEDLE}),
    "named pattern": rule("ask", matches={"here": re.escape(NEEDLE)}),
}


def ruled(rules: list[ApprovalRule], arguments: Mapping[str, Any]) -> str:
    return decide(rules, HERE, "db__run", arguments).decision


def buried(steps: list[str], around: Any) -> Any:
    """The needle inside of so many lists and objects, as a text or as a name in one."""
    value: Any = NEEDLE
    for number, step in enumerate(steps):
        match step:
            case "key" if number == 0:
                value = {value: around}
            case "list":
                value = [around, value, around]
            case _:
                value = {"a": around, "b": value}
    return value


def texts_in(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for part in value for text in texts_in(part)]
        case dict():
            return [text for pair in value.items() for part in pair for text in texts_in(part)]
    return []


@pytest.mark.parametrize("which", sorted(ASKS))
@given(arguments=ARGUMENTS, steps=st.lists(STEP, max_size=8), around=TREE, more=st.sampled_from([0, 90, 150, 5000]))
@settings(max_examples=80, deadline=None)
def test_what_a_rule_names_is_found_wherever_it_is(
    which: str, arguments: dict[str, Any], steps: list[str], around: Any, more: int
) -> None:
    assert ruled([ASKS[which]], {**arguments, "here": buried([*steps, *["list"] * more], around)}) == "ask"


@given(arguments=ARGUMENTS, before=st.integers(0, 2 * LONG), after=st.integers(0, 2 * LONG), fill=st.characters())
@settings(max_examples=30, deadline=None)
def test_it_is_found_in_a_text_however_long(arguments: dict[str, Any], before: int, after: int, fill: str) -> None:
    text = fill * before + NEEDLE + fill * after
    for asks in ASKS.values():
        assert ruled([asks], {**arguments, "here": text}) == "ask"
        assert ruled([asks], {**arguments, "here": [{"a": text}]}) == "ask"


@given(arguments=ARGUMENTS)
def test_what_is_not_there_is_not_asked_about(arguments: dict[str, Any]) -> None:
    """Else a rule that always asks would pass every other test."""
    assert ruled([ASKS["contains"], ASKS["named"]], arguments) == "allow"
    if not any(0xD800 <= ord(sign) < 0xE000 for text in texts_in(arguments) for sign in text):
        assert ruled(list(ASKS.values()), arguments) == "allow"


@given(
    arguments=ARGUMENTS, command=TREE | st.sampled_from(["git status", "git status\n", "git status -s", "git\tstatus"])
)
@settings(max_examples=200, deadline=None)
def test_nothing_is_let_through_but_what_was_meant(arguments: dict[str, Any], command: Any) -> None:
    lets = rule("allow", matches={"command": "git status( -s)?"})
    meant = command in ("git status", "git status -s")
    assert ruled([lets, rule("ask")], {**arguments, "command": command}) == ("allow" if meant else "ask")
    arguments.pop("command", None)
    assert ruled([lets, rule("deny")], {**arguments, "reasoning": "git status"}) == "deny"


@pytest.mark.parametrize("size", [LONG - 1, LONG, LONG + 1])
def test_a_text_that_is_too_long_to_be_searched_is_asked_about_and_not_let_through(size: int) -> None:
    searched = size <= LONG
    assert ruled([rule("allow", matches={"a": "x*"}), rule("deny")], {"a": "x" * size}) == (
        "allow" if searched else "deny"
    )
    for asks in (rule("ask", matches={"a": "y"}), rule("ask", contains={"*": "y"})):
        assert ruled([asks], {"a": "x" * size}) == ("allow" if searched else "ask")


@pytest.mark.parametrize(
    "odd", ["\ud800", "ok \udfff", b"bytes", object(), 10**5000, {("a",): 1}], ids=lambda odd: type(odd).__name__
)
def test_what_cannot_be_looked_at_is_asked_about_and_not_let_through(odd: Any) -> None:
    assert ruled([rule("ask", matches={"*": "never"})], {"a": odd}) == "ask"
    assert ruled([rule("allow", matches={"a": "(?s).*"}), rule("deny")], {"a": odd}) == "deny"


# With Python's own engine each of these works for longer than anybody waits.
STALLING = [
    (r"(a+)+$", "a" * 60_000 + "!"),
    (r"(a|a)*b", "a" * 60_000),
    (r"(.*,){20}x", "," * 60_000),
    (r"\s+(-\S*)?(\s+-\S*)?\s+/", " " * 60_000),
    (r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 60_000),
    (r"(?i)(x+x+)+y", "xX" * 30_000),
    (r"[01]*1[01]{900}$", "01" * 30_000),
]


@pytest.mark.parametrize(("pattern", "text"), STALLING, ids=[pattern for pattern, _ in STALLING])
def test_no_text_stalls_a_rule(pattern: str, text: str) -> None:
    begun = time.process_time()
    for decision in ("ask", "allow"):
        assert ruled([rule(decision, matches={"a": pattern})], {"a": text, "b": [text]}) in ("allow", "ask")
    CommandFilter([(pattern, "why")]).check(text)
    Invariant(name="it", expect=f"=~ {pattern}").holds(text)
    assert time.process_time() - begun < 5


def test_the_seeds_own_list_stalls_on_nothing() -> None:
    begun = time.process_time()
    for part in ("rm ", "rm -", "dd ", "chmod ", ":(){", "> ", " ", "su "):
        CommandFilter().check(part * (200_000 // len(part)))
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?=a)", "lookahead, lookbehind"),
        ("a(?<!b)", "lookahead, lookbehind"),
        (r"(a)\1", "backreferences"),
        (r"a\Z", r"the end of the text is \\z"),
        ("(", "missing"),
        ("x{5000}", "repetition"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_where_it_is_read(pattern: str, said: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s)`matches` of 'command' is no regular expression.*{said}"):
        rule("ask", matches={"command": pattern})
    with pytest.raises(ValidationError, match=f"(?s)has no valid pattern.*{said}"):
        Invariant(name="it", expect=f"=~ {pattern}")


@given(
    text=st.text("ab\n", max_size=6),
    pattern=st.sampled_from(["a$", "^b", "a.b", "(?m)^a$", "(?s)a.b", "b+|^$", "a\\b"]),
)
def test_it_finds_what_python_finds(text: str, pattern: str) -> None:
    assert Pattern(pattern).found_in(text) == (re.search(pattern, text) is not None)
    assert Pattern(pattern).fits(text) == (re.fullmatch(pattern, text) is not None)


def test_a_value_that_cannot_be_searched_is_neither_green_nor_red() -> None:
    with pytest.raises(Unreadable):
        Invariant(name="it", expect="=~ ok").holds("ok \ud800")
