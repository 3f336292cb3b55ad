"""Rules that let an act of the agent wait for a person's word (`[approvals]`), and what became of such a question."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from operator_core.model.entry import canonical
from operator_core.model.pattern import Pattern
from operator_core.model.ticket import TicketKind

__all__ = ["Approval", "ApprovalRule", "ApprovalState", "arguments_hash"]

ApprovalState = Literal["pending", "approved", "denied", "expired", "used"]


class ApprovalRule(BaseModel):
    """One rule; the first one that matches decides.

    A rule matches a call when everything that it names fits. Words with ``*`` and ``?`` are patterns as of file names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision: Literal["allow", "ask", "deny"]
    """What happens to a call that matches."""
    tool: str = Field(default="*", min_length=1)
    """Name of the tool, with ``*`` for anything."""
    matches: dict[str, str] = {}
    """Regular expressions by name of the argument, ``*`` for any of them. To ask or deny it is enough that one is found
    somewhere in the text; to allow, it must fit the whole text of an argument that is named, so that nothing can be
    hidden behind it or in another one."""
    contains: dict[str, str] = {}
    """Words by name of the argument, ``*`` for any of them; whether they are written large or small does not matter.
    Not in a rule that allows."""
    dangerous: bool = False
    """Only commands that the advisor would refuse (``rm -rf /``, ``mkfs``, ``sudo``). Not in a rule that allows."""
    profile: str = Field(default="*", min_length=1)
    """Who works: ``operator`` on incidents, ``worker`` and ``verifier`` on tasks, ``ouroboros`` explores."""
    phase: str = Field(default="*", min_length=1)
    """Phase of the session, for example ``worker_*``."""
    kind: TicketKind | None = None
    """Only for ``incident`` or only for ``task`` tickets."""
    labels: dict[str, str] = {}
    """Labels that the ticket must have, with a pattern of their value."""
    environment: dict[str, str] = {}
    """Labels that ``[approvals] environment`` of the worker must have, with a pattern of their value."""
    why: str = Field(default="", max_length=500)
    """Shown to the person who is asked, and to the agent that is refused."""

    @model_validator(mode="after")
    def _usable(self) -> ApprovalRule:
        for name, pattern in self.matches.items():
            try:
                Pattern(pattern)
            except ValueError as error:
                raise ValueError(f"`matches` of {name!r} is no regular expression ({error})") from None
        if any(not text for text in (*self.matches.values(), *self.contains.values())):
            raise ValueError("`matches` and `contains` need a text that is not empty")
        if self.decision == "allow" and (self.contains or self.dangerous):
            raise ValueError("a rule that allows takes `matches`, which must fit the whole argument")
        if self.decision == "allow" and "*" in self.matches:
            raise ValueError("a rule that allows must name the arguments in `matches`, not '*'")
        return self

    @property
    def looks_at_calls(self) -> bool:
        """Whether it depends on the call, and not only on who makes it and where."""
        return self.tool != "*" or bool(self.matches or self.contains or self.dangerous)


@dataclass(frozen=True)
class Approval:
    """One call that a person has to allow. Times are UTC-aware.

    Attributes:
        call_id: Of the ``tool_use`` block.
        arguments: As the journal has them.
        arguments_hash: Of exactly what will be executed, see :func:`arguments_hash`.
        fence: Of the claim that asked; an older one can do nothing with the answer.
        why: What the rule says, or which rule it is.
        state: ``pending`` and ``approved`` become ``expired`` with time; ``used``: the call was let through, once.
        expires_at: For the answer, and for the execution.
        answered_by: Who answered.
        note: What they said.
    """

    id: str
    ticket_id: int
    session_id: str
    phase: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    arguments_hash: str
    fence: int
    why: str
    state: ApprovalState
    asked_at: datetime
    expires_at: datetime
    answered_at: datetime | None = None
    answered_by: str | None = None
    note: str | None = None
    used_at: datetime | None = None


def arguments_hash(tool: str, arguments: dict[str, Any]) -> str:
    """SHA-256 (hex) of a tool's name and its arguments in canonical form."""
    return hashlib.sha256(canonical([tool, arguments]).encode("utf-8", "surrogatepass")).hexdigest()
