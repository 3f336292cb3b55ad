"""Conditions on rows, as OData v4 writes them.

A condition is built from names and values, never from text: that is what keeps an apostrophe in a name, or an
operator in an e-mail address, from changing the question (D-56).

    (field("cr_status") == 1) & field("crb3b_useremail").eq(None)     ->  cr_status eq 1 and crb3b_useremail eq null
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum
from uuid import UUID

__all__ = ["Field", "Filter", "Value", "field", "literal", "well_formed"]

Value = str | int | float | bool | datetime | UUID | Enum | None

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """The text with U+FFFD for halves of characters, which no request can carry."""
    return _SURROGATE.sub("\ufffd", text)


def literal(value: Value) -> str:
    """A value as OData writes it.

    Raises:
        TypeError: It is of no type that a column has.
        ValueError: It is a number that is none, or a time without a zone.
    """
    if isinstance(value, Enum):
        value = value.value
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            if value - value != 0:
                raise ValueError(f"{value} is no number that a column can hold")
            return repr(float(value))
        case str():
            return "'" + well_formed(value).replace("'", "''") + "'"
        case UUID():
            return str(value)
        case datetime():
            if value.tzinfo is None:
                raise ValueError("a time in a filter needs its zone")
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    raise TypeError(f"a filter cannot hold a {type(value).__name__}")


class Filter:
    """One condition; ``&``, ``|`` and ``~`` combine them, ``str()`` is the OData text."""

    __slots__ = ("_joiner", "_text")
    _joiner: str
    _text: str

    def __init__(self) -> None:
        raise TypeError("a condition is made from a column: field(name) == value")

    @staticmethod
    def all(conditions: Iterable[Filter]) -> Filter | None:
        """All of them at once; None when there are none."""
        return _fold("and", conditions)

    @staticmethod
    def any(conditions: Iterable[Filter]) -> Filter | None:
        """At least one of them; None when there are none."""
        return _fold("or", conditions)

    def __and__(self, other: Filter) -> Filter:
        return self._join("and", other)

    def __or__(self, other: Filter) -> Filter:
        return self._join("or", other)

    def __invert__(self) -> Filter:
        return _made(f"not ({self._text})")

    def __bool__(self) -> bool:
        raise TypeError("a condition is neither true nor false here; combine conditions with & and |")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Filter({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def _join(self, joiner: str, other: Filter) -> Filter:
        if not isinstance(other, Filter):
            return NotImplemented
        return _made(f"{self._within(joiner)} {joiner} {other._within(joiner)}", joiner)

    def _within(self, joiner: str) -> str:
        return self._text if self._joiner in ("", joiner) else f"({self._text})"


class Field:
    """A column in a condition; made by :func:`field`."""

    __slots__ = ("name",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a column")
        self.name = name

    def eq(self, value: Value) -> Filter:
        """Equal; None asks for rows without a value."""
        return self._compare("eq", value)

    def ne(self, value: Value) -> Filter:
        """Not equal."""
        return self._compare("ne", value)

    def lt(self, value: Value) -> Filter:
        """Less, or earlier."""
        return self._compare("lt", value)

    def le(self, value: Value) -> Filter:
        """Less or equal."""
        return self._compare("le", value)

    def gt(self, value: Value) -> Filter:
        """Greater, or later."""
        return self._compare("gt", value)

    def ge(self, value: Value) -> Filter:
        """Greater or equal."""
        return self._compare("ge", value)

    def is_in(self, values: Iterable[Value]) -> Filter:
        """One of these values.

        Raises:
            ValueError: There are none.
        """
        found = Filter.any(self.eq(value) for value in values)
        if found is None:
            raise ValueError(f"{self.name} cannot be one of no values")
        return found

    def contains(self, text: str) -> Filter:
        """The text occurs in it, letter by letter."""
        return self._call("contains", text)

    def startswith(self, text: str) -> Filter:
        """It begins with the text."""
        return self._call("startswith", text)

    def endswith(self, text: str) -> Filter:
        """It ends with the text."""
        return self._call("endswith", text)

    def __eq__(self, value: Value) -> Filter:  # type: ignore[override]
        return self.eq(value)

    def __ne__(self, value: Value) -> Filter:  # type: ignore[override]
        return self.ne(value)

    def __lt__(self, value: Value) -> Filter:
        return self.lt(value)

    def __le__(self, value: Value) -> Filter:
        return self.le(value)

    def __gt__(self, value: Value) -> Filter:
        return self.gt(value)

    def __ge__(self, value: Value) -> Filter:
        return self.ge(value)

    def __repr__(self) -> str:
        return f"field({self.name!r})"

    def _compare(self, operator: str, value: Value) -> Filter:
        return _made(f"{self.name} {operator} {literal(value)}")

    def _call(self, function: str, text: str) -> Filter:
        # The service hands these to LIKE: its wildcards stand for themselves only within brackets.
        plain = re.sub(r"[%_\[]", r"[\g<0>]", text)
        return _made(f"{function}({self.name},{literal(plain)})")


def field(name: str) -> Field:
    """The column of that name.

    Raises:
        ValueError: It can be no name of a column.
    """
    return Field(name)


def _made(text: str, joiner: str = "") -> Filter:
    condition = object.__new__(Filter)
    condition._text, condition._joiner = text, joiner
    return condition


def _fold(joiner: str, conditions: Iterable[Filter]) -> Filter | None:
    found: Filter | None = None
    for condition in conditions:
        found = condition if found is None else found._join(joiner, condition)
    return found
