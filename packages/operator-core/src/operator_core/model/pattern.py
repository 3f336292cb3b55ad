"""Regular expressions that a person has configured, over texts that somebody else wrote.

Python's own engine tries every way in which a pattern could fit, so that a text can be written on which it works for
days, and the worker with it. This one (RE2) reads each text once; what it cannot do for that (lookahead, lookbehind,
backreferences) is refused where the pattern is read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["Pattern", "Unreadable"]

_MEMORY = 8 << 20


class Unreadable(ValueError):
    """The text cannot be searched, because a lone surrogate is in it: nothing is known of it."""


class Pattern:
    r"""A compiled regular expression.

    ``\d``, ``\s``, ``\w`` and ``\b`` know ASCII alone; ``$`` stands, as in Python, also before a line break at the end.

    Args:
        text: In the syntax of RE2.

    Raises:
        ValueError: It is none; the text is one clause that says why.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled = _compile(text)

    def found_in(self, text: str) -> bool:
        """Whether it fits somewhere in the text, in a time that grows with its length alone.

        Raises:
            Unreadable: The text cannot be searched.
        """
        data = _utf8(text)
        if self._compiled.search(data) is not None:
            return True
        return data.endswith(b"\n") and self._compiled.search(data[:-1]) is not None

    def fits(self, text: str) -> bool:
        """Whether it fits the whole text, from its first character to its last.

        Raises:
            Unreadable: The text cannot be searched.
        """
        return self._compiled.fullmatch(_utf8(text)) is not None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Unreadable("the text has a lone surrogate in it") from None


@lru_cache(maxsize=256)
def _compile(text: str) -> Any:
    # Where it is used: it is a library in C++, and most programs have no pattern.
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors, options.never_capture = False, True
    options.max_mem = _MEMORY
    try:
        return re2.compile(text, options)
    except UnicodeEncodeError:
        raise ValueError("it has a lone surrogate in it") from None
    except re2.error as error:
        raise ValueError(_said(error)) from None


def _said(error: Exception) -> str:
    """What the library says, and what to write instead of what Python's engine knows and this one does not."""
    said = error.args[0] if error.args else ""
    words = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    if words.startswith("invalid perl operator: (?"):
        return f"{words}; lookahead, lookbehind and other tests around a place are not known, because they can stall"
    if words == r"invalid escape sequence: \Z":
        return rf"{words}; the end of the text is \z"
    if words.startswith("invalid escape sequence: "):
        return f"{words}; backreferences are not known, because they can stall, and a character is written as itself"
    return words
