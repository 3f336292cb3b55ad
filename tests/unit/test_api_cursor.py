"""Cursors come back from outside: whatever they are, they are a place in the list or a refusal."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.api.cursor import read_cursor, write_cursor
from operator_core.errors import ConfigError

NUMBERS = st.integers(min_value=0, max_value=2**31 - 1)


@given(st.lists(NUMBERS, min_size=1, max_size=3))
def test_a_cursor_says_what_was_written(numbers: list[int]) -> None:
    cursor = write_cursor("newest", *numbers)
    assert read_cursor("newest", cursor, len(numbers)) == tuple(numbers)
    assert cursor.isascii()
    assert not set(cursor) & set("=+/&?# ")


@given(st.one_of(st.text(max_size=200), st.binary(max_size=80).map(lambda b: base64.urlsafe_b64encode(b).decode())))
def test_anything_else_is_refused(text: str) -> None:
    try:
        numbers = read_cursor("newest", text, 2)
    except ConfigError:
        return
    assert read_cursor("newest", write_cursor("newest", *numbers), 2) == numbers
    assert all(0 <= number < 2**31 for number in numbers)


@pytest.mark.parametrize(
    "text",
    [
        write_cursor("attention", 1, 2),
        write_cursor("newest", 1),
        write_cursor("newest", 1, 2, 3),
        write_cursor("newest", 1, 2**31),
        base64.urlsafe_b64encode(b"newest:-1.5").decode(),
        base64.urlsafe_b64encode(b"newest:1.2\n").decode(),
        base64.urlsafe_b64encode("newest:1.\N{ARABIC-INDIC DIGIT TWO}".encode()).decode(),
        write_cursor("newest", 1, 2) + "\n",
        "",
        "\0",
        "\ud800",
        "A" * 1_000_000,
    ],
)
def test_a_cursor_of_another_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="first page"):
        read_cursor("newest", text, 2)
