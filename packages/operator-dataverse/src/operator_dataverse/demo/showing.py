"""What people see of the demo: each change as a line, a row as a table, a card as a box."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from operator_core.text import clip
from operator_dataverse.double.history import Effect
from operator_dataverse.tables import MESSAGES, TASKS
from operator_dataverse.tables.task import TaskCode
from operator_dataverse.teams.plain import card_text

__all__ = ["card_box", "change_line", "row_lines"]

_WIDTH = 78
_SHOWN = (
    "cr_name",
    "cr_status",
    "cr_statusmessage",
    "cr_result",
    "cr_transcript",
    "crb3b_devbox",
    "crb3b_workingdir",
    "crb3b_sessionsummary",
)


def change_line(effect: Effect) -> str:
    """One change of a row, in a line; empty when it is not worth one."""
    if effect.table == MESSAGES and effect.kind == "created":
        who = str(effect.new.get("cr_from"))
        return f"message from {who}: {_one_line(effect.new.get('cr_content'), 160)}"
    if effect.table != TASKS:
        return ""
    if effect.kind == "created":
        return f"task row {effect.row_id[:8]} appears: {_one_line(effect.new.get('cr_prompt'), 160)}"
    if "cr_status" in effect.new:
        before, after = _status(effect.old.get("cr_status")), _status(effect.new["cr_status"])
        line = f"task row {effect.row_id[:8]}: {before} -> {after}"
        said = effect.new.get("cr_statusmessage")
        return f"{line} ({_one_line(said, 120)})" if said else line
    written = [name for name in effect.new if name not in ("crb3b_heartbeat", "cr_statusmessage")]
    return f"task row {effect.row_id[:8]}: {', '.join(written)} written" if written else ""


def row_lines(row: Mapping[str, Any]) -> list[str]:
    """The columns of a task row that tell how it ended."""
    lines = []
    for name in _SHOWN:
        value = row.get(name)
        if value is None:
            continue
        text = _status(value) if name == "cr_status" else str(value)
        if name in ("cr_transcript", "cr_sessionsummary", "crb3b_sessionsummary"):
            text = f"{clip(_one_line(text, 100), 100)} ({len(text)} characters)"
        first, *rest = text.strip().splitlines() or [""]
        lines.append(f"  {name:<21} {clip(first, 110)}")
        lines += [f"  {'':<21} {clip(line, 110)}" for line in rest]
    return lines


def card_box(card: Mapping[str, Any]) -> list[str]:
    """A card, as it could look."""
    inside = list(_wrapped(card_text(card)))
    rule = "+" + "-" * (_WIDTH - 2) + "+"
    return [rule, *(f"| {line:<{_WIDTH - 4}} |" for line in inside), rule]


def _wrapped(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(line, _WIDTH - 4) or [""]


def _status(code: Any) -> str:
    try:
        return f"{int(code)} {TaskCode(int(code)).name.replace('_', ' ').capitalize()}"
    except (TypeError, ValueError):
        return str(code)


def _one_line(text: Any, most: int) -> str:
    return clip(" ".join(str(text or "").split()), most)
