"""What is remembered of a task row beside its ticket: the state of its link.

The link of a row is made before the row is claimed, so its state says how far a claim went when a process died in it.
Two parts write it, each its own fields, and always from what is stored (:func:`changed`): the intake what it claims and
sees, the reporting what it has said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["SOURCE", "LinkState", "changed"]

SOURCE = "dataverse"
"""The source in the links, and the first word of the outbox's channels (``dataverse:{box}/{row id}``)."""


class LinkState(BaseModel):
    """The state of one link. Times without a note are those of Dataverse, as it writes them.

    Attributes:
        etag: The newest one that was seen of the row; None: look first.
        status: The newest remote code that was seen or written.
        attempt: Grows with every claim of the row by this store; what an earlier attempt still had to say is void.
        mark: What the claim wrote into the row, and nobody else can have written; empty: never claimed.
        claiming: A claim of the row is under way: it may or may not have arrived. Never True once there is a ticket
            and the row is known to be ours.
        taken_by: The process that sees to the claim, until ``taken_until`` (milliseconds of the store's clock).
        user: E-mail address of the person whose task it is; empty: unknown.
        title: Name of the task.
        beat_ms: The last sign of life in the row (milliseconds of the store's clock).
        answering: The fence of the ticket whose question the answer at hand belongs to; None: none is under way.
        heard: Creation time of the newest answer that was taken; only later ones are answers to the next question.
        heard_ids: Ids of the answers that were taken.
        question_at: When the row was set to 6 for the newest question; empty: not yet.
        lost: Why the row is not ours any more; empty: it is. Nothing more is written to such a row.
        cursor: Session -> number of its newest journal entry that was reported.
        reported: What was said last about how the ticket stands, in the reporting's own words.
        ledger: Number of the newest transition that was reported.
        told: The attempt that was reported last.
        progress_ms: When progress was put into the outbox last (milliseconds since 1970).
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    etag: str | None = None
    status: int = 0
    attempt: int = 0
    mark: str = ""
    claiming: bool = False
    taken_by: str = ""
    taken_until: int = 0
    user: str = ""
    title: str = ""
    beat_ms: int = 0
    answering: int | None = None
    heard: str = ""
    heard_ids: list[str] = []
    question_at: str = ""
    lost: str = ""
    cursor: dict[str, int] = {}
    reported: str = ""
    ledger: int = -1
    told: int = 0
    progress_ms: int = 0

    def but(self, **values: Any) -> LinkState:
        """This state with other values of some fields."""
        return type(self).model_validate({**self.model_dump(), **values})


def changed(change: Callable[[LinkState], LinkState | None]) -> Callable[[dict[str, Any]], Mapping[str, Any] | None]:
    """The same change, for :meth:`operator_core.db.links.Links.change`."""

    def change_stored(stored: dict[str, Any]) -> Mapping[str, Any] | None:
        after = change(LinkState.model_validate(stored))
        return None if after is None else after.model_dump(mode="json")

    return change_stored
