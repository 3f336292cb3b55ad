"""``$filter`` and ``$orderby`` as the service reads them: a parser, a check against the columns, and an evaluation.

It shares nothing with the client, so that it can judge it. What Dataverse does not offer is refused here too: of the
functions only ``contains``, ``startswith`` and ``endswith``, no arithmetic, no ``in``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from operator_dataverse.double.definitions import Table
from operator_dataverse.double.problems import bad_query

__all__ = ["Filter", "Order", "parse_filter", "parse_orderby", "same_text"]

Truth = bool | None
"""Of three: None is unknown."""

_MAX_DEPTH = 100
_OPERATORS = {"eq": "Equal", "ne": "NotEqual", "gt": "GreaterThan", "ge": "GreaterThanOrEqual", "lt": "LessThan",
              "le": "LessThanOrEqual"}  # fmt: skip
_FUNCTIONS = ("contains", "startswith", "endswith")
_TOKEN = re.compile(
    r"(?P<space>[ \t]+)"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|(?P<guid>[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![\w-]))"
    r"|(?P<time>\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d))?(?![\w:]))"
    r"|(?P<number>-?\d+(?:\.\d+)?(?![\w.]))"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)"
    r"|(?P<mark>[(),])"
)


@dataclass(frozen=True)
class Token:
    """A piece of the text: what it is, what it says, where it begins."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Operand:
    """One side of a comparison: its OData type (None: null), and how its value is got from a row."""

    edm: str | None
    of: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Filter:
    """A condition on rows.

    Attributes:
        text: As it was sent.
        columns: The columns that it reads.
    """

    text: str
    columns: frozenset[str]
    _truth: Callable[[Mapping[str, Any]], Truth]

    def __call__(self, row: Mapping[str, Any]) -> bool:
        """Whether the row is one of them; unknown is no."""
        return self._truth(row) is True


@dataclass(frozen=True)
class Order:
    """One column of an order."""

    column: str
    descending: bool

    def key(self, row: Mapping[str, Any]) -> tuple[bool, Any]:
        """Sorts like the service: null first, texts without regard to case."""
        value = row.get(self.column)
        if value is None:
            return (False, 0)
        return (True, same_text(value) if isinstance(value, str) else value)


def same_text(text: str) -> str:
    """Equal for texts that the database takes for equal: it ignores case, and spaces at the end."""
    return text.casefold().rstrip(" ")


def parse_filter(text: str, table: Table) -> Filter:
    """The condition that ``text`` states.

    Raises:
        Problem: It is no condition on this table.
    """
    reader = _Reader(text, table)
    truth = reader.condition(0)
    reader.end()
    return Filter(text, frozenset(reader.columns), truth)


def parse_orderby(text: str, table: Table) -> list[Order]:
    """The order that ``text`` states, e.g. ``createdon asc,cr_name desc``.

    Raises:
        Problem: It is no order of this table.
    """
    orders = []
    for part in text.split(","):
        words = part.split()
        if not words or len(words) > 2 or (len(words) == 2 and words[1] not in ("asc", "desc")):
            raise bad_query(f"Syntax error at position {len(part)} in '{part}'.")
        orders.append(Order(_column_of(words[0], table), words[1:] == ["desc"]))
    return orders


def _column_of(name: str, table: Table) -> str:
    if name not in table.columns:
        raise bad_query(
            f"Could not find a property named '{name}' on type 'Microsoft.Dynamics.CRM.{table.logical_name}'."
        )
    return name


def _tokens(text: str) -> list[Token]:
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            what = "There is an unterminated string literal" if text[at] == "'" else "Syntax error"
            raise bad_query(f"{what} at position {at} in '{text}'.")
        kind = str(found.lastgroup)
        if kind != "space":
            tokens.append(Token(kind, found.group(), at))
        at = found.end()
    return tokens


