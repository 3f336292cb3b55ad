"""Texts with places in them that are filled from a JSON document: ``build {project.name}: {reason|unknown}``."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple

from operator_core.model.json_path import lookup, parse_path

__all__ = ["Template"]

_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<path>[^{}|]*)(?P<bar>\|(?P<default>[^{}]*))?\}|(?P<stray>[{}])")


class _Place(NamedTuple):
    path: str
    default: str | None


class Template:
    """Words and places; there is nothing else in it, no expression and no code.

    ``{a.b[0]}`` stands for what is at that path of the document, ``{a.b|word}`` for ``word`` where nothing (or
    ``null``) is there; ``{{`` and ``}}`` are braces. What is filled in is never looked at again, so that a document
    cannot bring places of its own.
    """

    def __init__(self, parts: tuple[str | _Place, ...]) -> None:
        self._parts = parts

    @classmethod
    def parse(cls, text: str) -> Template:
        """The template that a text is.

        Raises:
            ValueError: It is none; the text says why.
        """
        return _parse(text)

    def fill(self, document: object) -> str:
        """The text for this document: strings as they are, other values as JSON.

        Raises:
            LookupError: Nothing is at a place without a default; the text names the path.
        """
        return "".join(part if isinstance(part, str) else _value(part, document) for part in self._parts)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Template:
    parts: list[str | _Place] = []
    end = 0
    for match in _TOKEN.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        if match["stray"]:
            raise ValueError(f"{text!r} has a single {match['stray']!r}; write it twice where it means itself")
        if match["path"] is None:
            parts.append(match[0][0])
        else:
            parse_path(match["path"])
            parts.append(_Place(match["path"], match["default"]))
    parts.append(text[end:])
    return Template(tuple(part for part in parts if part != ""))


def _value(place: _Place, document: object) -> str:
    try:
        value = lookup(document, place.path)
    except LookupError:
        value = None
    if value is None:
        if place.default is None:
            raise LookupError(f"nothing is at {place.path!r}")
        return place.default
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
