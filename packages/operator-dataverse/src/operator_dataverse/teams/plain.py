"""A card as a terminal shows it; also one that holds what we do not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from operator_core.text import clip, printable

__all__ = ["card_text"]

_DEEP = 20
_INSIDE = ("inlines", "items", "columns", "body", "actions")


def card_text(card: object) -> str:
    """The texts, inputs and buttons of a card, one a line.

    Elements and fields that are not known are passed over, and what is in them is shown where it has a known form; a
    card may come from anybody.
    """
    return "\n".join(clip(line, 2000) for line in _lines(card, 0)) or "(an empty card)"


def _lines(element: object, depth: int) -> Iterator[str]:
    if depth > _DEEP:
        return
    if isinstance(element, list):
        for one in element:
            yield from _lines(one, depth + 1)
    if not isinstance(element, dict):
        return
    kind = element.get("type")
    if kind == "RichTextBlock":
        runs = element.get("inlines")
        yield from _said("".join(_run(run) for run in runs) if isinstance(runs, list) else "")
    elif kind == "TextBlock":
        yield from _said(_text(element.get("text")))
    elif kind == "Input.Text":
        yield f"[ {_text(element.get('label') or element.get('placeholder') or element.get('id'))}: ____ ]"
    elif isinstance(kind, str) and kind.startswith("Action."):
        url = _text(element.get("url"))
        yield f"( {_text(element.get('title')) or kind} ){f' {url}' if url else ''}"
    elif kind == "FactSet" and isinstance(element.get("facts"), list):
        for fact in element["facts"]:
            if isinstance(fact, dict):
                yield f"{_text(fact.get('title'))}: {_text(fact.get('value'))}"
    else:
        for key in _INSIDE:
            yield from _lines(element.get(key), depth + 1)


def _run(run: Any) -> str:
    return _text(run.get("text")) if isinstance(run, dict) else _text(run)


def _said(text: str) -> Iterator[str]:
    yield from (line for line in text.split("\n") if line.strip())


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else ""
