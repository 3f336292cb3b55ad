"""What the screens say, as plain lines: nothing in a text of agents, tools or alerts is markup or a terminal escape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from operator_core.api.models import Board, EntryView, SessionDetail, Spent, TicketDetail, TicketView
from operator_core.model.ticket import TicketStatus
from operator_core.text import clip, printable
from operator_core.web.steps import output_of
from operator_core.web.words import ago, grouped, money

__all__ = [
    "COLUMNS",
    "Line",
    "board_line",
    "entry_lines",
    "one_line",
    "state_of",
    "tail_lines",
    "ticket_cells",
    "ticket_facts",
    "widths",
]

COLUMNS = ("State", "Ticket", "What", "Doing", "Worker", "Changed", "Cost")
_WIDTHS = {"State": 21, "Ticket": 7, "Worker": 14, "Changed": 11, "Cost": 9}
_NEED = {"Doing": 110, "Cost": 120, "Worker": 135}
"""Columns that are left out on a terminal with fewer characters in a line."""

_SIGNS = {
    TicketStatus.OPEN: ("○", "open"),
    TicketStatus.QUEUED: ("○", "queued"),
    TicketStatus.RUNNING: ("●", "running"),
    TicketStatus.WAITING_FOR_INPUT: ("■", "waiting"),
    TicketStatus.RESOLVED: ("✓", "resolved"),
    TicketStatus.ESCALATED: ("◆", "escalated"),
    TicketStatus.CANCELED: ("–", "canceled"),
}
_NEEDS = {"answer": "answer it: ", "approval": "allow or deny: ", "decision": "decide: "}
_READ = 20_000
"""So many characters of a text are looked at; all of them are in the console."""
_SHOWN = 24
_WIDE = 400


class Line(NamedTuple):
    """One line; the style only repeats what the text says.

    Attributes:
        kind: ``say``, ``call``, ``good``, ``bad``, ``output``, ``mark`` or ``judge``.
    """

    text: str
    kind: str


def widths(whole: int) -> dict[str, int]:
    """The columns for a terminal with so many characters in a line, and how wide each is."""
    shown = [name for name in COLUMNS if whole >= _NEED.get(name, 0)]
    # Each has a blank on both sides, and the scroll bar stands at the end.
    rest = whole - 3 - sum(_WIDTHS.get(name, 0) + 2 for name in shown)
    free = max(20, rest)
    share = {"What": free * 55 // 100, "Doing": free * 45 // 100} if "Doing" in shown else {"What": free}
    return {name: _WIDTHS.get(name) or share[name] for name in shown}


def one_line(text: str, length: int = 200) -> str:
    """A text on one line; a line break in it is shown."""
    lines = [line.strip() for line in printable(text[:_READ]).replace("\t", " ").splitlines() if line.strip()]
    return clip(" ⏎ ".join(lines), length)


def state_of(ticket: TicketView) -> str:
    """A sign and a word."""
    sign, word = _SIGNS[ticket.status]
    if ticket.status is TicketStatus.RESOLVED and ticket.reason != "verified":
        word = "resolved, not proved"
    if ticket.cancel_requested and ticket.status is TicketStatus.RUNNING:
        word = "canceling"
    return f"{sign} {word}{', held' if ticket.held else ''}"


def board_line(board: Board) -> str:
    """The counts."""
    counts = board.counts
    waits = counts.get("open", 0) + counts.get("queued", 0)
    parts = [
        f"{grouped(board.needs_me)} need you",
        f"{grouped(counts.get('running', 0))} running",
        f"{grouped(waits)} open",
        f"{grouped(counts.get('resolved', 0))} resolved",
        _many(board.workers, "worker"),
    ]
    parts += [f"{board.red} red"] if board.red else []
    parts += [f"{board.unknown} unknown"] if board.unknown else []
    return " · ".join([*parts, f"{_cost(board.spent_today)} today"])


def ticket_cells(ticket: TicketView) -> dict[str, str]:
    """A row of the board: what stands in each of the :data:`COLUMNS`."""
    doing = _NEEDS.get(ticket.needs or "", "") + (ticket.doing or ticket.reason or "")
    severe = "! " if ticket.severity == "critical" else ""
    worker = ticket.worker or (f"for {ticket.pinned_to}" if ticket.pinned_to else "")
    return {
        "State": state_of(ticket),
        "Ticket": f"#{ticket.id}",
        "What": severe + one_line(f"{ticket.invariant_name}: {ticket.message}", 200),
        "Doing": one_line(doing, 200),
        "Worker": one_line(worker, 40),
        "Changed": ago(ticket.updated_at or ticket.last_seen_at),
        "Cost": _cost(ticket.spent),
    }


def ticket_facts(ticket: TicketDetail, session: SessionDetail | None) -> list[str]:
    """What stands above the journal."""
    head = f"#{ticket.id} {state_of(ticket)}"
    if ticket.reason:
        head += f" ({ticket.reason})"
    lines = [
        f"{head} · {ticket.severity} · {one_line(ticket.invariant_name, 80)}",
        one_line(ticket.message, 300),
    ]
    if ticket.question and ticket.needs == "answer":
        lines.append(f"? {one_line(ticket.question, 500)}")
    elif ticket.needs == "approval":
        asked = next((a for a in ticket.approvals if a.state == "pending"), None)
        if asked is not None:
            lines.append(f"? {one_line(f'{asked.tool}: {asked.why}', 300)} (`operator approvals show {asked.id[:8]}`)")
    if ticket.verdicts:
        newest = ticket.verdicts[0]
        lines.append(f"verdict: {newest.kind}: {one_line(newest.why, 200)}")
    if session is not None:
        lines.append(_session_line(session))
    return lines


def entry_lines(entry: EntryView) -> Iterator[Line]:
    """An entry; what others say already gives no line."""
    if entry.entry_type in ("message", "usage"):
        return
    at = f"{entry.timestamp:%H:%M:%S}"
    match entry.entry_type:
        case "reasoning":
            first, *rest = _lines(entry.raw_content or entry.content)
            yield Line(f"{at} » {first}", "say")
            yield from (Line(f"           {line}", "say") for line in rest)
        case "tool_call":
            params = entry.tool_params or {}
            what = str(params.get("command") or (json.dumps(params, ensure_ascii=False) if params else entry.content))
            name = "" if entry.tool_name == "shell" else f"{one_line(entry.tool_name or '?', 60)} "
            yield Line(f"{at} $ {name}{one_line(what, _WIDE)}", "call")
        case "tool_result":
            failed = bool(entry.exit_code)
            code = "done" if entry.exit_code is None else f"exit {entry.exit_code}"
            yield Line(f"{at} {'✗' if failed else '✓'} {code}", "bad" if failed else "good")
            output = output_of(entry)
            yield from (Line(f"         | {line}", "output") for line in _lines(output.text, end=True) if line)
            yield from (Line(f"         ! {line}", "output") for line in _lines(output.error, end=True) if line)
        case "verdict" | "evidence":
            yield Line(f"{at} § {entry.entry_type}: {one_line(entry.content, _WIDE)}", "judge")
        case "error":
            yield Line(f"{at} ✗ error: {one_line(entry.content, _WIDE)}", "bad")
        case kind:
            yield Line(f"{at} · {one_line(kind.replace('_', ' '), 40)}: {one_line(entry.content, _WIDE)}", "mark")


def tail_lines(text: str, most: int) -> list[str]:
    """The last lines that a running command printed."""
    # A line that was written over and over shows its last version.
    lines = [line.rsplit("\r", 1)[-1] for line in text[-_READ:].replace("\r\n", "\n").rstrip().split("\n")]
    return [clip(printable(line).replace("\t", "    "), _WIDE) for line in lines[-most:]]


def _session_line(session: SessionDetail) -> str:
    running = next((p for p in reversed(session.phases) if p.get("state") == "running"), None)
    parts = [f"session {one_line(session.session_id, 40)}", one_line(session.status, 20)]
    parts += [one_line(str(running["phase"]), 30)] if running and running.get("phase") else []
    parts += [_many(session.turns, "turn"), _many(session.commands, "call"), _cost(session.spent)]
    if session.context_tokens and session.context_limit:
        parts.append(f"context {100 * session.context_tokens // session.context_limit} %")
    if session.sandbox:
        backend, level = str(session.sandbox.get("backend", "?")), str(session.sandbox.get("level", "?"))
        parts.append(f"sandbox {one_line(backend, 20)}, {one_line(level, 20)}")
    return " · ".join(parts)


def _lines(text: str, *, end: bool = False) -> list[str]:
    """At most so many lines: of outputs the last ones, because what went wrong stands there."""
    part = text[-_READ:] if end else text[:_READ]
    lines = [clip(line.replace("\t", "    "), _WIDE) for line in printable(part).rstrip().split("\n")]
    left_out = len(lines) - _SHOWN
    if left_out <= 0:
        return lines
    said = f"… {grouped(left_out)} more lines"
    return [said, *lines[-_SHOWN:]] if end else [*lines[:_SHOWN], said]


def _many(count: int, what: str) -> str:
    return f"{grouped(count)} {what}{'' if count == 1 else 's'}"


def _cost(spent: Spent) -> str:
    if not spent.calls and not spent.cost_usd:
        return "–"
    return f"{'≥ ' if spent.unpriced else ''}{money(spent.cost_usd)}"
