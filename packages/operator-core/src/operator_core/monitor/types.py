"""The seed's address of the ticket types."""

from __future__ import annotations

from operator_core.model.ticket import InvariantViolation, Ticket, TicketStatus, make_violation_key

__all__ = ["InvariantViolation", "Ticket", "TicketStatus", "make_violation_key"]
