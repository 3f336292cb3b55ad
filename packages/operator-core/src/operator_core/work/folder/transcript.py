"""What was said and done in a session, as lines for people and for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from operator_core.model.entry import Entry, EntryKind
from operator_core.text import clip, first_line, printable

__all__ = ["activities", "json_text", "transcript_jsonl"]

_ACTIVITIES, _TITLE = 50, 120
_OUTPUT = 4000
_UNQUIET = re.compile(r"[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200e\u200f]")
_SILENT = frozenset(
    (EntryKind.SANDBOX_REPORT, EntryKind.ENGINE_SESSION, EntryKind.USAGE, EntryKind.REPORT, EntryKind.SESSION_START)
)
_BY_AN_AGENT = frozenset(
    (EntryKind.REASONING, EntryKind.TOOL_CALL, EntryKind.TOOL_RESULT, EntryKind.OUTCOME, EntryKind.SUMMARY)
)


def transcript_jsonl(entries: Iterable[Entry]) -> str:
    """Everything that was said and done, one JSON object a line: ``from``, ``time`` and ``message``.

    ``from`` is ``worker``, ``verifier`` or ``summarizer`` for what those agents said and did, else ``system``.
    """
    lines: list[dict[str, str]] = []
    for entry in entries:
        if not lines:
            lines.append({"from": "system", "time": entry.timestamp, "message": "[Task started with autonomous agent]"})
        if message := _message(entry):
            lines.append({"from": _speaker(entry), "time": entry.timestamp, "message": message})
    return "".join(f"{json_text(line)}\n" for line in lines)


def activities(entries: Iterable[Entry]) -> list[str]:
    """The first line of the first 50 things that were said or done, 120 characters each."""
    titles = (
        first_line(printable(_message(entry)), _TITLE)
        for entry in entries
        if entry.entry_type not in (EntryKind.MESSAGE, EntryKind.TOOL_RESULT)
    )
    return [title for title in titles if title][:_ACTIVITIES]


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which nothing breaks a line, moves a cursor or turns the direction of text; it reads back the same."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNQUIET.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _speaker(entry: Entry) -> str:
    name = (entry.phase or "").partition("_")[0]
    return name if name in ("worker", "verifier", "summarizer") and entry.entry_type in _BY_AN_AGENT else "system"


def _message(entry: Entry) -> str:
    """What a reader of the transcript should see of an entry; empty: nothing."""
    kind = entry.entry_type
    if kind in _SILENT:
        return ""
    if kind == EntryKind.MESSAGE:
        # A reply's texts and calls are entries of their own.
        body = entry.body if isinstance(entry.body, dict) else {}
        said = body.get("content")
        return said if body.get("role") == "user" and isinstance(said, str) else ""
    if kind == EntryKind.TOOL_CALL:
        parameters = entry.tool_params or {}
        what = parameters.get("command")
        return f"[{entry.tool_name}] {what if isinstance(what, str) else json_text(parameters)}"
    if kind == EntryKind.TOOL_RESULT:
        whole = clip(entry.raw_content or "", _OUTPUT)
        return f"{entry.content}\n{whole}" if whole and whole != entry.content else entry.content
    if kind == EntryKind.NOTE:
        return f"{(entry.meta or {}).get('actor', 'somebody')} says: {entry.raw_content or entry.content}"
    if kind in (EntryKind.REASONING, EntryKind.SUMMARY, EntryKind.ERROR):
        return entry.raw_content or entry.content
    return entry.content
