"""Text that nobody may trust, made so that no chat, mail or terminal takes it for anything but text.

Channels differ in what they read as markup, and not all of them can be told to read none. So nothing is left that any
of them would take for a mention, a link, an image, code or a new line. It is a summary: the exact text is in the
console.
"""

from __future__ import annotations

import re
import unicodedata

from operator_core.text import clip, printable

__all__ = ["neutral"]

_JOINER = "\u2060"
_SWAPS = str.maketrans({"<": "‹", ">": "›", "`": "'", "*": "∗", "|": "¦", "@": f"@{_JOINER}", "\\": "∖"})
_BREAKS = (
    # A scheme, which would become a link; also `mailto:` and the like.
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20}):(?=//|\S+@)"), rf"\1:{_JOINER}"),
    (re.compile(r"(?i)\bwww\."), f"www{_JOINER}."),
    (re.compile(r"\](?=[(\[])"), f"]{_JOINER}"),
    (re.compile("~~"), f"~{_JOINER}~"),
    (re.compile("__"), f"_{_JOINER}_"),
)
_PILED_UP = 2
_READ_AT_MOST = 8


def neutral(text: str, length: int = 300) -> str:
    """One line without any markup, at most ``length`` characters of the text."""
    # A long text is not worked through for its beginning.
    text = printable(text[: length * _READ_AT_MOST])
    text = clip(" ".join("".join(_visible(text)).split()), length)
    # Before the swaps, because they break `@` too.
    for pattern, broken in _BREAKS:
        text = pattern.sub(broken, text)
    return text.translate(_SWAPS)


def _visible(text: str) -> list[str]:
    """Without characters that are not seen, and without piles of marks above and below the line."""
    out: list[str] = []
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        if category in ("Zl", "Zp", "Zs") or char in "\n\t":
            out.append(" ")
            continue
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if category[0] == "C" or marks > _PILED_UP:
            continue
        out.append(char)
    return out
