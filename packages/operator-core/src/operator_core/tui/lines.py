"""What the screens say, as plain lines: nothing in a text of agents, tools or alerts is markup or a terminal escape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from operator_core.api.happened import said_since
from operator_core.api.models import Board, EntryView, SessionDetail, Spent, TicketDetail, TicketView
from operator_core.model.ticket import TicketKind, TicketStatus
from operator_core.text import clip, exact, printable
from operator_core.web.steps import output_of
from operator_core.web.words import ago, grouped, money

__all__ = [
    "COLUMNS",
    "SIGNS",
    "Line",
    "about",
    "board_line",
    "entry_lines",
    "one_line",
    "state_of",
    "style_of",
    "tail_lines",
    "ticket_cells",
    "ticket_facts",
    "widths",
]

COLUMNS = ("State", "Ticket", "What", "Doing", "Worker", "Changed", "Cost")
_WIDTHS = {"State": 22, "Ticket": 7, "Worker": 14, "Changed": 11, "Cost": 9}
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
SIGNS = tuple(_SIGNS.values())
"""Each state's sign and word."""
_WAITS_FOR = {"answer": "waiting: answer", "approval": "waiting: approval"}
_NEEDS = {"answer": "answer it: ", "approval": "allow or deny: ", "decision": "decide: "}
_SAYS_NOTHING = {"opened", "submitted", "violation", "claimed", "verified"}
"""Reasons that the state says already."""
# Yellow and blue, which nobody takes for each other; the sign and the word say it without any colour.
_STYLES = {
    TicketStatus.WAITING_FOR_INPUT: "bold #f0e442",
    TicketStatus.ESCALATED: "bold #e69f00",
    TicketStatus.RUNNING: "#56b4e9",
}
_READ = 20_000
"""So many characters of a text are looked at; all of them are in the console."""
_SHOWN = 24
_WIDE = 400
_NO_COST = "–"


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
    lines = [line.strip() for line in _plain(text[:_READ]).replace("\t", " ").splitlines() if line.strip()]
    return clip(" ⏎ ".join(lines), length)


def state_of(ticket: TicketView) -> str:
    """A sign and a word."""
    sign, word = _SIGNS[ticket.status]
    if ticket.status is TicketStatus.WAITING_FOR_INPUT:
        word = _WAITS_FOR.get(ticket.needs or "", word)
    if ticket.status is TicketStatus.RESOLVED and ticket.reason != "verified":
        word = "resolved, not proved"
    if ticket.cancel_requested and ticket.status is TicketStatus.RUNNING:
        word = "canceling"
    return f"{sign} {word}{', held' if ticket.held else ''}"


def style_of(ticket: TicketView) -> str:
    """How its state is drawn; empty: as any other text."""
    return _STYLES.get(ticket.status, "")


def about(kind: TicketKind, name: str, message: str, length: int = 200) -> str:
    """Name and message on one line; what many a task is called is how its prompt begins, and not said twice."""
    short, long = one_line(name, length), one_line(message, length)
    return long if _doubled(kind, short, long) else clip(f"{short}: {long}", length)


def board_line(board: Board) -> str:
    """The counts."""
    counts = board.counts
    waits = counts.get("open", 0) + counts.get("queued", 0)
    parts = [
        f"{grouped(board.needs_me)} need you" + (f" ({_many(board.approvals, 'approval')})" if board.approvals else ""),
        f"{grouped(counts.get('running', 0))} running",
        f"{grouped(waits)} open",
        f"{grouped(counts.get('resolved', 0))} resolved",
        _many(board.workers, "worker"),
    ]
    parts += [f"{board.red} red"] if board.red else []
    parts += [f"{board.unknown} unknown"] if board.unknown else []
    parts += [f"{cost} today"] if (cost := _cost(board.spent_today)) != _NO_COST else []
    return " · ".join(parts)


def ticket_cells(ticket: TicketView) -> dict[str, str]:
    """A row of the board: what stands in each of the :data:`COLUMNS`."""
    doing = _NEEDS.get(ticket.needs or "", "") + (ticket.doing or _reason(ticket))
    severe = "! " if ticket.severity == "critical" else ""
    worker = ticket.worker or (f"for {ticket.pinned_to}" if ticket.pinned_to else "")
    return {
        "State": state_of(ticket),
        "Ticket": f"#{ticket.id}",
        "What": severe + about(ticket.kind, ticket.invariant_name, ticket.message),
        "Doing": one_line(doing, 200),
        "Worker": one_line(worker, 40),
        "Changed": ago(ticket.updated_at or ticket.last_seen_at),
        "Cost": _cost(ticket.spent),
    }


