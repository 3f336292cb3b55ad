"""A session's journal as lines for people (A-064 and the seeds' ``audit show``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from operator_core.cli.output import seconds
from operator_core.text import clip, printable

if TYPE_CHECKING:
    from operator_core.db.audit_log import SessionInfo
    from operator_core.model.entry import Entry

__all__ = ["entry_dict", "entry_lines", "header", "transcript"]

_SHOWN = 4000


def header(session: SessionInfo) -> dict[str, object]:
    """Name and value of what is known of the session as a whole."""
    about = f"#{session.ticket_id} {session.invariant_name or ''}".strip() if session.ticket_id is not None else None
    return {
        "session": session.session_id,
        "ticket": about,
        "state": session.status,
        "started": seconds(session.started_at),
        "ended": seconds(session.ended_at),
        "entries": session.entries,
        "outcome": session.outcome_summary,
    }


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


def entry_lines(entry: Entry, *, full: bool = False) -> Iterator[str]:
    """The lines of one entry; none for what other entries say already.

    Args:
        full: Also the whole text, not only its summary.
    """
    label = _label(entry)
    if label is None and not full:
        return
    at = entry.timestamp[11:19]
    what = entry.content
    if entry.entry_type == "tool_call" and entry.tool_params:
        what = str(entry.tool_params.get("command") or entry.content.partition(": ")[2])
        # One line each: a line break is shown, because a blank would change what the command says.
        lines = [line.strip() for line in printable(what).splitlines() if line.strip()]
        what = what if full else clip(" ⏎ ".join(lines), 160)
    yield f"{at} {label or f'[{entry.entry_type}]'} {printable(what)}".rstrip()
    if entry.entry_type == "sandbox_report" and isinstance(entry.body, dict):
        yield from _sandbox_lines(entry.body, full=full)
    if entry.entry_type == "tool_call" and (entry.tool_params or {}).get("reasoning"):
        yield f"         because: {printable(str((entry.tool_params or {})['reasoning']))}"
    if full and entry.entry_type in ("reasoning", "tool_result", "message", "error", "evidence", "report"):
        for line in printable(clip(_whole(entry), _SHOWN)).splitlines():
            yield f"         | {line}"


def _sandbox_lines(report: dict[str, Any], *, full: bool) -> Iterator[str]:
    """What holds: all controls, or only the names of those that do not hold as a whole."""
    controls: dict[str, dict[str, str]] = report.get("controls", {})
    if full:
        width = max(map(len, controls), default=0)
        for name, control in controls.items():
            yield f"         {name:<{width}}  {control['state'].replace('_', ' ')}: {printable(control['how'])}"
    else:
        weak = [f"{name} ({c['state'].replace('_', ' ')})" for name, c in controls.items() if c["state"] != "verified"]
        if weak:
            yield f"         not verified: {', '.join(weak)}"


def transcript(session: SessionInfo, entries: list[Entry]) -> str:
    """The session as Markdown; what agents and tools wrote is in indented blocks, which nothing in them can end."""
    lines = [f"# Session {session.session_id}", ""]
    lines += [f"- {name}: {_inline(value)}" for name, value in header(session).items() if value is not None]
    for entry in entries:
        label = _label(entry)
        if label is None:
            continue
        lines += ["", f"## {entry.seq}. {_inline(label)} {entry.timestamp}", "", _inline(entry.content)]
        if entry.entry_type == "tool_call":
            lines += _block(json.dumps(entry.tool_params, indent=2, ensure_ascii=False))
        elif entry.entry_type in ("reasoning", "tool_result", "error", "report", "note"):
            lines += _block(_whole(entry))
    return "\n".join(lines) + "\n"


def _label(entry: Entry) -> str | None:
    match entry.entry_type:
        case "reasoning":
            return "[Claude]"
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


def _whole(entry: Entry) -> str:
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


def _block(text: str) -> list[str]:
    return ["", *[f"    {line}" for line in printable(text).splitlines()]]


def _inline(value: object) -> str:
    flat = " ".join(printable(str(value)).split())
    return "".join("\\" + c if c in "\\`*_[]<>#|" else c for c in clip(flat, 600))
