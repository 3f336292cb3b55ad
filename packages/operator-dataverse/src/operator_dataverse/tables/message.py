"""A row of ``cr_shragamessages``: progress to a person, or an answer of one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from operator_dataverse.tables.values import Holder, moment_of, text_of

__all__ = ["WORKER", "MessageRow"]

WORKER = "Integrated Task Worker"
"""Who writes the progress, and to whom an answer can be addressed."""


@dataclass(frozen=True)
class MessageRow:
    """One message.

    Attributes:
        id: Its id, in lower case.
        etag: Version of the row; None: the service gave none.
        name: First line.
        content: The whole text.
        sender: Who wrote it.
        to: For whom.
        task_id: The task it is about, in lower case.
        created: When it was made.
        owner: Id of the user or team that owns the row.
    """

    id: str
    etag: str | None = None
    name: str = ""
    content: str = ""
    sender: str = ""
    to: str = ""
    task_id: str = ""
    created: datetime | None = None
    owner: str = ""

    @classmethod
    def parse(cls, row: Holder) -> MessageRow:
        """The message of a row; columns that were not asked for read as empty."""
        return cls(
            id=row.id,
            etag=row.etag,
            name=text_of(row, "cr_name"),
            content=text_of(row, "cr_content"),
            sender=text_of(row, "cr_from"),
            to=text_of(row, "cr_to"),
            task_id=text_of(row, "crb3b_taskid").lower(),
            created=moment_of(row, "createdon"),
            owner=text_of(row, "_ownerid_value").lower(),
        )
