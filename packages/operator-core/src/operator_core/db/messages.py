"""Whether somebody would read what a person says to a ticket; if not, the sentence that says what to do instead."""

from __future__ import annotations

from operator_core.model.ticket import TERMINAL, Reason, Ticket, TicketStatus

__all__ = ["why_not_answered", "why_not_heard", "why_not_steered"]


def why_not_heard(ticket: Ticket) -> str | None:
    """Why nobody would ever read a message to this ticket; None: somebody will."""
    if ticket.status in TERMINAL or ticket.status is TicketStatus.ESCALATED:
        return (
            f"Ticket #{ticket.id} is {ticket.status}, so nobody reads a message; start another attempt with `operator "
            f"tickets reopen {ticket.id}`."
        )
    return None


def why_not_answered(ticket: Ticket) -> str | None:
    """Why it is no answer that the ticket needs."""
    if ticket.status is TicketStatus.WAITING_FOR_INPUT:
        return _needs_approval(ticket)
    return (
        why_not_heard(ticket)
        or _not_begun(ticket)
        or f"Ticket #{ticket.id} is {ticket.status} and waits for no answer; say something to its session with "
        f"`operator steer {ticket.id}`."
    )


def why_not_steered(ticket: Ticket) -> str | None:
    """Why its session cannot be told something in passing."""
    if ticket.status is TicketStatus.WAITING_FOR_INPUT:
        return (
            _needs_approval(ticket)
            or f"Ticket #{ticket.id} waits for an answer; give it with `operator reply {ticket.id}`."
        )
    return why_not_heard(ticket) or _not_begun(ticket)


def _needs_approval(ticket: Ticket) -> str | None:
    if ticket.reason != Reason.NEEDS_APPROVAL:
        return None
    return (
        f"Ticket #{ticket.id} waits for a word on one call, not for an answer; see it with `operator approvals list`, "
        "and say what you want to say with `operator approvals deny ID --note TEXT`."
    )


def _not_begun(ticket: Ticket) -> str | None:
    if ticket.session_id is not None or ticket.status is TicketStatus.RUNNING:
        return None
    return (
        f"Nobody has begun with ticket #{ticket.id} yet, so there is no session to talk to; wait until it runs, or "
        f"cancel it with `operator cancel {ticket.id}` and submit it again."
    )
