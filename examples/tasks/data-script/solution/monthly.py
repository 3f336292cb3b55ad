"""The paid orders of each month: ``python3 monthly.py FILE``."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable
from datetime import date
from typing import Any, NamedTuple

COLUMNS = ["id", "date", "customer", "status", "amount"]
STATES = ("paid", "refunded", "cancelled")
AMOUNT = re.compile(r"(\d{1,3}(,\d{3})*|\d+)\.\d{2}")


class Order(NamedTuple):
    """One line of the export."""

    month: str
    paid: bool
    cents: int


class NotUnderstood(Exception):
    """A line is not as README.md describes it."""


def read(lines: Iterable[str]) -> dict[str, Order]:
    """The orders by their id; of several lines with the same id the last one."""
    orders: dict[str, Order] = {}
    reader = csv.reader(lines, strict=True)
    try:
        if next(reader, None) != COLUMNS:
            raise ValueError(f"the columns are not {', '.join(COLUMNS)}")
        for row in reader:
            if row:
                number, day, _, status, amount = row
                if status not in STATES or not AMOUNT.fullmatch(amount):
                    raise ValueError(f"{status!r} or {amount!r} is not what README.md describes")
                month = date.fromisoformat(day).strftime("%Y-%m")
                orders[number] = Order(month, status == "paid", int(amount.replace(",", "").replace(".", "")))
    except (ValueError, csv.Error) as error:
        raise NotUnderstood(f"line {max(1, reader.line_num)}: {error}") from None
    return orders


def monthly(orders: Iterable[Order]) -> dict[str, dict[str, Any]]:
    """Number and sum of the paid orders by month, in order."""
    cents: dict[str, list[int]] = {}
    for order in orders:
        if order.paid:
            cents.setdefault(order.month, []).append(order.cents)
    return {
        month: {"orders": len(found), "total": f"{sum(found) // 100}.{sum(found) % 100:02}"}
        for month, found in sorted(cents.items())
    }


def main(arguments: list[str]) -> int:
    """The exit code: 0, or 2 if there is nothing to print."""
    if len(arguments) != 1:
        print("usage: python3 monthly.py FILE", file=sys.stderr)
        return 2
    try:
        with open(arguments[0], encoding="utf-8", newline="") as file:
            orders = read(file)
    except (OSError, UnicodeDecodeError, NotUnderstood) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(monthly(orders.values()), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