def ticket_facts(ticket: TicketDetail, session: SessionDetail | None, *, width: int = 160) -> list[str]:
    """What stands above the journal.

    Args:
        width: Of the terminal, in characters: no text of others takes more than two lines of it.
    """
    two = max(80, 2 * width - 10)
    head = f"#{ticket.id} {state_of(ticket)}"
    if reason := _reason(ticket):
        head += f" ({reason})"
    head += f" · {'task' if ticket.kind is TicketKind.TASK else one_line(ticket.severity, 20)}"
    name, message = one_line(ticket.invariant_name, 80), one_line(ticket.message, two)
    if not _doubled(ticket.kind, name, message):
        head += f" · {clip(name, max(20, width - len(head) - 3))}"
    lines = [head, message]
    if ticket.observed is not None:
        lines.append(f"since: {said_since(ticket.observed, one_line, two // 2)}")
    if ticket.stalled:
        lines.append(f"! {ticket.stalled}")
    if ticket.question and ticket.needs == "answer":
        lines.append(f"? {one_line(ticket.question, 2 * two)}  (r answers)")
    elif ticket.needs == "approval":
        asked = next((a for a in ticket.approvals if a.state == "pending"), None)
        if asked is not None:
            lines.append(f"? may it use {one_line(asked.tool, 60)}? {one_line(asked.why, two)}  (a shows the call)")
    if ticket.verdicts:
        newest = ticket.verdicts[0]
        lines.append(f"verdict: {newest.kind}: {one_line(newest.why, two)}")
    if session is not None:
        lines.append(_session_line(session, waits=ticket.status is TicketStatus.WAITING_FOR_INPUT))
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
    return [clip(_plain(line).replace("\t", "    "), _WIDE) for line in lines[-most:]]


def _doubled(kind: TicketKind, name: str, message: str) -> bool:
    return name == message or (kind is TicketKind.TASK and message.startswith(name.removesuffix("…")))


def _reason(ticket: TicketView) -> str:
    """Why it is in its state, where that is not said by the state itself."""
    if ticket.status is TicketStatus.WAITING_FOR_INPUT or (ticket.reason or "") in _SAYS_NOTHING:
        return ""
    return one_line((ticket.reason or "").replace("_", " "), 60)


def _session_line(session: SessionDetail, *, waits: bool) -> str:
    running = next((p for p in reversed(session.phases) if p.get("state") == "running"), None)
    # A session that rests is open, but nobody works in it, and nothing is paid for it.
    state = "rests" if waits and session.ended_at is None else one_line(session.status, 20)
    parts = [f"session {one_line(session.session_id, 40)}", state]
    parts += ["judges the work again"] if session.judges else []
    parts += [one_line(str(running["phase"]), 30)] if running and running.get("phase") else []
    parts += [_many(session.turns, "turn"), _many(session.commands, "call")]
    parts += [cost] if (cost := _cost(session.spent)) != _NO_COST else []
    if session.context_tokens and session.context_limit:
        parts.append(f"context {100 * session.context_tokens // session.context_limit} %")
    if session.sandbox:
        backend, level = str(session.sandbox.get("backend", "?")), str(session.sandbox.get("level", "?"))
        parts.append(f"sandbox {one_line(backend, 20)}, {one_line(level, 20)}")
    return " · ".join(parts)


def _lines(text: str, *, end: bool = False) -> list[str]:
    """At most so many lines: of outputs the last ones, because what went wrong stands there."""
    part = text[-_READ:] if end else text[:_READ]
    lines = [clip(line.replace("\t", "    "), _WIDE) for line in _plain(part).rstrip().split("\n")]
    left_out = len(lines) - _SHOWN
    if left_out <= 0:
        return lines
    said = f"… {grouped(left_out)} more lines"
    return [said, *lines[-_SHOWN:]] if end else [*lines[:_SHOWN], said]


def _plain(text: str) -> str:
    """Without terminal escapes, and with the codes of characters that a terminal would not show."""
    return exact(printable(text))


def _many(count: int, what: str) -> str:
    return f"{grouped(count)} {what}{'' if count == 1 else 's'}"


def _cost(spent: Spent) -> str:
    if not spent.calls and not spent.cost_usd:
        return _NO_COST
    return f"{'≥ ' if spent.unpriced else ''}{money(spent.cost_usd)}"
