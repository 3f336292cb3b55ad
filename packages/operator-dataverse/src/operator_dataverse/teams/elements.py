"""The few elements that our cards are made of, and the limit that all of them together keep.

``ours`` is for words of this package, and may use Markdown; ``theirs`` is for everything else, and never is Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from operator_dataverse.teams.text import flat, harmless, link

__all__ = [
    "MAX_BYTES",
    "Card",
    "Colour",
    "Element",
    "card",
    "details",
    "heading",
    "open_url",
    "ours",
    "size_of",
    "theirs",
]

Element = dict[str, Any]
Card = dict[str, Any]
Colour = Literal["default", "accent", "good", "warning", "attention"]

MAX_BYTES = 26_000
"""Teams refuses messages above about 28 KB; what is around the card in the message has to fit as well."""

_VERSION = "1.4"


def heading(text: str, colour: Colour = "default") -> Element:
    """What the card is, in our words."""
    return {"type": "TextBlock", "text": text, "size": "large", "weight": "bolder", "color": colour, "wrap": True}


def ours(text: str, *, subtle: bool = False) -> Element:
    """A paragraph of this package's own words; Markdown works in it."""
    return {"type": "TextBlock", "text": text, "wrap": True, "isSubtle": subtle}


def theirs(text: str, length: int, *, bold: bool = False) -> list[Element]:
    """Text of others; nothing in it is markup. Nothing at all for a text that says nothing."""
    said = flat(text, length) if bold else harmless(text, length)
    if not said:
        return []
    run: Element = {"type": "TextRun", "text": said}
    if bold:
        run["weight"] = "bolder"
    return [{"type": "RichTextBlock", "inlines": [run]}]


def details(pairs: Iterable[tuple[str, str | None]], length: int = 300) -> list[Element]:
    """Lines ``Label: value``; those without a value are left out."""
    out: list[Element] = []
    for label, value in pairs:
        said = flat(value or "", length)
        if said:
            runs = [{"type": "TextRun", "text": f"{label}: ", "weight": "bolder"}, {"type": "TextRun", "text": said}]
            out.append({"type": "RichTextBlock", "inlines": runs, "spacing": "small"})
    return out


def open_url(title: str, url: str | None) -> list[Element]:
    """A button that opens an address; none for an address that a card must not open."""
    good = link(url)
    return [{"type": "Action.OpenUrl", "title": title, "url": good}] if good else []


def card(body: Sequence[Element], actions: Sequence[Element] = ()) -> Card:
    """A whole card, its longest texts shortened until it is small enough for Teams."""
    made: Card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": _VERSION,
        "body": list(body),
    }
    if actions:
        made["actions"] = list(actions)
    while size_of(made) > MAX_BYTES:
        longest = max(_runs(made["body"]), key=lambda run: len(run["text"]))
        if len(longest["text"]) < 2:
            raise ValueError("what remains of this card without its texts is too large")
        longest["text"] = longest["text"][: len(longest["text"]) // 2].rstrip("…") + "…"
    return made


def size_of(made: Card) -> int:
    """Bytes of the card in UTF-8 or UTF-16, whichever is more: which one Teams counts depends on the way it is sent."""
    text = json.dumps(made, ensure_ascii=False)
    return max(len(text.encode()), len(text.encode("utf-16-le")))


def _runs(body: Sequence[Element]) -> Iterator[Element]:
    for element in body:
        if element.get("type") == "TextRun":
            yield element
        for key in ("inlines", "items"):
            yield from _runs(element.get(key, ()))
