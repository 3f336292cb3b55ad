"""A session's journal as lines for people (A-064 and the seeds' ``audit show``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from operator_core.cli.output import seconds
from operator_core.text import clip, printable
from operator_core.work.transcript import entry_dict, label, transcript_head, transcript_part, whole

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


def entry_lines(entry: Entry, *, full: bool = False) -> Iterator[str]:
    """The lines of one entry; none for what other entries say already.

    Args:
        full: Also the whole text, not only its summary.
    """
    name = label(entry)
    if name is None and not full:
        return
    at = entry.timestamp[11:19]
    what = entry.content
    if entry.entry_type == "tool_call" and entry.tool_params:
        what = str(entry.tool_params.get("command") or entry.content.partition(": ")[2])
        # One line each: a line break is shown, because a blank would change what the command says.
        lines = [line.strip() for line in printable(what).splitlines() if line.strip()]
        what = what if full else clip(" ⏎ ".join(lines), 160)
    yield f"{at} {name or f'[{entry.entry_type}]'} {printable(what)}".rstrip()
    if entry.entry_type == "sandbox_report" and isinstance(entry.body, dict):
        yield from _sandbox_lines(entry.body, full=full)
    if entry.entry_type == "tool_call" and (entry.tool_params or {}).get("reasoning"):
        yield f"         because: {printable(str((entry.tool_params or {})['reasoning']))}"
    if full and entry.entry_type in ("reasoning", "tool_result", "message", "error", "evidence", "report"):
        for line in printable(clip(whole(entry), _SHOWN)).splitlines():
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
    """The session as Markdown."""
    lines = [*transcript_head(session.session_id, header(session))]
    for entry in entries:
        lines += transcript_part(entry)
    return "\n".join(lines) + "\n"
