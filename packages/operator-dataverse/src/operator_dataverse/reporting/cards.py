"""The card of a state, for Teams."""

from __future__ import annotations

from operator_core.model.ticket import TicketStatus
from operator_dataverse.reporting.results import Ending
from operator_dataverse.teams import (
    Card,
    TaskFacts,
    canceled_card,
    completed_card,
    failed_card,
    running_card,
    waiting_card,
)

__all__ = ["card_of"]


def card_of(
    status: TicketStatus, ending: Ending, task: TaskFacts, *, question: str = "", answerable: bool = True
) -> Card:
    """The card of a state.

    Args:
        status: Running, waiting, resolved, escalated or canceled.
        ending: The state in words.
        task: What every card shows.
        question: Names the question, so that an answer to an older card can be told from one to this card.
        answerable: What posts the card takes the answer too.
    """
    match status:
        case TicketStatus.WAITING_FOR_INPUT:
            return waiting_card(task, question=ending.text, question_id=question, answerable=answerable)
        case TicketStatus.RESOLVED:
            return completed_card(task, summary=ending.text)
        case TicketStatus.ESCALATED:
            return failed_card(task, reason=ending.text)
        case TicketStatus.CANCELED:
            return canceled_card(task, reason=ending.text)
    return running_card(task)
