"""Reading a table: which rows, which columns, in which order, how many at once."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from operator_dataverse.double.definitions import Table
from operator_dataverse.double.filters import Filter, Order, parse_filter, parse_orderby
from operator_dataverse.double.problems import bad_query
from operator_dataverse.double.store import Row, Store

__all__ = ["MAX_PAGE", "Page", "Query", "shown"]

MAX_PAGE = 5000
"""Most rows of one answer."""
_KNOWN = {"$select", "$filter", "$orderby", "$top", "$count", "$skiptoken"}
FORMATTED = "@OData.Community.Display.V1.FormattedValue"


class Page(NamedTuple):
    """Some of the rows that match.

    Attributes:
        rows: In order.
        token: Continues after them; None: that is all of them.
        total: How many match, if that was asked for.
    """

    rows: list[Row]
    token: str | None
    total: int | None


class Query:
    """The options of a request that reads.

    Args:
        table: What is read.
        options: ``$filter`` and the like, decoded.

    Raises:
        Problem: 400.
    """

    def __init__(self, table: Table, options: Mapping[str, str]) -> None:
        for name in options:
            if name == "$skip":
                raise bad_query("Skip Clause is not supported in CRM")
            if name.startswith("$") and name not in _KNOWN:
                raise bad_query(f"The query parameter {name} is not supported")
        self.table = table
        self.filter: Filter | None = parse_filter(text, table) if (text := options.get("$filter")) is not None else None
        self.orders: list[Order] = parse_orderby(options["$orderby"], table) if "$orderby" in options else []
        self.select: list[str] = _selected(options["$select"], table) if options.get("$select") else []
        self.top = _whole(options, "$top")
        self.count = options.get("$count") == "true"
        self._after = _opened(options["$skiptoken"]) if "$skiptoken" in options else None

    def page(self, rows: list[Row], size: int | None) -> Page:
        """The next rows of these that match.

        Args:
            rows: All of the table that the account sees.
            size: Most rows of the page; with ``$top`` the service ignores it.
        """
        found = [row for row in rows if self.filter is None or self.filter(row.values)]
        count = len(found) if self.count else None
        found.sort(key=functools.cmp_to_key(lambda one, other: _compared(self._place(one), self._place(other))))
        if self._after is not None:
            after = self._after
            found = [row for row in found if _compared(self._place(row), self._remembered(after)) > 0]
        if self.top is not None:
            return Page(found[: self.top], None, count)
        size = min(size or MAX_PAGE, MAX_PAGE)
        if len(found) <= size:
            return Page(found, None, count)
        return Page(found[:size], _sealed(found[size - 1], self.orders, (self._after or {}).get("page", 1)), count)

    def _place(self, row: Row) -> list[tuple[Any, bool]]:
        return [(order.key(row.values), order.descending) for order in self.orders] + [(row.seq, False)]

    def _remembered(self, after: Mapping[str, Any]) -> list[tuple[Any, bool]]:
        values = dict(zip((order.column for order in self.orders), after["values"], strict=False))
        return [(order.key(values), order.descending) for order in self.orders] + [(after["seq"], False)]


def shown(row: Row, table: Table, select: list[str], store: Store, annotated: bool) -> dict[str, Any]:
    """A row as it is sent: its ETag, its id, and the columns that were asked for.

    Args:
        row: The row.
        table: Its table.
        select: Columns; empty: all.
        store: Knows the names of users.
        annotated: Add the formatted values.
    """
    names = list(dict.fromkeys([*select, table.key])) if select else list(table.columns)
    answer: dict[str, Any] = {"@odata.etag": row.etag}
    for name in names:
        value = row.values.get(name)
        if annotated and value is not None:
            formatted = _formatted(table, name, value, store)
            if formatted is not None:
                answer[f"{name}{FORMATTED}"] = formatted
        answer[name] = value
    return answer


def _formatted(table: Table, name: str, value: Any, store: Store) -> str | None:
    column = table.columns[name]
    if column.type == "choice":
        return column.options.get(value)
    if column.type == "boolean":
        return "Yes" if value else "No"
    if column.type == "datetime":
        moment = datetime.fromisoformat(value)
        return f"{moment.month}/{moment.day}/{moment.year} {moment.strftime('%I').lstrip('0')}:{moment:%M %p}"
    if column.type in ("integer", "bigint"):
        return f"{value:,}"
    if name.startswith("_"):
        return store.email_of(value)
    return None


def _selected(text: str, table: Table) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in table.columns:
            raise bad_query(
                f"Could not find a property named '{name}' on type 'Microsoft.Dynamics.CRM.{table.logical_name}'."
            )
    return names


def _whole(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    text = options[name]
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise bad_query(f"Invalid value '{text}' for {name} query option found.")
    return int(text)


def _compared(one: list[tuple[Any, bool]], other: list[tuple[Any, bool]]) -> int:
    for (left, descending), (right, _) in zip(one, other, strict=True):
        if left != right:
            return -1 if (left < right) != descending else 1
    return 0


def _sealed(row: Row, orders: list[Order], page: int) -> str:
    cookie = {"page": page + 1, "seq": row.seq, "values": [row.values.get(order.column) for order in orders]}
    inside = base64.urlsafe_b64encode(json.dumps(cookie).encode()).decode()
    return f'<cookie pagenumber="{page + 1}" pagingcookie="{inside}" istracking="False" />'


def _opened(token: str) -> dict[str, Any]:
    try:
        cookie = json.loads(base64.urlsafe_b64decode(token.split('pagingcookie="')[1].split('"')[0]))
        return {"page": int(cookie["page"]), "seq": int(cookie["seq"]), "values": list(cookie["values"])}
    except (IndexError, KeyError, TypeError, ValueError):
        raise bad_query("Malformed XML in the Paging Cookie") from None
