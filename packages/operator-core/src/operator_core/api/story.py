"""One ticket with its story: the report, the verdicts, the attempts and everything that happened to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Integer, bindparam, select
from sqlalchemy.engine import Row

from operator_core import clock
from operator_core.api.briefs import read_observed
from operator_core.api.listing import read_workers, session_views, ticket_views
from operator_core.api.models import ApprovalView, Before, HistoryEvent, ReportView, TicketDetail, VerdictView
from operator_core.api.second_looks import read_second_looks
from operator_core.api.sessions import question_of
from operator_core.api.staffing import why_stalled
from operator_core.api.views import loaded
from operator_core.db.board import Board
from operator_core.db.engine import Database
from operator_core.db.journal_reading import JournalReading
from operator_core.db.ledger import body_of
from operator_core.db.schema import ledger
from operator_core.db.tickets import TicketDB
from operator_core.errors import NotFound
from operator_core.model.entry import EntryKind
from operator_core.model.ticket import TERMINAL, Ticket, TicketStatus
from operator_core.redaction import without_named

__all__ = ["read_report", "read_ticket"]

_ATTEMPTS = 100
_JUDGED = 20
_VERDICTS = 50
_EVENTS = 500
_WORKED_ON = (TicketStatus.OPEN, TicketStatus.QUEUED, TicketStatus.RUNNING)

_HISTORY = (
    select(ledger)
    .where(ledger.c.ticket_id == bindparam("ticket", type_=Integer))
    .order_by(ledger.c.seq.desc())
    .limit(_EVENTS)
)


async def read_ticket(database: Database, ticket_id: int, approvals: Sequence[ApprovalView]) -> TicketDetail:
    """One ticket; of a very long story the newest part."""
    ticket = await TicketDB(database).get_ticket(ticket_id)
    journal = JournalReading(database)
    rows = await Board(database).sessions(ticket_id=ticket_id, limit=_ATTEMPTS)
    sessions = await session_views(database, rows)
    (view,) = await ticket_views(database, [ticket_id])
    # A second look at finished work is no attempt: the folder, the report and what was before are those of the attempt.
    newest = next((session.session_id for session in sessions if session.judges is None), None)
    judged = {session.session_id: session.judges for session in sessions if session.judges is not None}
    attempts = [row.session_id for row in rows[:_JUDGED]]
    verdicts = await journal.of_sessions(attempts, EntryKind.VERDICT.value, most=_VERDICTS)
    of_verdicts = (judged.get(row.session_id, row.session_id) for row in verdicts)
    told = dict.fromkeys([*([newest] if newest else []), *of_verdicts])
    begun = [entry for one in told for entry in await journal.newest(one, EntryKind.BASELINE.value)]
    report, question = None, None
    if newest is not None:
        found = await journal.newest(newest, EntryKind.REPORT.value)
        report = _report(found[0]) if found else None
    if ticket.status is TicketStatus.WAITING_FOR_INPUT and ticket.session_id is not None:
        question = await question_of(journal, ticket.session_id)
    history = await database.fetch(_HISTORY, ticket=ticket_id)
    return TicketDetail(
        **{**dict(view), "message": ticket.message},
        violation_key=ticket.violation_key,
        subject_context=ticket.subject_context,
        metric_snapshot=ticket.metric_snapshot,
        diagnosis=ticket.diagnosis,
        # What a probe shows to the system that it asks is not for everybody who reads tickets.
        check_spec=database.redactor.tree(without_named(ticket.check_spec)),
        check_hash=ticket.check_hash,
        reopened_from=ticket.reopened_from,
        watch_until=ticket.watch_until,
        observed=await read_observed(database, ticket_id, ticket.status, ticket.last_seen_at),
        stalled=await _stalled(database, ticket),
        question=question,
        folder=_folder(begun, newest),
        report=report,
        before=[_before(row) for row in begun],
        verdicts=[_verdict(row) for row in verdicts],
        sessions=sessions,
        history=[_event(row) for row in reversed(history)],
        approvals=list(approvals),
        second_looks=await read_second_looks(database, ticket),
    )


async def read_report(database: Database, ticket_id: int) -> ReportView:
    """The report of the newest attempt that has one.

    Raises:
        NotFound: There is no such ticket, or no report of it.
    """
    ticket = await TicketDB(database).get_ticket(ticket_id)
    rows = await Board(database).sessions(ticket_id=ticket_id, limit=_ATTEMPTS)
    attempts = [row.session_id for row in rows]
    found = await JournalReading(database).of_sessions(attempts, EntryKind.REPORT.value, most=1)
    if not found:
        has_ended = ticket.status in TERMINAL or ticket.status is TicketStatus.ESCALATED
        if has_ended:
            why = "no session of it was judged" if attempts else "nobody worked on it"
            raise NotFound(
                f"Ticket #{ticket_id} is {ticket.status} and has no closure report, because {why}; see what happened "
                f"with `operator tickets show {ticket_id}`."
            )
        raise NotFound(
            f"Ticket #{ticket_id} is {ticket.status} and has no closure report yet; it comes with the end of a session."
        )
    return _report(found[0])


def _report(row: Row[Any]) -> ReportView:
    data = loaded(row.body)
    data = data if isinstance(data, dict) else {}
    headline = str(data.get("headline") or row.content)
    return ReportView(session_id=row.session_id, headline=headline, markdown=row.raw_content or "", data=data)


async def _stalled(database: Database, ticket: Ticket) -> str | None:
    if ticket.status not in _WORKED_ON or ticket.id is None:
        return None
    return why_stalled(
        await read_workers(database),
        ticket.id,
        ticket.status,
        name=ticket.invariant_name,
        pinned_to=ticket.pinned_to,
        held=ticket.held,
    )


def _folder(begun: Sequence[Row[Any]], session_id: str | None) -> str | None:
    for row in begun:
        body = loaded(row.body)
        if row.session_id == session_id and isinstance(body, dict) and isinstance(body.get("folder"), str):
            return str(body["folder"])
    return None


def _before(row: Row[Any]) -> Before:
    body = loaded(row.body)
    body = body if isinstance(body, dict) else {}
    seen, observation, red = body.get("seen"), body.get("observation"), body.get("seen_red")
    return Before(
        session_id=row.session_id,
        seq=row.seq,
        at=clock.parse_iso(row.timestamp),
        seen_red=red if isinstance(red, bool) else None,
        observation=observation if isinstance(observation, dict) else None,
        checks=[
            {"command": str(one.get("command")), "was": "vacuous" if one.get("vacuous") else str(one.get("state"))}
            for one in (seen if isinstance(seen, list) else ())
            if isinstance(one, dict)
        ],
    )


def _verdict(row: Row[Any]) -> VerdictView:
    body = loaded(row.body)
    body = body if isinstance(body, dict) else {}
    clauses = body.get("clauses")
    failed = body.get("failed")
    return VerdictView(
        session_id=row.session_id,
        seq=row.seq,
        at=clock.parse_iso(row.timestamp),
        phase=row.phase,
        kind=str(body.get("kind") or "unknown"),
        why=str(body.get("why") or row.content),
        check_hash=body.get("check_hash"),
        clauses=[clause for clause in clauses if isinstance(clause, dict)] if isinstance(clauses, list) else [],
        failed=[str(name) for name in failed] if isinstance(failed, list) else [],
    )


def _event(row: Row[Any]) -> HistoryEvent:
    body = body_of(row)
    known = {name: body.pop(name, None) for name in ("old", "new", "reason", "actor")}
    return HistoryEvent(
        seq=row.seq,
        at=clock.parse_iso(row.at),
        kind=row.kind,
        session_id=row.session_id,
        detail=body,
        **{name: None if value is None else str(value) for name, value in known.items()},
    )
