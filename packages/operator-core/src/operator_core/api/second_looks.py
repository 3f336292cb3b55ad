"""What people asked about finished work, as it is shown."""

from __future__ import annotations

from operator_core.api.listing import read_workers
from operator_core.api.models import SecondLookView
from operator_core.api.staffing import nobody_for
from operator_core.db.engine import Database
from operator_core.db.second_looks import SecondLooks
from operator_core.model.second_look import SecondLook
from operator_core.model.ticket import Ticket, TicketStatus
from operator_core.model.verdict import VerdictKind

__all__ = ["read_second_looks"]


async def read_second_looks(database: Database, ticket: Ticket) -> list[SecondLookView]:
    """The requests to judge a ticket's work again, newest first."""
    if ticket.id is None:
        return []
    found = await SecondLooks(database).of_ticket(ticket.id)
    stalled = None
    if any(look.ended_at is None for look in found):
        stalled = await _stalled(database, ticket, found[0])
    return [_view(look, ticket, stalled if look.ended_at is None else None) for look in found]


async def _stalled(database: Database, ticket: Ticket, look: SecondLook) -> str | None:
    workers = await read_workers(database)
    if look.owner is not None and any(worker.alive and worker.id == look.owner for worker in workers):
        return None
    nobody = nobody_for(workers, ticket.pinned_to)
    if nobody is None or look.owner is None:
        return nobody
    return f"The worker that was at it is gone. {nobody}"


def _view(look: SecondLook, ticket: Ticket, stalled: str | None) -> SecondLookView:
    disagrees = look.verdict not in (None, VerdictKind.VERIFIED.value) and ticket.status is TicketStatus.RESOLVED
    return SecondLookView(
        id=look.id,
        state=look.state,
        checks_only=look.checks_only,
        asked_by=look.asked_by,
        asked_at=look.asked_at,
        stalled=stalled,
        lost=look.lost,
        session_id=look.session_id,
        begun_at=look.begun_at,
        ended_at=look.ended_at,
        verdict=look.verdict,
        why=look.why,
        unchanged=look.unchanged,
        disagrees=disagrees,
    )
