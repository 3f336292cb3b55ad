"""How a conversation ended: what the agent says. It proves nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Outcome", "OutcomeKind"]


class OutcomeKind(StrEnum):
    """``proposed`` is the only one that leads to a verification."""

    PROPOSED = "proposed"
    GAVE_UP = "gave_up"
    NO_OUTCOME = "no_outcome"
    LIMIT = "limit"
    REFUSED = "refused"
    CANCELED = "canceled"
    ERROR = "error"


class Outcome(NamedTuple):
    """The end of one conversation.

    Attributes:
        kind: See :class:`OutcomeKind`.
        summary: The agent's own words, or what the platform stopped it for.
    """

    kind: OutcomeKind
    summary: str
