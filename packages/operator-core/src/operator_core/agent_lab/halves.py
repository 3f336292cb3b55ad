"""Characters that are no text: half of a surrogate pair, which a model can write and no request can carry."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

__all__ = ["Mended", "mend_reply"]

_HALF = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


class Mended(NamedTuple):
    """What was replaced in a reply.

    Attributes:
        characters: How many.
        calls: Ids of the calls whose arguments are not what the model wrote.
    """

    characters: int = 0
    calls: frozenset[str] = frozenset()


def mend_reply(message: Any) -> Mended:
    """Replace what cannot be sent back in a reply of the SDK, in place, before anybody reads it.

    Without that the next request could not be encoded, and the conversation would end.
    """
    total, calls = 0, set()
    for block in message.content:
        fields = {name: value for name, value in dict(block).items() if name not in ("type", "id")}
        for name, value in fields.items():
            mended, count = _mended(value)
            if count:
                setattr(block, name, mended)
                total += count
                if block.type == "tool_use":
                    calls.add(str(block.id))
    return Mended(total, frozenset(calls))


def _mended(value: Any) -> tuple[Any, int]:
    """The value without such characters, and how many there were; the value itself if there were none."""
    count = 0

    def text(found: str) -> str:
        nonlocal count
        clean, halves = _HALF.subn(_REPLACEMENT, found)
        count += halves
        return clean

    if isinstance(value, str):
        clean = text(value)
        return (clean, count) if count else (value, 0)
    if not isinstance(value, (dict, list)):
        return value, 0
    # A model may nest as deep as it likes, so this is no recursion.
    root: list[Any] = [value]
    stack: list[tuple[Any, Any]] = [(root, 0)]
    while stack:
        holder, key = stack.pop()
        inner = holder[key]
        if isinstance(inner, str):
            holder[key] = text(inner)
        elif isinstance(inner, dict):
            holder[key] = {text(name) if isinstance(name, str) else name: item for name, item in inner.items()}
            stack += [(holder[key], name) for name in holder[key]]
        elif isinstance(inner, list):
            holder[key] = list(inner)
            stack += [(holder[key], index) for index in range(len(inner))]
    return (root[0], count) if count else (value, 0)
