"""Conditions and values: two readers that share nothing with the client must read in them exactly what was meant."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operator_dataverse.client import Column, Filter, Row, TableInfo, clip_units, field, fit, units
from operator_dataverse.client.odata import literal
from operator_dataverse.double.definitions import Table, product_tables
from operator_dataverse.double.filters import parse_filter
from operator_dataverse.errors import SchemaProblem
from operator_dataverse.tables import TASKS
from operator_dataverse.tables.conversation import ConversationRow, ConversationStatus
from operator_dataverse.tables.task import TaskCode, TaskRow
from operator_dataverse.tables.user import UserRow
from tests.support.odata import SecondOpinion

TABLES = product_tables()
TASK: Table = next(table for table in TABLES if table.entity_set == TASKS)
OPINION = SecondOpinion(TABLES)
ID = "0b5e1f9e-0000-4000-8000-00000000000a"

# The service compares without regard to case and to blanks at the end; that is no question of writing.
PIECES = [*"' ()%,;&=+#?/\\\"$@-:0123456789", "''", " or ", " eq ", "null", "'or'1'eq'1"]
TEXTS = st.lists(
    st.sampled_from(PIECES) | st.characters(codec="utf-8", categories=["Lo", "Nd", "Po", "Sm", "So"]), max_size=20
).map(lambda pieces: "".join(pieces).rstrip() + "'")
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=0, tzinfo=timezone(timedelta(hours=5, minutes=30)))
)


class Case(NamedTuple):
    """A condition, and what it means."""

    condition: Filter
    holds: Callable[[Mapping[str, Any]], bool]


def comparison(name: str, values: st.SearchStrategy[Any], *operators: str) -> st.SearchStrategy[Case]:
    def made(word: str, value: Any) -> Case:
        compare = getattr(operator, word)
        return Case(getattr(field(name), word)(value), lambda row: bool(compare(row[name], value)))

    return st.builds(made, st.sampled_from(operators), values)


SINGLE = st.one_of(
    comparison("cr_name", TEXTS, "eq", "ne"),
    comparison("crb3b_useremail", st.none() | TEXTS, "eq", "ne"),
    comparison("cr_status", st.sampled_from(TaskCode), "eq", "ne", "lt", "le", "gt", "ge"),
    comparison("cr_ismirror", st.booleans(), "eq", "ne"),
    comparison("createdon", MOMENTS, "eq", "ne", "lt", "le", "gt", "ge"),
    st.builds(lambda t: Case(field("cr_name").startswith(t), lambda row: row["cr_name"].startswith(t)), st.just("'")),
)
CASES = st.recursive(
    SINGLE,
    lambda inner: st.one_of(
        st.builds(lambda a, b: Case(a.condition & b.condition, lambda r: a.holds(r) and b.holds(r)), inner, inner),
        st.builds(lambda a, b: Case(a.condition | b.condition, lambda r: a.holds(r) or b.holds(r)), inner, inner),
        st.builds(lambda a: Case(~a.condition, lambda r: not a.holds(r)), inner),
    ),
    max_leaves=8,
)
ROWS = st.fixed_dictionaries(
    {
        "cr_name": TEXTS,
        "crb3b_useremail": st.none() | TEXTS,
        "cr_status": st.sampled_from([int(code) for code in TaskCode]),
        "cr_ismirror": st.booleans(),
        "createdon": MOMENTS,
    }
)


def read_by_double(condition: Filter, row: Mapping[str, Any]) -> bool:
    stored = {**row, "createdon": row["createdon"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return parse_filter(str(condition), TASK)({**dict.fromkeys(TASK.columns), **stored})


def read_by_odatapy(condition: Filter, row: Mapping[str, Any]) -> bool:
    return OPINION.finds(TASKS, str(condition), ID, **row)


@settings(max_examples=300)
@given(case=CASES, row=ROWS)
def test_a_condition_means_the_same_to_everybody(case: Case, row: Mapping[str, Any]) -> None:
    meant = case.holds(row)
    assert read_by_double(case.condition, row) is meant, str(case.condition)
    assert read_by_odatapy(case.condition, row) is meant, str(case.condition)


@settings(max_examples=200)
@given(text=st.text(max_size=30), row=ROWS)
def test_no_text_gets_out_of_its_quotes(text: str, row: Mapping[str, Any]) -> None:
    """Whatever the text, the condition is one comparison of one column: nobody but its owner is found."""
    condition = (field("crb3b_useremail") == text) & (field("cr_status") == 1)
    nobody = {**row, "crb3b_useremail": "somebody.else@example.com", "cr_status": 1}
    assert read_by_double(condition, nobody) is (text.rstrip().lower() == "somebody.else@example.com")
    assert read_by_odatapy(condition, nobody) is (text == "somebody.else@example.com")
    assert read_by_odatapy(condition, {**nobody, "crb3b_useremail": text}) or "\ufffd" in str(condition)


@given(text=st.text("ab%_[]^-'", max_size=6), inside=st.text("ab%_[]^-'", max_size=9))
def test_a_text_that_is_sought_has_no_wildcards(text: str, inside: str) -> None:
    row = {**dict.fromkeys(TASK.columns), "cr_name": inside}
    assert parse_filter(str(field("cr_name").contains(text)), TASK)(row) is (text in inside)
    assert parse_filter(str(field("cr_name").startswith(text)), TASK)(row) is inside.startswith(text)
    assert parse_filter(str(field("cr_name").endswith(text)), TASK)(row) is inside.endswith(text)


def test_how_a_condition_is_written() -> None:
    status, email = field("cr_status"), field("crb3b_useremail")
    both = (status == 1) & (email == "o'neil@example.com") & email.ne(None)
    assert str(both) == "cr_status eq 1 and crb3b_useremail eq 'o''neil@example.com' and crb3b_useremail ne null"
    assert str((status == 1) | both) == f"cr_status eq 1 or ({both})"
    assert str(((status == 1) | (status == 3)) & (email == "x")) == (
        "(cr_status eq 1 or cr_status eq 3) and crb3b_useremail eq 'x'"
    )
    assert str(~(status == 1) & (status == 3)) == "not (cr_status eq 1) and cr_status eq 3"
    assert str(status.is_in([1, 3])) == "cr_status eq 1 or cr_status eq 3"
    assert str(Filter.all([status == 1, status == 3])) == "cr_status eq 1 and cr_status eq 3"
    assert Filter.all([]) is None
    assert Filter.any([]) is None
    assert {status == 1, status == 1} == {status.eq(1)}


class Word(StrEnum):
    ONE = "it's"


class Number(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (-1, "-1"),
        (1.5, "1.5"),
        (Number.SEVEN, "7"),
        (Word.ONE, "'it''s'"),
        ("", "''"),
        ("a\ud800b", "'a\ufffdb'"),
        (UUID(ID), ID),
        (datetime(2026, 1, 31, 12, 0, tzinfo=timezone(timedelta(hours=2))), "2026-01-31T10:00:00.000Z"),
    ],
)
def test_how_a_value_is_written(value: Any, written: str) -> None:
    assert literal(value) == written


@pytest.mark.parametrize("value", [datetime(2026, 1, 31), float("nan"), float("inf"), b"x", [1], object()])  # noqa: DTZ001
def test_what_is_no_value(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        field("cr_name").eq(value)


@pytest.mark.parametrize("name", ["", "a b", "a'b", "cr_name eq 1 or cr_name", "a/b", "1a", "ä", "a" * 200])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a column"):
        field(name)


def test_a_condition_is_made_of_columns_only() -> None:
    with pytest.raises(TypeError):
        Filter("cr_status eq 1")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="&"):
        bool(field("cr_status") == 1)
    with pytest.raises(TypeError):
        (field("cr_status") == 1) & True  # type: ignore[operator]
    with pytest.raises(ValueError, match="no values"):
        field("cr_status").is_in([])


# -- values that fit ---------------------------------------------------------------------------------------------

INFO = TableInfo(
    "cr_things",
    "cr_thing",
    "cr_thingid",
    "cr_name",
    {
        column.name: column
        for column in (
            Column("cr_name", "string", 10),
            Column("cr_text", "memo", 100),
            Column("cr_status", "choice", options={1: "One", 5: "Five"}),
            Column("cr_when", "datetime"),
            Column("cr_flag", "boolean"),
            Column("cr_count", "integer"),
            Column("cr_share", "number"),
            Column("createdon", "datetime", writable=False),
            Column("cr_other", "other"),
        )
    },
)


@given(text=st.text(max_size=300), limit=st.integers(1, 250), pointer=st.none() | st.text(max_size=60))
def test_a_cut_text_is_never_too_long_and_never_half_a_character(text: str, limit: int, pointer: str | None) -> None:
    cut = clip_units(text, limit, pointer)
    assert units(cut) <= limit
    assert units(text) == len(text.encode("utf-16-le", "surrogatepass")) // 2
    if units(text) <= limit:
        assert cut == text
    else:
        kept = cut.split("…")[0] if "…" not in text else ""
        assert text.startswith(kept)
        # At most one unit is lost to a character that would have to be halved.
        assert units(cut) >= limit - 1


@given(values=st.dictionaries(st.sampled_from(["cr_name", "cr_text"]), st.text()))
def test_what_is_sent_can_be_sent(values: dict[str, str]) -> None:
    sent = fit(INFO, values).values
    for name, text in sent.items():
        text.encode("utf-8")
        assert not set(text) & set("\x00\x08\x0b\x0c\x0e\x1b\x1f\ufffe\uffff")
        assert units(text) <= (INFO.columns[name].max_length or 0)


def test_how_values_fit() -> None:
    moment = datetime(2026, 1, 31, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    fitted = fit(
        INFO,
        {
            "cr_name": "a long name of a thing",
            "cr_text": "x" * 101,
            "cr_status": TaskCode.RUNNING,
            "cr_when": moment,
            "cr_flag": False,
            "cr_count": None,
            "cr_share": 1,
            "cr_other": UUID(ID),
            "cr_gone": 1,
            "createdon": moment,
        },
        pointer="result.md",
    )
    assert fitted.values == {
        "cr_name": "a long na…",
        "cr_text": "x" * 55 + "… (truncated; the whole text is in result.md)",
        "cr_status": 5,
        "cr_when": "2026-01-31T10:00:00.000Z",
        "cr_flag": False,
        "cr_count": None,
        "cr_share": 1,
        "cr_other": ID,
    }
    assert len(fitted.values["cr_text"]) == 100
    assert fitted.cut == ("cr_name", "cr_text")
    assert fitted.dropped == ("cr_gone", "createdon")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cr_status", "One"),
        ("cr_status", 9),
        ("cr_status", True),
        ("cr_name", 5),
        ("cr_name", b"x"),
        ("cr_count", 1.5),
        ("cr_count", True),
        ("cr_share", "1"),
        ("cr_share", float("nan")),
        ("cr_flag", 1),
        ("cr_when", datetime(2026, 1, 31)),  # noqa: DTZ001
        ("cr_when", 5),
    ],
)
def test_what_does_not_fit_is_named(name: str, value: Any) -> None:
    with pytest.raises(SchemaProblem, match=name):
        fit(INFO, {name: value})


# -- rows --------------------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)


@given(body=st.dictionaries(st.sampled_from([*TASK.columns, "@odata.etag", "cr_direction"]), ANYTHING, max_size=8))
def test_any_row_can_be_read(body: dict[str, Any]) -> None:
    row = Row(TASKS, ID.upper(), body)
    task = TaskRow.parse(row)
    assert task.id == ID
    assert all(isinstance(getattr(task, name), str) for name in ("name", "prompt", "devbox", "lease_owner", "owner"))
    assert task.status is None or body["cr_status"] == task.status
    assert ConversationRow.parse(row).id == UserRow.parse(row).id == ID
    row.formatted("cr_status")


def test_what_a_row_says() -> None:
    row = Row(
        TASKS,
        ID,
        {
            "@odata.etag": 'W/"7"',
            "cr_status": 5,
            "cr_status@OData.Community.Display.V1.FormattedValue": "Running",
            "crb3b_heartbeat": "2026-01-31T10:00:00Z",
            "cr_ismirror": True,
        },
    )
    assert dict(row) == {"cr_status": 5, "crb3b_heartbeat": "2026-01-31T10:00:00Z", "cr_ismirror": True}
    assert row.formatted("cr_status") == "Running"
    assert row.formatted("cr_name") is None
    task = TaskRow.parse(row)
    assert (task.etag, task.status, task.is_mirror, task.ended) == ('W/"7"', TaskCode.RUNNING, True, False)
    assert task.heartbeat == datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
    assert TaskRow.parse(Row(TASKS, ID, {"cr_status": 4})).status is None
    assert TaskRow.parse(Row(TASKS, ID, {"cr_status": True})).status is None
    talk = ConversationRow.parse(Row("x", ID, {"cr_status": "Claimed", "cr_followup_expected": "true"}))
    assert (talk.status, talk.followup_expected, talk.direction) == (ConversationStatus.CLAIMED, True, None)
    user = UserRow.parse(Row("x", ID, {"crb3b_capacity": 2, "crb3b_labels": " gpu, ,windows "}))
    assert (user.capacity, user.labels) == (2, ("gpu", "windows"))
