"""Whether somebody would read what a person says to a ticket; if not, the sentence that says what to do instead."""

from __future__ import annotations

from sqlalchemy import Integer, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core.db.schema import approvals
from operator_core.model.ticket import TERMINAL, Reason, Ticket, TicketStatus

__all__ = ["question_of", "why_not_answered", "why_not_heard", "why_not_steered"]

_ASKED = (
    select(approvals.c.id)
    .where(approvals.c.ticket_id == bindparam("ticket", type_=Integer), approvals.c.state == "pending")
    .order_by(approvals.c.asked_at, approvals.c.id)
    .limit(1)
)


def why_not_heard(ticket: Ticket, asked: str | None = None) -> str | None:
    """Why nobody would ever read a message to this ticket; None: somebody will."""
    if ticket.status in TERMINAL or ticket.status is TicketStatus.ESCALATED:
        return (
            f"Ticket #{ticket.id} is {ticket.status}, so nobody reads a message; start another attempt with `operator "
            f"tickets reopen {ticket.id}`."
        )
    return None


def why_not_answered(ticket: Ticket, asked: str | None = None) -> str | None:
    """Why it is no answer that the ticket needs.

    Args:
        asked: Id of the question for approval that it waits for.
    """
    if ticket.status is TicketStatus.WAITING_FOR_INPUT:
        return _needs_approval(ticket, asked)
    return (
        why_not_heard(ticket)
        or _not_begun(ticket)
        or f"Ticket #{ticket.id} is {ticket.status} and waits for no answer; say something to its session with "
        f'`operator steer {ticket.id} "…"`.'
    )


def why_not_steered(ticket: Ticket, asked: str | None = None) -> str | None:
    """Why its session cannot be told something in passing."""
    if ticket.status is TicketStatus.WAITING_FOR_INPUT:
        return (
            _needs_approval(ticket, asked)
            or f'Ticket #{ticket.id} waits for an answer; give it with `operator reply {ticket.id} "…"`.'
        )
    return why_not_heard(ticket) or _not_begun(ticket)


async def question_of(c: AsyncConnection, ticket: Ticket) -> str | None:
    """Id of the question for approval that a ticket waits for; None: it waits for none."""
    if ticket.reason != Reason.NEEDS_APPROVAL:
        return None
    found: str | None = (await c.execute(_ASKED, {"ticket": ticket.id})).scalar()
    return found


def _needs_approval(ticket: Ticket, asked: str | None) -> str | None:
    if ticket.reason != Reason.NEEDS_APPROVAL:
        return None
    which = asked[:8] if asked else "ID"
    return (
        f"Ticket #{ticket.id} waits for a word on one call, not for an answer; say it with `operator approvals approve "
        f"{which}` or `operator approvals deny {which} --note TEXT`."
    )


def _not_begun(ticket: Ticket) -> str | None:
    if ticket.session_id is not None or ticket.status is TicketStatus.RUNNING:
        return None
    return (
        f"Nobody has begun with ticket #{ticket.id} yet, so there is no session to talk to; wait until it runs, or "
        f"cancel it with `operator cancel {ticket.id}` and submit it again."
    )
