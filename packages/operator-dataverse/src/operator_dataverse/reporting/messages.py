"""What people are told about a task while it runs: one line for each journal entry that is worth it (section 2.2.4).

What agents and tools say is hostile text; it is made printable here, and it is never more than text in a column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from operator_core.model.entry import Entry, EntryKind
from operator_core.text import clip, first_line, printable
from operator_dataverse.client import clip_units, units

__all__ = ["COLUMN", "SENDER", "Line", "Pack", "line_of", "message", "pack"]

SENDER = "Integrated Task Worker"
"""``cr_from`` of everything that a worker says (section 2.2.4)."""
COLUMN = 100_000
"""UTF-16 code units of ``cr_content`` in our schema."""

_NAME = 450
_TEXT, _CALL, _RESULT = 20_000, 500, 300
_ITERATION = re.compile(r"(worker|verifier)_(\d+)")


class Line(NamedTuple):
    """What is said about an entry.

    Attributes:
        text: At most 20 000 characters.
        progress: Whether it may be collected with others; else it is a message of its own, and at once.
    """

    text: str
    progress: bool = True


class Pack(NamedTuple):
    """Some lines as one text, and how many they are."""

    text: str
    lines: int


def line_of(entry: Entry, *, title: str, row_id: str, iterations: int) -> Line | None:
    """What is said about a journal entry; None: nothing.

    Args:
        entry: The entry.
        title: Name of the task.
        row_id: Id of its row.
        iterations: The most there will be.
    """
    said = _said(entry, title, row_id, iterations)
    if said is None or not said.text.strip():
        return None
    return Line(clip(printable(clip(said.text, _TEXT)).rstrip(), _TEXT), said.progress)


def message(text: str, *, user: str, row_id: str = "") -> dict[str, Any]:
    """The columns of a row of the messages table.

    Args:
        text: What is said.
        user: E-mail address of the person.
        row_id: Of the task; empty: it is about no task.
    """
    values = {
        "cr_name": clip_units(first_line(text, _NAME) or "(nothing)", _NAME),
        "cr_content": text,
        "cr_from": SENDER,
        "cr_to": user,
    }
    return values | ({"crb3b_taskid": row_id} if row_id else {})


def pack(lines: Sequence[str], room: int) -> list[Pack]:
    """Lines as texts of at most ``room`` UTF-16 code units each, in their order; none is left out."""
    packs: list[Pack] = []
    taken: list[str] = []
    used = 0
    for line in lines:
        kept = clip_units(line, room)
        size = units(kept) + 1
        if taken and used + size > room + 1:
            packs.append(Pack("\n".join(taken), len(taken)))
            taken, used = [], 0
        taken.append(kept)
        used += size
    return [*packs, Pack("\n".join(taken), len(taken))] if taken else packs


def _said(entry: Entry, title: str, row_id: str, iterations: int) -> Line | None:
    kind = entry.entry_type
    body = entry.body if isinstance(entry.body, dict) else {}
    whole = entry.raw_content or entry.content
    if kind == EntryKind.TASK:
        about = first_line(str(body.get("task_description", "")), _CALL)
        return Line(f"Task started: {title}\n{about}\nTask: {row_id}", progress=False)
    if kind == EntryKind.BASELINE:
        return Line(f"Starting Worker/Verifier loop\nProject: {body.get('folder', '')}", progress=False)
    if kind == EntryKind.VERDICT:
        return _verdict(entry, body, iterations)
    if kind == EntryKind.PHASE_START:
        phase = _ITERATION.fullmatch(entry.phase or "")
        return Line(f"[{phase[1].capitalize()}, iteration {phase[2]}]") if phase else None
    if kind == EntryKind.REASONING:
        return Line(whole)
    if kind == EntryKind.TOOL_CALL:
        command = (entry.tool_params or {}).get("command")
        what = command if isinstance(command, str) else entry.content.partition(": ")[2]
        return Line(f"[{entry.tool_name}] {clip(what, _CALL)}")
    if kind == EntryKind.TOOL_RESULT:
        return Line(f"[{entry.tool_name or 'tool'} result] {clip(entry.content, _RESULT)}")
    if kind == EntryKind.NOTE:
        return Line(f"{(entry.meta or {}).get('actor', 'somebody')} says: {whole}")
    if kind == EntryKind.ERROR:
        return Line(f"Error: {whole}")
    if kind == EntryKind.RESUMED:
        return Line("[The session goes on]")
    if kind in (EntryKind.EVIDENCE, EntryKind.DELIVERED, EntryKind.RETRY, EntryKind.EGRESS):
        return Line(entry.content)
    return None


def _verdict(entry: Entry, body: dict[str, Any], iterations: int) -> Line:
    phase = _ITERATION.fullmatch(entry.phase or "")
    number = int(phase[2]) if phase else 1
    why = entry.raw_content or str(body.get("why") or entry.content)
    match body.get("kind"):
        case "verified":
            return Line(f"Verified (iteration {number}). Creating summary of results...", progress=False)
        case "refuted" if number < iterations:
            return Line(f"Verification failed (iteration {number}). Retrying with feedback...\n{why}", progress=False)
        case kind:
            word = "failed" if kind == "refuted" else f"ended {kind}"
            return Line(f"Verification {word} (iteration {number}).\n{why}", progress=False)
