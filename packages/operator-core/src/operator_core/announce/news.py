"""What happened to a ticket, as far as people may want to know: the body of a letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict

from operator_core.model.ticket import TicketKind, TicketStatus

__all__ = ["LONGEST", "News"]

LONGEST = 600
"""So many characters of each text are kept; the whole of it is behind the link."""


class News(BaseModel):
    """One change of state of one ticket. Its texts come from alerts, people and agents: nobody may trust them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: str
    """The hash of its row in the ledger: it names this piece of news everywhere, however often it is told."""
    seq: int
    """Of that row."""
    at: AwareDatetime
    ticket_id: int
    kind: TicketKind
    name: str
    """Of the invariant, or of the task."""
    severity: str
    labels: dict[str, str] = {}
    message: str
    old: TicketStatus | None = None
    state: TicketStatus
    reason: str | None = None
    actor: str = ""
    session_id: str | None = None
    why: str | None = None
    """The question, the result, or what was found out."""
    approval_id: str | None = None
    """The call that waits for a person's word."""
    tool: str | None = None
    """The tool of that call."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> News:
        """From JSON."""
        return cls.model_validate(body)

    def to_json(self) -> dict[str, Any]:
        """For a letter."""
        return self.model_dump(mode="json")
