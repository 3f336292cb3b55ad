"""What a column takes, and what is kept of it."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any

from operator_dataverse.double.definitions import Column, Table
from operator_dataverse.double.problems import Problem, bad_payload, bad_query

__all__ = ["parse_id", "stamp", "stored", "utf16_length"]

_INT32 = 2**31
_UNWELCOME = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def utf16_length(text: str) -> int:
    """Code units of UTF-16, by which column lengths count."""
    return len(text) + sum(character > "\uffff" for character in text)


def stamp(moment: datetime) -> str:
    """Whole seconds: the service keeps no parts of them."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stored(table: Table, column: Column, value: Any) -> Any:
    """What is stored for a value.

    Raises:
        Problem: 400.
    """
    if value is None:
        return None
    match column.type:
        case "string" | "memo" if isinstance(value, str):
            return _text(table, column, value)
        case "choice" if isinstance(value, int) and not isinstance(value, bool):
            if value not in column.options:
                accepted = ",".join(str(option) for option in column.options)
                raise Problem(
                    400,
                    "0x8004431a",
                    f"A validation error occurred.  The value {value} of '{column.name}' on record of type "
                    f"'{table.logical_name}' is outside the valid range. Accepted Values: {accepted}",
                )
            return value
        case "integer" | "bigint" if isinstance(value, int) and not isinstance(value, bool):
            if column.type == "bigint" or -_INT32 <= value < _INT32:
                return value
        case "boolean" if isinstance(value, bool):
            return value
        case "datetime" if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                pass
            else:
                return stamp(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        case "guid" if isinstance(value, str):
            try:
                return str(uuid.UUID(value))
            except ValueError:
                pass
    shown = json.dumps(value)[:100]
    raise bad_payload(table.entity_set, f"Cannot convert the literal '{shown}' to the expected type '{column.edm}'.")


def _text(table: Table, column: Column, value: str) -> str | None:
    if _UNWELCOME.search(value):
        raise Problem(400, "0x80040278", f"The field '{column.name}' contains one or more invalid characters.")
    if column.max_length is not None and utf16_length(value) > column.max_length:
        raise Problem(
            400,
            "0x80044331",
            f"A validation error occurred. The length of the '{column.name}' attribute of the "
            f"'{table.logical_name}' entity exceeded the maximum allowed length of '{column.max_length}'.",
        )
    return value or None  # the database keeps no empty text


def parse_id(table: Table, text: str) -> str:
    """The id in ``table(…)``.

    Raises:
        Problem: 400 when it is no GUID.
    """
    name, equals, value = text.partition("=")
    if equals and name.strip() != table.key:
        raise bad_query(f"The specified key property '{name.strip()}' is no key of '{table.logical_name}'.")
    try:
        return str(uuid.UUID((value if equals else text).strip().strip("'")))
    except ValueError:
        raise bad_query(f"Bad Request - Error in query syntax: '{text}' is no id.") from None
