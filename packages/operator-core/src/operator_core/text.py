"""Text from agents and tools is hostile; these make it short and harmless before a person sees it."""

from __future__ import annotations

import re

__all__ = ["clip", "first_line", "printable"]

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])?"
)
# Bidirectional controls can make a line read differently from what it says.
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f]")


def printable(text: str) -> str:
    r"""The text without terminal escapes; other control characters become ``\xNN``, line breaks and tabs stay."""
    text = _BIDI.sub("", _ESCAPES.sub("", text)).replace("\r\n", "\n")
    return "".join(
        c if c in "\n\t" or (ord(c) >= 32 and not 0x7F <= ord(c) < 0xA0) else f"\\x{ord(c):02x}" for c in text
    )


def clip(text: str, length: int = 200) -> str:
    """At most that many characters, with ``…`` where something was cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


def first_line(text: str, length: int = 200) -> str:
    """The first line that says something, clipped; empty if there is none."""
    return next((clip(line.strip(), length) for line in text.splitlines() if line.strip()), "")
