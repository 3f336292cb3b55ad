"""Places in lists, as clients carry them: opaque to them, and no more to us than numbers that we wrote."""

from __future__ import annotations

import base64
import binascii
import re

from operator_core.errors import ConfigError

__all__ = ["read_cursor", "write_cursor"]

_MOST = 2**31 - 1
_PLACE = re.compile(r"([a-z]+):([0-9]{1,10}(?:\.[0-9]{1,10})*)")


def write_cursor(kind: str, *numbers: int) -> str:
    """The cursor of a place.

    Args:
        kind: The list and its order, in small letters; a cursor fits no other list.
        numbers: Where, each from 0 to 2147483647.
    """
    return base64.urlsafe_b64encode(f"{kind}:{'.'.join(map(str, numbers))}".encode()).decode().rstrip("=")


def read_cursor(kind: str, cursor: str, count: int) -> tuple[int, ...]:
    """The numbers in a cursor.

    Raises:
        ConfigError: It is none of this list.
    """
    wrong = ConfigError("This cursor belongs to another list or to none; begin at the first page, without a cursor.")
    if len(cursor) > 100:
        raise wrong
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise wrong from None
    match = _PLACE.fullmatch(text)
    numbers = tuple(map(int, match[2].split("."))) if match and match[1] == kind else ()
    if len(numbers) != count or any(number > _MOST for number in numbers):
        raise wrong
    return numbers
