"""How a conversation ended: what the agent says. It proves nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Outcome", "OutcomeKind"]


class OutcomeKind(StrEnum):
    """``proposed`` is the only one that leads to a verification; ``judged`` ends a verifier's own conversation."""

    PROPOSED = "proposed"
    BLOCKED = "blocked"
    JUDGED = "judged"
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
        body: What a tool took beside the words, e.g. the fields of a verifier's verdict.
    """

    kind: OutcomeKind
    summary: str
    body: Any = None
