"""A session as Markdown or JSON, part by part, so that a long one needs no more memory than a short one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from operator_core.model.entry import Entry
from operator_core.text import clip, printable

__all__ = ["block", "entry_dict", "inline", "label", "transcript_head", "transcript_part", "whole"]

_LONG = ("reasoning", "tool_result", "error", "report", "note")


def entry_dict(entry: Entry) -> dict[str, Any]:
    """An entry with stable keys, JSON-ready."""
    return {
        "seq": entry.seq,
        "timestamp": entry.timestamp,
        "phase": entry.phase,
        "entry_type": entry.entry_type,
        "content": entry.content,
        "raw_content": entry.raw_content,
        "tool_name": entry.tool_name,
        "tool_params": entry.tool_params,
        "tool_use_id": entry.tool_use_id,
        "exit_code": entry.exit_code,
        "fence": entry.fence,
        "body": entry.body,
        "meta": entry.meta,
        "prev_hash": entry.prev_hash,
        "hash": entry.hash,
    }


def transcript_head(session_id: str, facts: Mapping[str, object]) -> Iterator[str]:
    """The first lines: which session, and what is known of it as a whole."""
    yield f"# Session {session_id}"
    yield ""
    for name, value in facts.items():
        if value is not None:
            yield f"- {name}: {inline(value)}"


def transcript_part(entry: Entry) -> Iterator[str]:
    """The lines of one entry; what agents and tools wrote is in indented blocks, which nothing in them can end."""
    name = label(entry)
    if name is None:
        return
    yield from ("", f"## {entry.seq}. {inline(name)} {entry.timestamp}", "", inline(entry.content))
    if entry.entry_type == "tool_call":
        yield from block(json.dumps(entry.tool_params, indent=2, ensure_ascii=False))
    elif entry.entry_type in _LONG:
        yield from block(whole(entry))


def label(entry: Entry) -> str | None:
    """What kind of entry it is; None: others say what it says."""
    match entry.entry_type:
        case "reasoning":
            by = (entry.meta or {}).get("by")
            return f"[{printable(by)}]" if isinstance(by, str) else "[Claude]"
        case "tool_call":
            return f"[Tool Call: {printable(entry.tool_name or '?')}]"
        case "tool_result" if entry.exit_code is not None:
            return f"[Result (exit {entry.exit_code})]"
        case "tool_result":
            return "[Result]"
        case "message":
            return None
        case "evidence" | "verdict":
            return "[Verify]"
    return f"[{printable(entry.entry_type).replace('_', ' ').capitalize()}]"


def whole(entry: Entry) -> str:
    """Its full text; of a result the output, not the JSON that it is stored as."""
    text = entry.raw_content
    if text is None:
        return "" if entry.body is None else json.dumps(entry.body, indent=2, ensure_ascii=False)
    if entry.entry_type != "tool_result":
        return text
    try:
        result = json.loads(text)
    except ValueError:
        return text
    if not isinstance(result, dict) or "stdout" not in result:
        return text
    return "\n".join(part.rstrip("\n") for part in (str(result["stdout"]), str(result.get("stderr") or "")) if part)


def block(text: str) -> list[str]:
    """The lines of an indented block."""
    return ["", *[f"    {line}" for line in printable(text).splitlines()]]


def inline(value: object) -> str:
    """A value in the running text, on one line, without markup."""
    flat = " ".join(printable(str(value)).split())
    return "".join("\\" + c if c in "\\`*_[]<>#|" else c for c in clip(flat, 600))