class _Reader:
    """Recursive descent: ``or`` binds least, then ``and``, ``not``, comparisons."""

    def __init__(self, text: str, table: Table) -> None:
        self.columns: set[str] = set()
        self._text = text
        self._table = table
        self._tokens = _tokens(text)
        self._next = 0

    def condition(self, depth: int) -> Callable[[Mapping[str, Any]], Truth]:
        if depth > _MAX_DEPTH:
            raise bad_query("The depth of the expression is over the limit.")
        return self._any_of(depth)

    def end(self) -> None:
        if self._next < len(self._tokens):
            raise self._syntax(self._tokens[self._next])

    def _any_of(self, depth: int) -> Callable[[Mapping[str, Any]], Truth]:
        parts = [self._all_of(depth)]
        while self._accept("word", "or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else lambda row: _decided(True, [part(row) for part in parts])

    def _all_of(self, depth: int) -> Callable[[Mapping[str, Any]], Truth]:
        parts = [self._one(depth)]
        while self._accept("word", "and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else lambda row: _decided(False, [part(row) for part in parts])

    def _one(self, depth: int) -> Callable[[Mapping[str, Any]], Truth]:
        if self._accept("word", "not"):
            inner = self._one(depth + 1) if depth < _MAX_DEPTH else self.condition(depth + 1)
            return lambda row: None if (truth := inner(row)) is None else not truth
        if self._accept("mark", "("):
            inner = self.condition(depth + 1)
            self._expect("mark", ")")
            return inner
        token = self._peek()
        following = self._tokens[self._next + 1] if self._next + 1 < len(self._tokens) else None
        if token.kind == "word" and following is not None and following.text == "(":
            return self._function()
        left = self._operand()
        operator = self._take("word")
        if operator.text not in _OPERATORS:
            raise self._syntax(operator)
        return self._comparison(left, operator.text, self._operand())

    def _function(self) -> Callable[[Mapping[str, Any]], Truth]:
        name = self._take("word")
        if name.text not in _FUNCTIONS:
            raise bad_query(f"An unknown function with name '{name.text}' was found.")
        self._expect("mark", "(")
        where = self._operand()
        self._expect("mark", ",")
        what = self._operand()
        self._expect("mark", ")")
        if where.edm != "Edm.String" or what.edm != "Edm.String":
            raise bad_query(f"No function signature for the function with name '{name.text}' matches the arguments.")
        begins, ends = name.text != "endswith", name.text != "startswith"

        def truth(row: Mapping[str, Any]) -> Truth:
            text, sought = where.of(row), what.of(row)
            if text is None or sought is None:
                return None
            return _like(text, sought, anchored_start=not ends, anchored_end=not begins)

        return truth

    def _comparison(self, left: Operand, operator: str, right: Operand) -> Callable[[Mapping[str, Any]], Truth]:
        if not _comparable(left.edm, right.edm):
            raise bad_query(
                "A binary operator with incompatible types was detected. Found operand types "
                f"'{left.edm}' and '{right.edm}' for operator kind '{_OPERATORS[operator]}'."
            )

        def truth(row: Mapping[str, Any]) -> Truth:
            one, other = left.of(row), right.of(row)
            if operator in ("eq", "ne"):
                equal = one is None and other is None
                if one is not None and other is not None:
                    equal = _comparand(one) == _comparand(other)
                return equal if operator == "eq" else not equal
            if one is None or other is None:
                return False
            return _ORDERED[operator](_comparand(one), _comparand(other))

        return truth

    def _operand(self) -> Operand:
        token = self._peek()
        self._next += 1
        match token.kind:
            case "text":
                text = token.text[1:-1].replace("''", "'")
                return Operand("Edm.String", lambda row: text)
            case "guid":
                guid = str(uuid.UUID(token.text))
                return Operand("Edm.Guid", lambda row: guid)
            case "number":
                if "." in token.text:
                    decimal = float(token.text)
                    return Operand("Edm.Double", lambda row: decimal)
                whole = int(token.text)
                return Operand("Edm.Int32" if abs(whole) < 2**31 else "Edm.Int64", lambda row: whole)
            case "time":
                try:
                    moment = datetime.fromisoformat(token.text)
                except ValueError:
                    raise self._syntax(token) from None
                aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
                return Operand("Edm.DateTimeOffset", lambda row: aware)
            case "word" if token.text in ("true", "false"):
                truth = token.text == "true"
                return Operand("Edm.Boolean", lambda row: truth)
            case "word" if token.text == "null":
                return Operand(None, lambda row: None)
            case "word":
                name = _column_of(token.text, self._table)
                self.columns.add(name)
                edm = self._table.columns[name].edm
                if edm == "Edm.DateTimeOffset":
                    return Operand(edm, lambda row: None if (v := row.get(name)) is None else datetime.fromisoformat(v))
                return Operand(edm, lambda row: row.get(name))
        raise self._syntax(token)

    def _peek(self) -> Token:
        if self._next >= len(self._tokens):
            raise bad_query(f"Expression expected at position {len(self._text)} in '{self._text}'.")
        return self._tokens[self._next]

    def _take(self, kind: Literal["word", "mark"]) -> Token:
        token = self._peek()
        if token.kind != kind:
            raise self._syntax(token)
        self._next += 1
        return token

    def _accept(self, kind: Literal["word", "mark"], text: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next].kind == kind
        if found and self._tokens[self._next].text == text:
            self._next += 1
            return True
        return False

    def _expect(self, kind: Literal["word", "mark"], text: str) -> None:
        if self._take(kind).text != text:
            raise self._syntax(self._tokens[self._next - 1])

    def _syntax(self, token: Token) -> Exception:
        return bad_query(f"Syntax error at position {token.at} in '{self._text}'.")


_ORDERED: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": lambda one, other: bool(one > other),
    "ge": lambda one, other: bool(one >= other),
    "lt": lambda one, other: bool(one < other),
    "le": lambda one, other: bool(one <= other),
}
_NUMBERS = {"Edm.Int32", "Edm.Int64", "Edm.Double"}


def _comparable(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other or {one, other} <= _NUMBERS


def _comparand(value: Any) -> Any:
    return same_text(value) if isinstance(value, str) else value


def _decided(by: bool, truths: list[Truth]) -> Truth:
    """``or`` is decided by a true part, ``and`` by a false one; else an unknown part leaves it unknown."""
    if by in truths:
        return by
    return None if None in truths else not by


def _like(text: str, sought: str, *, anchored_start: bool, anchored_end: bool) -> bool:
    """``LIKE`` of the database: ``%``, ``_`` and ``[…]`` in the sought text are wildcards, also here."""
    pattern, at = [], 0
    while at < len(sought):
        character = sought[at]
        closing = sought.find("]", at + 2) if character == "[" else -1
        if character == "%":
            pattern.append(".*")
        elif character == "_":
            pattern.append(".")
        elif closing > 0:
            pattern.append(_one_of(sought[at + 1 : closing]))
            at = closing
        else:
            pattern.append(re.escape(character))
        at += 1
    body = "".join(pattern)
    whole = ("" if anchored_start else ".*") + body + ("" if anchored_end else ".*")
    return re.fullmatch(whole, text, re.DOTALL | re.IGNORECASE) is not None


def _one_of(inside: str) -> str:
    """The pattern of ``[inside]``: characters and ranges; ``^`` in front means all others."""
    negated = len(inside) > 1 and inside.startswith("^")
    parts, at = [], int(negated)
    while at < len(inside):
        first, last = inside[at], inside[at + 2] if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside) else ""
        if last and first <= last:
            parts.append(f"{re.escape(first)}-{re.escape(last)}")
        elif not last:
            parts.append(re.escape(first))
        at += 3 if last else 1
    if not parts:
        return "." if negated else "(?!)"
    return f"[{'^' if negated else ''}{''.join(parts)}]"
