"""Questions about calls, as people see them."""

from __future__ import annotations

from operator_core.api.models import ApprovalView, TicketBrief
from operator_core.model.approval import Approval
from operator_core.redaction import Redactor

__all__ = ["approval_view"]


def approval_view(approval: Approval, redactor: Redactor, ticket: TicketBrief | None = None) -> ApprovalView:
    """One question, with secrets masked in what is shown; the hash is of what will be executed.

    Args:
        ticket: What it is about; None: whoever reads it has the ticket already.
    """
    return ApprovalView(
        id=approval.id,
        ticket_id=approval.ticket_id,
        session_id=approval.session_id,
        phase=approval.phase,
        call_id=approval.call_id,
        tool=approval.tool,
        arguments=redactor.tree(approval.arguments),
        arguments_hash=approval.arguments_hash,
        why=approval.why,
        state=approval.state,
        asked_at=approval.asked_at,
        expires_at=approval.expires_at,
        answered_at=approval.answered_at,
        answered_by=approval.answered_by,
        note=approval.note,
        used_at=approval.used_at,
        ticket=ticket,
    )
