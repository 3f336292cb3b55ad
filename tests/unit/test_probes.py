"""What a look means: paths into answers, comparisons, and the lines people read. No server and no process here."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.model.invariant import CommandProbe, HttpProbe, Invariant, PromQLProbe
from operator_core.probes import Observation, lookup, observe, parse_path
from operator_core.probes.http import say_http, say_promql
from operator_core.probes.observation import excerpt

NAMES = st.text(st.characters(blacklist_characters=".[]", blacklist_categories=("Cs",)), min_size=1, max_size=8)
STEPS = st.lists(st.one_of(NAMES, st.integers(0, 5)), min_size=1, max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)


def write(steps: list[str | int]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def nest(steps: list[str | int], leaf: object) -> object:
    document = leaf
    for step in reversed(steps):
        document = [None] * step + [document] if isinstance(step, int) else {"other": 0, step: document}
    return document


@given(STEPS)
def test_a_path_is_read_as_it_was_written(steps: list[str | int]) -> None:
    assert list(parse_path(write(steps))) == steps


@given(STEPS, st.one_of(st.none(), st.booleans(), st.integers(), st.text()))
def test_a_path_leads_to_what_is_there_and_nowhere_else(steps: list[str | int], leaf: object) -> None:
    document = nest(steps, leaf)
    assert lookup(document, write(steps)) == leaf
    with pytest.raises(LookupError):
        lookup(document, write([*steps, "more"]))
    with pytest.raises(LookupError):
        lookup(document, write([*steps, 99]))


@pytest.mark.parametrize(
    "path", ["", ".", "a.", ".a", "a..b", "a[", "a[]", "a[x]", "a[-1]", "a]b", "[0]b", "a[0]b", "a[1.5]"]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"nodes\[0\]\.state"):
        parse_path(path)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(path: str) -> None:
    try:
        steps = parse_path(path)
    except ValueError:
        return
    assert parse_path(write(list(steps))) == steps


def test_a_missing_member_is_named_with_the_way_to_it() -> None:
    with pytest.raises(LookupError, match=r"nodes\[0\]\.state"):
        lookup({"nodes": [{"name": "a"}]}, "nodes[0].state.code")


@given(NUMBERS, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), NUMBERS)
def test_numbers_are_compared_as_numbers(left: float, op: str, right: float) -> None:
    expected = {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[op]
    invariant = Invariant(name="n", expect=f"{op} {right!r}")
    assert invariant.holds(left) is expected
    assert invariant.holds(repr(left)) is expected


@given(st.from_regex(r"[a-z]{1,10}", fullmatch=True), st.from_regex(r"[a-z]{1,10}", fullmatch=True))
def test_words_are_equal_or_not_and_have_no_order(left: str, right: str) -> None:
    if {left, right} & {"nan", "inf", "infinity"}:
        return
    assert Invariant(name="n", expect=f"== {right}").holds(left) is (left == right)
    assert Invariant(name="n", expect=f"!= {right}").holds(left) is (left != right)
    with pytest.raises(ValueError, match="not a number"):
        Invariant(name="n", expect=f"< {right}").holds(left)


def test_nan_is_no_value() -> None:
    with pytest.raises(ValueError, match="NaN"):
        Invariant(name="n", expect="!= 5").holds(math.nan)


@pytest.mark.parametrize(("value", "expect", "light"), [(True, "== true", True), (False, "== true", False)])
def test_booleans_are_compared_as_json_writes_them(value: bool, expect: str, light: bool) -> None:
    assert Invariant(name="n", expect=expect).holds(value) is light


def test_an_observation_is_json_whatever_the_value() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    for value in (None, True, 3, 2.5, math.inf, "x" * 10_000):
        seen = Observation("red", value, "d", "r", at, 0.1, "curl").to_dict()
        again = json.loads(json.dumps(seen, allow_nan=False))
        assert again == seen
        assert len(json.dumps(seen)) < 2_000
        assert again["at"] == "2026-01-02T00:00:00.000000+00:00"


@given(st.one_of(st.text(max_size=60), st.binary(max_size=60)), st.integers(1, 40))
def test_an_excerpt_is_short_and_every_store_accepts_it(data: str | bytes, limit: int) -> None:
    text = excerpt(data, limit)
    assert len(text) <= limit
    assert "\0" not in text
    text.encode()


async def test_an_invariant_without_a_probe_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no probe"):
        await observe(Invariant(name="n"))


def test_the_way_to_look_again_shows_no_credentials() -> None:
    probe = HttpProbe(
        type="http",
        url="http://h/x?a=b c",
        headers={"Authorization": "Basic aaaabbbb", "X-Shard": "7"},
        method="post",
        body="it's",
    )
    line = say_http(probe)
    assert "aaaabbbb" not in line
    assert "X-Shard: 7" in line
    assert line.startswith("curl ")
    assert "-X POST" in line
    assert line.endswith("'http://h/x?a=b c'")
    query = say_promql(PromQLProbe(type="promql", url="http://p:9090/", query='up{job="a"}'))
    assert "http://p:9090/api/v1/query" in query
    assert "up{job=" in query


@pytest.mark.parametrize(
    "probe",
    [
        HttpProbe(type="http", url="nonsense://x"),
        HttpProbe(type="http", url="http://"),
        HttpProbe(type="http", url="http://exa mple/\0"),
        CommandProbe(type="command", command="true\0"),
    ],
)
async def test_a_probe_that_cannot_be_sent_says_nothing_about_the_subject(probe: HttpProbe | CommandProbe) -> None:
    seen = await observe(Invariant(name="n", probe=probe))
    assert seen.light == "unknown", seen
    assert seen.detail
