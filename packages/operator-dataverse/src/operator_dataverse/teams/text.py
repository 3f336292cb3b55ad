"""Text of agents, people and rows, made fit for a card.

A card's ``TextBlock`` and ``Fact`` are read as Markdown; a ``TextRun`` is not. So text of others is put into text runs
only, and all that is left to do here is to make it short, printable and free of the two functions that every text of a
card may call.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from operator_core.text import clip, printable

__all__ = ["flat", "harmless", "link"]

# `{{DATE(...)}}` and `{{TIME(...)}}` are the only functions of a card's text.
_FUNCTION = re.compile(r"\{\{(?=\s*(?:DATE|TIME)\s*\()", re.IGNORECASE)
_MOST_URL = 2048


def harmless(text: str, length: int) -> str:
    """Lines that show what was written and do nothing; at most ``length`` characters, ``…`` where it was cut."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return clip(_FUNCTION.sub("{\u200b{", printable(whole)).strip(), length)


def flat(text: str, length: int) -> str:
    """As :func:`harmless`, in one line."""
    return clip(" ".join(harmless(text, 10 * length).split()), length)


def link(url: str | None) -> str | None:
    """The address, if a card may open it: ``https`` to a host, without a name or password in it; else None."""
    if not url or len(url) > _MOST_URL or any(c <= " " or c in '"<>\\^`{|}\x7f' for c in url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return url if parts.scheme == "https" and parts.hostname and "@" not in parts.netloc else None
