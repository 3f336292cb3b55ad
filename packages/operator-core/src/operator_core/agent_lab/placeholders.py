"""What stands in the context for the result of a tool that was taken out of it (requirements 2.3.6)."""

from __future__ import annotations

import json
import re
from typing import Any

from operator_core.text import clip, first_line, printable

__all__ = ["clipped", "placeholder"]

_MARKED = re.compile(r"(<<<(\w+) [^\n]*\n)(.*)(\n\2>>>)", re.DOTALL)
_COMMANDS = ("shell", "shell_exec")


def placeholder(name: str, content: str) -> str:
    """The line for an old result.

    Args:
        name: The tool.
        content: Its result, as the model was told.
    """
    data = _json_in(content)
    if name in _COMMANDS and data is not None:
        if "exit_code" not in data and "error" in data:  # interrupted: what is not known must not be forgotten
            return f"[{name} result masked -- {clip(printable(str(data['error'])), 100)}]"
        printed = len(str(data.get("stdout", "")).encode("utf-8", "replace"))
        return f"[{name} result masked -- exit_code={data.get('exit_code')}, stdout={printed} bytes]"
    if name == "file_read":
        head, text, tail = _unmarked(content)
        begin = printable(first_line(text, 60))
        # The beginning is still the words of whoever wrote the file.
        return f"{head}[file_read result masked -- {len(text.splitlines())} lines, starts with: {begin}...]{tail}"
    size = len(content.encode("utf-8", "replace"))
    if name in ("file_write", "file_edit"):
        return f"[{name} result masked -- {size} bytes]"
    return f"[{clip(printable(name), 60)} result masked -- {size} bytes of output]"


def clipped(name: str, content: str, length: int) -> str:
    """A result that is larger than the context has room for: its beginning and its end.

    Args:
        length: About how many characters of it may stay.
    """
    if len(content) <= length:
        return content
    begin, text, end = _unmarked(content)
    head, tail = text[: length * 2 // 5], text[len(text) - length * 3 // 5 :] if length > 1 else ""
    left = len(text) - len(head) - len(tail)
    note = f"[... {left} characters of this result of {name} did not fit into the context ...]"
    return f"{begin}{head}\n{note}\n{tail}{end}"


def _unmarked(content: str) -> tuple[str, str, str]:
    """The mark in front of a text, the text, and the mark behind it; the marks are empty if there are none."""
    found = _MARKED.fullmatch(content)
    return (found[1], found[3], found[4]) if found else ("", content, "")


def _json_in(content: str) -> dict[str, Any] | None:
    """The first JSON object in a text, marks around it or not."""
    at = content.find("{")
    if at < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(content, at)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
