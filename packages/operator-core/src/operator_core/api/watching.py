"""What is under watch, as the monitor saw it last."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Literal, cast

from sqlalchemy import Text, bindparam, func, select

from operator_core import clock
from operator_core.api.models import InvariantView, Mark, Sample
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.db.ledger import body_of
from operator_core.db.samples import newest_looks
from operator_core.db.schema import ledger, monitor_states, tickets
from operator_core.model.monitor import MONITOR_BLIND
from operator_core.model.ticket import TERMINAL

__all__ = ["read_invariants", "read_marks"]

_OPEN = select(tickets.c.violation_key, tickets.c.id, tickets.c.flapping).where(
    tickets.c.violation_key.in_(select(monitor_states.c.violation_key)),
    tickets.c.status.not_in([state.value for state in TERMINAL]),
)
_MARKS_EACH = 50
# Of each key the newest changes alone: a ticket that comes again and again has a history of any length.
_changes = (
    select(
        tickets.c.violation_key,
        ledger.c.seq,
        ledger.c.ticket_id,
        ledger.c.at,
        ledger.c.body,
        func.row_number().over(partition_by=tickets.c.violation_key, order_by=ledger.c.seq.desc()).label("back"),
    )
    .select_from(tickets.join(ledger, ledger.c.ticket_id == tickets.c.id))
    .where(
        tickets.c.violation_key.in_(select(monitor_states.c.violation_key)),
        tickets.c.updated_at >= bindparam("since", type_=Text),
        ledger.c.kind == "transition",
        ledger.c.at >= bindparam("since", type_=Text),
    )
    .subquery()
)
_MARKS = select(_changes).where(_changes.c.back <= _MARKS_EACH).order_by(_changes.c.seq)
_WHAT = {"open": "opened", "running": "claimed", "escalated": "escalated", "resolved": "closed", "canceled": "closed"}
_ORDER = {"red": 0, "unknown": 1, "green": 2}
_STALE_S = 120.0
_STALE_LOOKS = 4


async def read_invariants(database: Database, settings: Settings, *, samples: int) -> list[InvariantView]:
    """Everything that is configured or was seen; red first, then unknown, then green that is stale, then green.

    What nobody has looked at yet is unknown. That the monitor can look is told only where it cannot.
    """
    configured = {i.name: (subject.name, i.severity) for subject in settings.subject for i in subject.invariant}
    open_now = {row.violation_key: row for row in await database.fetch(_OPEN)}
    looks = await newest_looks(database, samples) if samples else {}
    seen = {key: [Sample(look.at, look.light, look.value) for look in own] for key, own in looks.items()}
    marks = await _marks(database, {key: own[0].at for key, own in looks.items()})
    views, known = [], set()
    for row in await database.fetch(select(monitor_states)):
        if row.invariant_name == MONITOR_BLIND and row.light == "green":
            continue
        known.add(row.invariant_name)
        subject, severity = configured.get(row.invariant_name, (None, None))
        ticket = open_now.get(row.violation_key)
        views.append(
            InvariantView(
                key=row.violation_key,
                name=row.invariant_name,
                subject=subject,
                severity=severity,
                light=row.light,
                since=clock.parse_iso(row.since),
                updated_at=clock.parse_iso(row.updated_at),
                stale=_is_stale(row.updated_at, settings),
                last_value=row.last_value,
                flapping=ticket is not None and ticket.flapping,
                ticket_id=ticket.id if ticket is not None else None,
                samples=seen.get(row.violation_key, []),
                marks=marks.get(row.violation_key, []),
            )
        )
    views += [
        InvariantView(key=name, name=name, subject=subject, severity=severity, light="unknown")
        for name, (subject, severity) in configured.items()
        if name not in known
    ]
    return sorted(views, key=lambda view: (_ORDER[view.light], not view.stale, view.name, view.key))


async def read_marks(database: Database, keys: Collection[str], since: datetime) -> dict[str, list[Mark]]:
    """What happened since then to the tickets of each of these keys, oldest first."""
    return await _marks(database, dict.fromkeys(keys, since))


def _is_stale(looked: str, settings: Settings) -> bool:
    late = max(_STALE_S, _STALE_LOOKS * settings.monitor.interval_s)
    return (clock.now() - clock.parse_iso(looked)).total_seconds() > late


async def _marks(database: Database, since: dict[str, datetime]) -> dict[str, list[Mark]]:
    """What happened to the tickets of each key since its first look."""
    if not since:
        return {}
    marks: dict[str, list[Mark]] = {}
    for row in await database.fetch(_MARKS, since=clock.iso(min(since.values()))):
        at, body = clock.parse_iso(row.at), body_of(row)
        what = _WHAT.get(str(body.get("new")))
        if what is None or row.violation_key not in since or at < since[row.violation_key]:
            continue
        if body.get("new") == "resolved" and body.get("reason") == "verified":
            what = "verified"
        known = cast(Literal["opened", "claimed", "verified", "escalated", "closed"], what)
        marks.setdefault(row.violation_key, []).append(Mark(at=at, what=known, ticket_id=row.ticket_id))
    return marks
