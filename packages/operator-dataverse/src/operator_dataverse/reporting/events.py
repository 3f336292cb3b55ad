"""What happened to a ticket since the last look, in its order: journal entries, and transitions of the ledger."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from operator_core.db.ledger import LedgerRow
from operator_core.model.entry import Entry
from operator_core.model.ticket import TicketStatus

__all__ = ["Event", "Move", "in_order", "moves_of"]


class Move(NamedTuple):
    """One transition of a ticket.

    Attributes:
        seq: Number of its ledger row.
        new: The state after it.
        old: The state before it; None: it was opened.
        reason: Why.
        at: ISO 8601 (UTC).
        fence: Of the claim that it ends; 0: it ends none.
        session_id: The session that it is about; None: none had begun.
    """

    seq: int
    new: TicketStatus
    old: TicketStatus | None
    reason: str
    at: str
    fence: int
    session_id: str | None


Event = Entry | Move


def moves_of(rows: Iterable[LedgerRow], after: int) -> list[Move]:
    """The transitions behind row ``after`` of the ledger."""
    moves = []
    for row in rows:
        if row.kind == "transition" and row.seq > after:
            body = row.body
            old = TicketStatus(body["old"]) if body.get("old") else None
            fence = int(body.get("fence") or 0)
            moves.append(
                Move(row.seq, TicketStatus(body["new"]), old, str(body["reason"]), row.at, fence, row.session_id)
            )
    return moves


def in_order(moves: list[Move], journals: Iterable[list[Entry]]) -> list[Event]:
    """All of it by time; what is in order in itself stays so, even where a clock was set back."""
    keyed = [_keyed(moves, 1), *(_keyed(entries, 0) for entries in journals)]
    return [event for _, _, _, event in heapq.merge(*keyed, key=lambda item: item[:3])]


def _keyed(events: Iterable[Event], rank: int) -> Iterator[tuple[str, int, int, Event]]:
    latest = ""
    for event in events:
        latest = max(latest, event.at if isinstance(event, Move) else event.timestamp)
        yield latest, rank, event.seq, event
