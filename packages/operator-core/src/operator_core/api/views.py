"""Rows of the store in the shapes of the API."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy.engine import Row

from operator_core import clock
from operator_core.api.models import EntryView, Needs, SessionView, Spent, TicketView
from operator_core.db.usage import Total
from operator_core.model.entry import too_deep
from operator_core.model.ticket import TicketKind, TicketStatus, plain_diagnosis
from operator_core.model.verdict import VerdictKind

__all__ = ["NEEDS_ME", "entry_view", "loaded", "needs_of", "one_line", "session_view", "spent_of", "ticket_view"]

NEEDS_ME = (TicketStatus.WAITING_FOR_INPUT.value, TicketStatus.ESCALATED.value)
"""States in which nothing goes on without a person."""

_NEEDS_APPROVAL = "needs_approval"
_LINE = 200
_KIND_IN_BODY = re.compile(r'\{"kind":"(\w+)"')


def needs_of(status: str, reason: str | None) -> Needs | None:
    """What a ticket in this state needs of a person."""
    if status == TicketStatus.WAITING_FOR_INPUT:
        return "approval" if reason == _NEEDS_APPROVAL else "answer"
    return "decision" if status == TicketStatus.ESCALATED else None


def one_line(text: str | None) -> str | None:
    """Any text as one short line; what is in it is as hostile as before."""
    line = " ".join((text or "").split())
    return (line if len(line) <= _LINE else line[: _LINE - 1] + "…") or None


def loaded(text: str | None) -> Any:
    """The value of a JSON column; of one that is none (somebody else wrote it), or is nested so deeply that an answer
    could not hold it, the text.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if too_deep(value) else value


def spent_of(total: Total | None) -> Spent:
    """A sum of the projection."""
    return Spent(**total._asdict()) if total else Spent()


def ticket_view(row: Row[Any], entries: Mapping[int, Row[Any]], asked: Mapping[int, str], total: Total | None) -> Any:
    """A ticket as it is listed.

    Args:
        row: Of :meth:`operator_core.db.board.Board.ticket_rows`.
        entries: The entries that the row names, by row id.
        asked: Why a call waits for a word, by ticket.
    """
    status = TicketStatus(row.status)
    needs = needs_of(row.status, row.reason)
    labels = loaded(row.labels)
    return TicketView(
        id=row.id,
        kind=TicketKind(row.kind),
        status=status,
        reason=row.reason,
        invariant_name=row.invariant_name,
        message=row.message,
        severity=row.severity,
        labels=labels if isinstance(labels, dict) else {},
        priority=row.priority,
        held=row.held,
        flapping=row.flapping,
        pinned_to=row.pinned_to,
        occurrence_count=row.occurrence_count,
        reopen_count=row.reopen_count,
        first_seen_at=clock.parse_iso(row.first_seen_at),
        last_seen_at=clock.parse_iso(row.last_seen_at),
        updated_at=_time(row.updated_at),
        resolved_at=_time(row.resolved_at),
        session_id=row.session_id,
        cancel_requested=row.cancel_requested,
        needs=needs,
        worker=row.worker,
        phase=row.phase,
        doing=_doing(row, needs, entries, asked),
        spent=spent_of(total),
        verdict=_verdict(entries.get(row.verdict)),
    )


def _doing(row: Row[Any], needs: Needs | None, entries: Mapping[int, Row[Any]], asked: Mapping[int, str]) -> str | None:
    if row.status == TicketStatus.RUNNING:
        return _command(entries.get(row.call))
    if needs == "approval":
        return one_line(asked.get(row.id)) or "A call waits for a person's word."
    if needs == "answer":
        outcome = entries.get(row.outcome)
        return one_line(outcome.raw_content or outcome.content) if outcome is not None else None
    return one_line(plain_diagnosis(row.diagnosis))


def _command(call: Row[Any] | None) -> str | None:
    if call is None:
        return None
    params = loaded(call.tool_params)
    command = params.get("command") if isinstance(params, dict) else None
    return one_line(command if isinstance(command, str) else call.content)


def _verdict(entry: Row[Any] | None) -> str | None:
    """The kind of a verdict from the beginning of its body, which the chain covers, unlike its summary."""
    match = _KIND_IN_BODY.match(entry.body or "") if entry is not None else None
    return match[1] if match and match[1] in list(VerdictKind) else None


def session_view(row: Row[Any], total: Total | None, judges: str | None = None) -> SessionView:
    """A session as it is listed; the row is one of :class:`operator_core.db.board.Board`."""
    return SessionView(**session_fields(row, total, judges))


def session_fields(row: Row[Any], total: Total | None, judges: str | None = None) -> dict[str, Any]:
    """The fields of a :class:`SessionView`."""
    return {
        "session_id": row.session_id,
        "ticket_id": row.ticket_id,
        "invariant_name": row.invariant_name,
        "kind": row.kind,
        "status": row.status,
        "started_at": clock.parse_iso(row.started_at),
        "ended_at": _time(row.ended_at),
        "outcome_summary": row.outcome_summary,
        "entries": row.head_seq + 1,
        "spent": spent_of(total),
        "judges": judges,
    }


def entry_view(row: Row[Any], params: str | None, max_chars: int) -> EntryView:
    """One entry, with texts of at most ``max_chars`` characters.

    Args:
        row: Of :meth:`operator_core.db.journal_reading.JournalReading.entries`.
        params: Its arguments, when they are too long to be in the row.
    """
    arguments = loaded(row.tool_params if params is None else params)
    if isinstance(arguments, str):
        arguments = {"input": arguments}
    left_out = 0
    if params is not None:
        arguments, left_out = _cut(arguments, max_chars)
    return EntryView(
        seq=row.seq,
        timestamp=clock.parse_iso(row.timestamp),
        phase=row.phase,
        entry_type=row.entry_type,
        content=row.content,
        raw_content=row.raw_content,
        cut=max(0, (row.raw_chars or 0) - max_chars) + left_out,
        tool_name=row.tool_name,
        tool_params=arguments if isinstance(arguments, dict) else None,
        tool_use_id=row.tool_use_id,
        exit_code=row.exit_code,
        fence=row.fence,
        body=loaded(row.body),
        meta=cast("dict[str, Any] | None", loaded(row.meta)),
        prev_hash=row.prev_hash,
        hash=row.hash,
    )


def _cut(value: Any, room: int) -> tuple[Any, int]:
    """The value with all texts in it cut so that together they fit, and how many characters that took."""
    left, out = room, 0

    def shorten(part: Any) -> Any:
        nonlocal left, out
        if isinstance(part, str):
            kept = part[:left]
            left -= len(kept)
            out += len(part) - len(kept)
            return kept
        if isinstance(part, dict):
            return {key: shorten(inner) for key, inner in part.items()}
        if isinstance(part, list):
            return [shorten(inner) for inner in part]
        return part

    return shorten(value), out


def _time(text: str | None) -> datetime | None:
    return clock.parse_iso(text) if text else None


def ids_in(rows: Sequence[Row[Any]], *columns: str) -> list[int]:
    """The row ids of entries that these rows name."""
    return [value for row in rows for column in columns if (value := getattr(row, column)) is not None]
