"""The cards that flows make: of the same form as those of the worker, and with text of others only in text runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from operator_dataverse.flows.expressions import expressions
from operator_dataverse.teams.check import problems_of

__all__ = ["card_problems", "filled"]

# What an expression stands for when only the form of a card is looked at.
_LISTS = frozenset(("items", "actions", "body", "inlines"))


def card_problems(value: object) -> Iterator[str]:
    """What is wrong with a card that a flow makes; nothing for what is no card."""
    if not isinstance(value, dict) or value.get("type") != "AdaptiveCard":
        return
    yield from problems_of(filled(value))
    yield from _markup(value)


def filled(card: dict[str, Any]) -> dict[str, Any]:
    """The card with something harmless where its expressions are."""
    return {name: _filled(value, name) for name, value in card.items()}


def _filled(node: Any, key: str) -> Any:
    if isinstance(node, dict):
        return {name: _filled(value, name) for name, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, key) for value in node]
    if isinstance(node, str) and expressions(node):
        return [] if key in _LISTS else ("https://example.com/" if key == "url" else "x")
    return node


def _markup(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") != "TextRun":
            for name in ("text", "title", "label", "placeholder", "errorMessage", "fallbackText"):
                if isinstance(node.get(name), str) and expressions(node[name]):
                    yield f"{node.get('type')}.{name} may be read as Markdown; text of others belongs into a TextRun"
        for value in node.values():
            yield from _markup(value)
    elif isinstance(node, list):
        for value in node:
            yield from _markup(value)
