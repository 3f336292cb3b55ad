"""A row of ``cr_shraga_conversations``: one line of a chat. Direction and status are words, never numbers (D-63)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from operator_dataverse.tables.values import Holder, moment_of, text_of, word_of, yes_of

__all__ = ["ConversationRow", "ConversationStatus", "Direction"]


class Direction(StrEnum):
    """From a person, or to one."""

    INBOUND = "Inbound"
    OUTBOUND = "Outbound"


class ConversationStatus(StrEnum):
    """Where a line of a chat stands."""

    UNCLAIMED = "Unclaimed"
    CLAIMED = "Claimed"
    PROCESSED = "Processed"
    DELIVERED = "Delivered"
    EXPIRED = "Expired"


@dataclass(frozen=True)
class ConversationRow:
    """One line of a chat.

    Attributes:
        id: Its id, in lower case.
        etag: Version of the row; None: the service gave none.
        name: Beginning of the message.
        user_email: The person.
        conversation_id: The conversation, in Copilot Studio's words.
        message: The message.
        direction: From the person or to it; None: unreadable.
        status: Where it stands; None: unreadable.
        claimed_by: ``personal:{email}:{instance}`` or ``global:{instance}``.
        in_reply_to: Id of the row that it answers, in lower case.
        followup_expected: More will come.
        created: When the row was made.
        modified: When it was changed last.
        owner: Id of the user or team that owns the row.
    """

    id: str
    etag: str | None = None
    name: str = ""
    user_email: str = ""
    conversation_id: str = ""
    message: str = ""
    direction: Direction | None = None
    status: ConversationStatus | None = None
    claimed_by: str = ""
    in_reply_to: str = ""
    followup_expected: bool = False
    created: datetime | None = None
    modified: datetime | None = None
    owner: str = ""

    @classmethod
    def parse(cls, row: Holder) -> ConversationRow:
        """The line of a row; columns that were not asked for read as empty."""
        return cls(
            id=row.id,
            etag=row.etag,
            name=text_of(row, "cr_name"),
            user_email=text_of(row, "cr_useremail"),
            conversation_id=text_of(row, "cr_mcs_conversation_id"),
            message=text_of(row, "cr_message"),
            direction=word_of(row, "cr_direction", Direction),
            status=word_of(row, "cr_status", ConversationStatus),
            claimed_by=text_of(row, "cr_claimed_by"),
            in_reply_to=text_of(row, "cr_in_reply_to").lower(),
            followup_expected=yes_of(row, "cr_followup_expected"),
            created=moment_of(row, "createdon"),
            modified=moment_of(row, "modifiedon"),
            owner=text_of(row, "_ownerid_value").lower(),
        )
