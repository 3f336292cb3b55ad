"""The cards."""

from __future__ import annotations

from operator_dataverse.teams.cards.people import (
    authentication_complete_card,
    authentication_required_card,
    devbox_provisioned_card,
)
from operator_dataverse.teams.cards.task import (
    ANSWER,
    TaskFacts,
    canceled_card,
    completed_card,
    failed_card,
    running_card,
    waiting_card,
)

__all__ = [
    "ANSWER",
    "TaskFacts",
    "authentication_complete_card",
    "authentication_required_card",
    "canceled_card",
    "completed_card",
    "devbox_provisioned_card",
    "failed_card",
    "running_card",
    "waiting_card",
]
