"""Paths into a JSON document: ``nodes[0].state``."""

from __future__ import annotations

import re

__all__ = ["lookup", "parse_path"]

_STEP = re.compile(r"\[(?P<index>\d{1,9})\]|(?P<dot>\.)?(?P<name>[^.\[\]]+)")


def parse_path(path: str) -> tuple[str | int, ...]:
    """The steps of a path: names of members, separated by dots, and positions from 0 in brackets.

    Raises:
        ValueError: It is not such a path; the text says so.
    """
    steps: list[str | int] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        # A name needs a dot before it unless it comes first, and must not have one there.
        if match is None or (match["name"] is not None and bool(match["dot"]) != bool(steps)):
            raise ValueError(f"{path!r} is not a path such as 'nodes[0].state'")
        steps.append(int(match["index"]) if match["index"] is not None else match["name"])
        position = match.end()
    if not steps:
        raise ValueError("an empty path names nothing; write one such as 'nodes[0].state'")
    return tuple(steps)


def lookup(document: object, path: str) -> object:
    """What is at that place of a parsed JSON document; a member that is ``null`` is there and is None.

    Raises:
        ValueError: The path is not one.
        LookupError: Nothing is there; the text says how far the path leads.
    """
    here = document
    walked = ""
    for step in parse_path(path):
        walked += f"[{step}]" if isinstance(step, int) else f".{step}" if walked else step
        if isinstance(step, int):
            if not isinstance(here, list) or step >= len(here):
                raise LookupError(f"the answer has no {walked!r}")
            here = here[step]
        else:
            if not isinstance(here, dict) or step not in here:
                raise LookupError(f"the answer has no {walked!r}")
            here = here[step]
    return here
