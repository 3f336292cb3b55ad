"""A row of ``cr_shraga_tasks``, and the codes of its status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from operator_dataverse.tables.values import Holder, Known, moment_of, text_of, word_of, yes_of

__all__ = [
    "ACTIVE",
    "ENDED",
    "HEARTBEAT",
    "LEASE_OWNER",
    "STATUS_CANCELED",
    "STATUS_COMPLETED",
    "STATUS_FAILED",
    "STATUS_PENDING",
    "STATUS_QUEUED",
    "STATUS_RUNNING",
    "STATUS_WAITING_FOR_INPUT",
    "TaskCode",
    "TaskRow",
]


class TaskCode(IntEnum):
    """Where a task stands (``cr_status``)."""

    PENDING = 1
    QUEUED = 3
    RUNNING = 5
    WAITING_FOR_INPUT = 6
    COMPLETED = 7
    FAILED = 8
    CANCELED = 9


STATUS_PENDING = TaskCode.PENDING
STATUS_QUEUED = TaskCode.QUEUED
STATUS_RUNNING = TaskCode.RUNNING
STATUS_WAITING_FOR_INPUT = TaskCode.WAITING_FOR_INPUT
STATUS_COMPLETED = TaskCode.COMPLETED
STATUS_FAILED = TaskCode.FAILED
STATUS_CANCELED = TaskCode.CANCELED

ENDED = frozenset({STATUS_COMPLETED, STATUS_FAILED, STATUS_CANCELED})
"""Nothing is done for these any more."""
ACTIVE = frozenset(TaskCode) - ENDED
"""A person can still cancel these."""

HEARTBEAT = "crb3b_heartbeat"
"""Optional column: the last sign of life of the worker that has the task."""
LEASE_OWNER = "crb3b_leaseowner"
"""Optional column: ``{box}/{worker incarnation}``."""


@dataclass(frozen=True)
class TaskRow:
    """One task.

    Attributes:
        id: Its id, in lower case.
        etag: Version of the row; None: the service gave none.
        name: What people see; may be empty, as every text here.
        prompt: What the person asked for.
        status: Where it stands; None: a code that is none of the product's.
        status_message: One line about that.
        result: The result.
        transcript: What happened.
        user_email: The person.
        user_id: The person, in older rows: an id or an e-mail address.
        devbox: Host that is to do it, or does it.
        working_dir: Session folder there.
        onedrive_url: Session folder on the web.
        session_summary: JSON.
        short_description: One line.
        deep_link: Chat message it came from.
        label: What a dev box must offer.
        lease_owner: ``{box}/{worker incarnation}``.
        heartbeat: Last sign of life; None: none, or the table has no such column.
        is_mirror: It stands for another task.
        mirror_of: Id of that task.
        created: When the row was made.
        modified: When it was changed last.
        owner: Id of the user or team that owns the row.
        creator: Id of the user who made it.
    """

    id: str
    etag: str | None = None
    name: str = ""
    prompt: str = ""
    status: TaskCode | None = None
    status_message: str = ""
    result: str = ""
    transcript: str = ""
    user_email: str = ""
    user_id: str = ""
    devbox: str = ""
    working_dir: str = ""
    onedrive_url: str = ""
    session_summary: str = ""
    short_description: str = ""
    deep_link: str = ""
    label: str = ""
    lease_owner: str = ""
    heartbeat: datetime | None = None
    is_mirror: bool = False
    mirror_of: str = ""
    created: datetime | None = None
    modified: datetime | None = None
    owner: str = ""
    creator: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing is done for it any more."""
        return self.status in ENDED

    @staticmethod
    def select(info: Known) -> tuple[str, ...]:
        """The columns of a task that this table has, without the long ones that only people read."""
        return info.only(_LIGHT)

    @classmethod
    def parse(cls, row: Holder) -> TaskRow:
        """The task of a row; columns that were not asked for read as empty."""
        return cls(
            id=row.id,
            etag=row.etag,
            name=text_of(row, "cr_name"),
            prompt=text_of(row, "cr_prompt"),
            status=word_of(row, "cr_status", TaskCode),
            status_message=text_of(row, "cr_statusmessage"),
            result=text_of(row, "cr_result"),
            transcript=text_of(row, "cr_transcript"),
            user_email=text_of(row, "crb3b_useremail"),
            user_id=text_of(row, "cr_userid"),
            devbox=text_of(row, "crb3b_devbox"),
            working_dir=text_of(row, "crb3b_workingdir"),
            onedrive_url=text_of(row, "crb3b_onedriveurl"),
            session_summary=text_of(row, "crb3b_sessionsummary"),
            short_description=text_of(row, "crb3b_shortdescription"),
            deep_link=text_of(row, "crb3b_deeplink"),
            label=text_of(row, "crb3b_label"),
            lease_owner=text_of(row, LEASE_OWNER),
            heartbeat=moment_of(row, HEARTBEAT),
            is_mirror=yes_of(row, "cr_ismirror"),
            mirror_of=text_of(row, "cr_mirroroftaskid"),
            created=moment_of(row, "createdon"),
            modified=moment_of(row, "modifiedon"),
            owner=text_of(row, "_ownerid_value").lower(),
            creator=text_of(row, "_createdby_value").lower(),
        )


_LIGHT = (
    "cr_name",
    "cr_prompt",
    "cr_status",
    "cr_statusmessage",
    "cr_userid",
    "crb3b_useremail",
    "crb3b_devbox",
    "crb3b_workingdir",
    "crb3b_onedriveurl",
    "crb3b_shortdescription",
    "crb3b_deeplink",
    "crb3b_label",
    LEASE_OWNER,
    HEARTBEAT,
    "cr_ismirror",
    "cr_mirroroftaskid",
    "createdon",
    "modifiedon",
    "_ownerid_value",
    "_createdby_value",
)
