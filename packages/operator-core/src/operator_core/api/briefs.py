"""What tickets are about, in short, and what was said about them since: for whoever has to decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, bindparam, func, select
from sqlalchemy.engine import Row

from operator_core import clock
from operator_core.api.models import Observed, TicketBrief
from operator_core.api.views import loaded
from operator_core.db.engine import Database
from operator_core.db.ledger import body_of
from operator_core.db.schema import ledger, tickets
from operator_core.model.ticket import TERMINAL, TicketKind, TicketStatus

__all__ = ["observed_of", "read_briefs", "read_observed"]

_MESSAGE = 500
_SAID = "observation"
_ids: BindParameter[int] = bindparam("ids", expanding=True)
_BRIEF = select(
    tickets.c.id,
    tickets.c.kind,
    tickets.c.status,
    tickets.c.invariant_name,
    func.substr(tickets.c.message, 1, _MESSAGE).label("message"),
    tickets.c.severity,
    tickets.c.labels,
    tickets.c.last_seen_at,
).where(tickets.c.id.in_(_ids))
_NEWEST = select(func.max(ledger.c.seq)).where(ledger.c.ticket_id.in_(_ids), ledger.c.kind == _SAID)
_OBSERVED = select(ledger).where(ledger.c.seq.in_(_NEWEST.group_by(ledger.c.ticket_id).scalar_subquery()))


async def read_briefs(database: Database, ids: Collection[int]) -> dict[int, TicketBrief]:
    """These tickets in short, by number, with two statements however many there are."""
    if not ids:
        return {}
    wanted = sorted(set(ids))
    rows = await database.fetch(_BRIEF, ids=wanted)
    said = await _said(database, wanted)
    return {row.id: _brief(row, said.get(row.id)) for row in rows}


async def read_observed(
    database: Database, ticket_id: int, status: TicketStatus, last_seen_at: datetime
) -> Observed | None:
    """What was said last about one ticket; see :func:`observed_of`."""
    return observed_of((await _said(database, [ticket_id])).get(ticket_id), status, last_seen_at)


def observed_of(row: Row[Any] | None, status: TicketStatus, last_seen_at: datetime) -> Observed | None:
    """What a row of the ledger says; None: nothing, the incident was seen again since, or the ticket is closed."""
    if row is None or status in TERMINAL:
        return None
    at, body = clock.parse_iso(row.at), body_of(row)
    said, detail = body.get("saw"), body.get("detail")
    if at < last_seen_at or not isinstance(said, str) or not said:
        return None
    by = body.get("actor")
    return Observed(
        said=said,
        by=None if by is None else str(by),
        at=at,
        detail=detail if isinstance(detail, dict) else {},
    )


async def _said(database: Database, ids: Collection[int]) -> Mapping[int, Row[Any]]:
    return {row.ticket_id: row for row in await database.fetch(_OBSERVED, ids=list(ids))}


def _brief(row: Row[Any], said: Row[Any] | None) -> TicketBrief:
    labels, status = loaded(row.labels), TicketStatus(row.status)
    return TicketBrief(
        kind=TicketKind(row.kind),
        status=status,
        invariant_name=row.invariant_name,
        message=row.message,
        severity=row.severity,
        labels=labels if isinstance(labels, dict) else {},
        observed=observed_of(said, status, clock.parse_iso(row.last_seen_at)),
    )
