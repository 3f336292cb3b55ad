"""Text from agents and tools is hostile; these make it short and harmless before a person sees it."""

from __future__ import annotations

import re

__all__ = ["ODD", "clip", "exact", "first_line", "printable"]

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])?"
)
# Bidirectional controls can make a line read differently from what it says.
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f]")
ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)
"""Characters that are not seen, or that make a line read differently from what it says."""


def printable(text: str) -> str:
    r"""The text without terminal escapes; other control characters become ``\xNN``, line breaks and tabs stay."""
    text = _BIDI.sub("", _ESCAPES.sub("", text)).replace("\r\n", "\n")
    return "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 0x7F <= ord(c) < 0xA0) else f"\\x{ord(c):02x}" for c in text
    )


def exact(text: str) -> str:
    r"""The whole text, for whoever has to decide about it: what is not seen becomes its code (``\x1b``, ``\u200b``).

    Unlike :func:`printable` it leaves nothing out, so that nothing can be hidden in a terminal escape.
    """
    return ODD.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def clip(text: str, length: int = 200) -> str:
    """At most that many characters, with ``…`` where something was cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


def first_line(text: str, length: int = 200) -> str:
    """The first line that says something, clipped; empty if there is none."""
    return next((clip(line.strip(), length) for line in text.splitlines() if line.strip()), "")
