"""Markdown in which nothing that an agent, a command or a person wrote is markup."""

from __future__ import annotations

from operator_core.text import clip, printable

__all__ = ["code", "inline", "quoted"]


def inline(text: str, length: int = 400) -> str:
    """One line, also for a cell of a table."""
    flat = " ".join(printable(text).split())
    return "".join("\\" + c if c in "\\`*[]<|~" else c for c in clip(flat, length))


def quoted(text: str, length: int = 4000) -> list[str]:
    """The lines of a block of code, with the blank line before it; it also works inside of a list item."""
    # An indented block cannot be ended from the inside, as a fence could.
    body = printable(clip(text.strip(), length)) or "(nothing)"
    return ["", *[f"      {line}".rstrip() for line in body.splitlines()]]


def code(text: str) -> str:
    """For between two backticks, as one line."""
    return " ".join(printable(text).split()).replace("`", "'")
