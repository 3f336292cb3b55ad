"""Teams: the cards that people see, and the webhook that they are posted to."""

from __future__ import annotations

from operator_dataverse.teams.cards import (
    TaskFacts,
    authentication_complete_card,
    authentication_required_card,
    canceled_card,
    completed_card,
    devbox_provisioned_card,
    failed_card,
    running_card,
    waiting_card,
)
from operator_dataverse.teams.elements import MAX_BYTES, Card, size_of

__all__ = [
    "MAX_BYTES",
    "Card",
    "TaskFacts",
    "authentication_complete_card",
    "authentication_required_card",
    "canceled_card",
    "completed_card",
    "devbox_provisioned_card",
    "failed_card",
    "running_card",
    "size_of",
    "waiting_card",
]
