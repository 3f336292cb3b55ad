"""What flows say about columns: whether these exist, and whether what is compared with or written into them fits.

The most expensive slip of a flow is a comparison that is never true, such as a choice with a word (D-62, D-63).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from operator_dataverse.flows.expressions import expressions
from operator_dataverse.tables.schema import ColumnSpec, TableSpec

__all__ = ["OWNER", "SYSTEM_USERS", "filter_problems", "names_problems", "order_problems", "value_problem"]

# Every table has them; flows read them.
_SYSTEM = {"createdon": "datetime", "modifiedon": "datetime", "_ownerid_value": "guid"}
SYSTEM_USERS = TableSpec(
    entity_set="systemusers",
    logical_name="systemuser",
    key="systemuserid",
    primary_name="fullname",
    display_name="User",
    display_name_plural="Users",
    ownership="OrganizationOwned",
    description="People and programs with an account; flows look up whose a row is to be.",
    columns=tuple(
        ColumnSpec(name=name, type="string", max_length=length, description="Of the platform.")
        for name, length in (("fullname", 200), ("internalemailaddress", 100), ("domainname", 1024))
    ),
)
OWNER = "ownerid@odata.bind"
"""What names the owner of a row that is written."""
_LITERAL = r"'(?:[^']|'')*'|-?\d+(?:\.\d+)?|null|true|false|@\{"
_COMPARISON = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*)\s+(eq|ne|gt|ge|lt|le)\s+({_LITERAL})")
_TEXT_CALL = re.compile(rf"\b(startswith|endswith|contains)\(\s*([A-Za-z_][A-Za-z0-9_]*)\s*,\s*({_LITERAL})\s*\)")
_ESCAPED = re.compile(r"^replace\(.*,\s*''''\s*,\s*''''''\s*\)$", re.DOTALL)
_WORDS = frozenset(("and", "or", "not"))


def names_problems(table: TableSpec, listed: str) -> Iterator[str]:
    """Columns of a list such as ``$select`` that the table does not have."""
    for name in filter(None, (part.strip() for part in listed.split(","))):
        if _type(table, name) is None:
            yield f"{table.entity_set} has no column {name!r}"


def order_problems(table: TableSpec, order: str) -> Iterator[str]:
    """What is wrong with ``$orderby``."""
    for part in order.split(","):
        name, _, direction = part.strip().partition(" ")
        if _type(table, name) is None:
            yield f"{table.entity_set} has no column {name!r}"
        if direction.strip() not in ("", "asc", "desc"):
            yield f"{direction.strip()!r} is no direction"


def filter_problems(table: TableSpec, text: str) -> Iterator[str]:
    """What is wrong with a filter: columns, types of literals, and text of others that could end its quotes."""
    for expression in expressions(text):
        if not _ESCAPED.match(expression.strip()):
            yield f"the text inserted into the filter must have its quotes doubled: {expression[:80]!r}"
    # What is inserted is known to be harmless now; a word stands for it.
    plain = text
    for expression in expressions(text):
        plain = plain.replace(f"@{{{expression}}}", "x")
    rest = plain
    for pattern, column, literal in ((_COMPARISON, 1, 3), (_TEXT_CALL, 2, 3)):
        for found in pattern.finditer(plain):
            yield from _compared(table, found[column], found[literal])
        rest = pattern.sub(" ", rest)
    leftover = [word for word in re.findall(r"[^\s()]+", rest) if word not in _WORDS]
    if leftover:
        yield f"the filter is not understood at {leftover[0][:40]!r}"
    if plain.count("(") != plain.count(")"):
        yield "the brackets of the filter do not match"


def value_problem(table: TableSpec, name: str, value: object) -> str | None:
    """Why this must not be written into a column; None: it may, as far as that can be seen before the flow runs."""
    column = table.by_name.get(name)
    if name == OWNER:
        return None if str(value).startswith("@concat('/systemusers(',") else f"{name} names no user"
    if column is None:
        return f"{table.entity_set} has no column {name!r} that can be written"
    if column.presence == "legacy":
        return f"{name} is a column of older flows and must not be written"
    if isinstance(value, str) and expressions(value):
        return f"{name} is a number and needs a fixed one" if column.type in ("choice", "integer") else None
    return _value_fits(column, value)


def _value_fits(column: ColumnSpec, value: object) -> str | None:
    if column.type in ("string", "memo"):
        if not isinstance(value, str):
            return f"{column.name} is a text, and {value!r} is none"
        if column.max_length is not None and len(value.encode("utf-16-le")) // 2 > column.max_length:
            return f"{column.name} holds {column.max_length} characters"
        return f"{column.name} never is {value!r}" if column.values and value not in column.values else None
    if column.type == "choice":
        return None if type(value) is int and value in column.options else f"{column.name} never is {value!r}"
    kinds: dict[str, type] = {"integer": int, "boolean": bool, "datetime": str}
    return None if type(value) is kinds[column.type] else f"{column.name} cannot be {value!r}"


def _compared(table: TableSpec, name: str, literal: str) -> Iterator[str]:
    kind = _type(table, name)
    if kind is None:
        yield f"{table.entity_set} has no column {name!r}"
        return
    if literal == "null":
        return
    column = table.by_name.get(name)
    quoted = literal.startswith("'")
    word = literal[1:-1].replace("''", "'")
    if kind in ("string", "memo"):
        if not quoted:
            yield f"{name} is a text, and {literal} is none"
        elif column is not None and column.values and word not in column.values and word != "x":
            yield f"{name} never is {word!r}"
    elif kind in ("choice", "integer"):
        if quoted or not literal.lstrip("-").isdigit():
            yield f"{name} is an integer, and {literal} is none"
        elif column is not None and column.options and int(literal) not in column.options:
            yield f"{name} never is {literal}"
    elif kind == "boolean" and literal not in ("true", "false"):
        yield f"{name} is true or false"


def _type(table: TableSpec, name: str) -> str | None:
    if name == table.key:
        return "guid"
    column = table.by_name.get(name)
    return _SYSTEM.get(name) if column is None else column.type
