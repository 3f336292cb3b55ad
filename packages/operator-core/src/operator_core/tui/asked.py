"""What a question about a call says, as lines: nothing of the call is left out, and nothing in it looks like ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from rich.cells import chop_cells

from operator_core.api.happened import said_since
from operator_core.api.models import ApprovalView, TicketBrief
from operator_core.api.telling import telling_labels
from operator_core.text import clip, exact
from operator_core.tui.lines import about, one_line
from operator_core.web.words import ago, moment

__all__ = ["COLUMNS", "asked_cells", "asked_lines", "asked_widths", "call_lines", "folded"]

COLUMNS = ("Ticket", "What", "Call", "Expires")
_WIDTHS = {"Ticket": 7, "Expires": 10}
_LABELS = 20
_MARK = "  │ "
_INDENT = " " * 9


def asked_widths(whole: int) -> dict[str, int]:
    """The columns for a terminal with so many characters in a line, and how wide each is."""
    free = max(40, whole - 3 - sum(_WIDTHS.values()) - 2 * len(COLUMNS))
    share = {"What": free * 45 // 100, "Call": free * 55 // 100}
    return {name: _WIDTHS.get(name) or share[name] for name in COLUMNS}


def asked_cells(asked: ApprovalView) -> dict[str, str]:
    """A row of the list: what stands in each of the :data:`COLUMNS`."""
    ticket = asked.ticket
    severe = "! " if ticket and ticket.severity == "critical" else ""
    what = about(ticket.kind, ticket.invariant_name, ticket.message) if ticket else asked.why
    call = " ⏎ ".join(line for line in call_lines(asked, named=False) if line.strip())
    return {
        "Ticket": f"#{asked.ticket_id}",
        "What": severe + one_line(what),
        "Call": clip(f"{one_line(asked.tool, 40)}: {call}", 300),
        "Expires": ago(asked.expires_at),
    }


def asked_lines(asked: ApprovalView) -> list[str]:
    """All that a person needs in order to decide."""
    lines = [f"May it use {one_line(asked.tool, 100)}?", f"why      {one_line(asked.why, 1000)}"]
    if asked.ticket is not None:
        lines += _about(asked.ticket, asked.ticket_id)
    return [
        *lines,
        "",
        *call_lines(asked),
        "",
        f"asked    {moment(asked.asked_at)}, in {one_line(asked.phase or 'the session', 40)}",
        f"expires  {moment(asked.expires_at)}",
        f"hash     {asked.arguments_hash}",
        "         Your word is for exactly this call, once.",
    ]


def folded(lines: Iterable[str], width: int) -> Iterator[str]:
    """These lines for so many characters in a line; what is left of one does not look like another of ours."""
    for line in lines:
        first, *rest = chop_cells(line, width) or [""]
        yield first
        mark = _MARK if line.startswith(_MARK) else _INDENT
        yield from (mark + part for part in chop_cells("".join(rest), width - len(mark)))


def call_lines(asked: ApprovalView, *, named: bool = True) -> list[str]:
    """The arguments of the call, whole.

    Args:
        named: Each with its name, and each of its lines with a mark, so that none can be taken for one of ours.
    """
    lines = []
    for name, value in asked.arguments.items():
        text = exact(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        parts = text.expandtabs(4).split("\n")
        if named:
            # An agent chooses the names too.
            lines += [f"{exact(clip(' '.join(name.split()), 60))}:", *(_MARK + part for part in parts)]
        else:
            lines += parts
    return lines or ["it has no arguments"]


def _about(ticket: TicketBrief, ticket_id: int) -> list[str]:
    kind = "task" if ticket.kind == "task" else one_line(ticket.severity, 20)
    lines = [f"ticket   #{ticket_id} ({kind}) {about(ticket.kind, ticket.invariant_name, ticket.message, 500)}"]
    if ticket.labels:
        told = telling_labels(ticket.labels, ticket.invariant_name, ticket.severity)
        named = [f"{one_line(name, 60)}={one_line(value, 80)}" for name, value in told]
        more = [f"and {len(named) - _LABELS} more"] if len(named) > _LABELS else []
        lines.append(f"labels   {', '.join([*named[:_LABELS], *more])}")
    if ticket.observed is not None:
        lines.append(f"since    {said_since(ticket.observed, one_line, 300)}")
    return lines
