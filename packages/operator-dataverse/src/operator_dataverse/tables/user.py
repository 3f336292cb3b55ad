"""A row of ``crb3b_shragausers``: a person, the dev box of that person, and how far its set-up is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from operator_dataverse.tables.values import Holder, moment_of, text_of, word_of

__all__ = ["AuthStatus", "DevBoxStatus", "ManagerStatus", "OnboardingStep", "UserRow"]


class OnboardingStep(StrEnum):
    """How far the set-up of a person is."""

    AWAITING_SETUP = "awaiting_setup"
    PROVISIONING = "provisioning"
    WAITING_PROVISIONING = "waiting_provisioning"
    PROVISIONING_FAILED = "provisioning_failed"
    AUTH_PENDING = "auth_pending"
    AUTH_CODE_SENT = "auth_code_sent"
    COMPLETED = "completed"


class DevBoxStatus(StrEnum):
    """How far a dev box is."""

    PROVISIONING = "Provisioning"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class AuthStatus(StrEnum):
    """Whether the agent on the dev box is signed in."""

    PENDING = "Pending"
    AUTHENTICATED = "Authenticated"
    FAILED = "Failed"


class ManagerStatus(StrEnum):
    """The personal manager on the dev box."""

    STARTING = "Starting"
    RUNNING = "Running"
    OFFLINE = "Offline"


@dataclass(frozen=True)
class UserRow:
    """One person.

    Attributes:
        id: Id of the row, in lower case.
        etag: Version of the row; None: the service gave none.
        email: The person.
        azure_ad_id: Object id in the directory.
        devbox_name: The dev box.
        devbox_status: How far it is; None: unknown.
        auth_status: Whether the agent there is signed in; None: unknown.
        manager_status: The personal manager there; None: unknown.
        onboarding_step: How far the set-up is; None: unknown.
        last_seen: Last sign of life of the manager.
        connection_url: Address of the box in a browser; read where the column is there.
        auth_url: Address of a sign-in; read where the column is there.
        capacity: So many tasks at once; None: unknown.
        labels: What the box offers.
        worker_seen: Last sign of life of the worker on the box.
        modified: When the row was changed last.
    """

    id: str
    etag: str | None = None
    email: str = ""
    azure_ad_id: str = ""
    devbox_name: str = ""
    devbox_status: DevBoxStatus | None = None
    auth_status: AuthStatus | None = None
    manager_status: ManagerStatus | None = None
    onboarding_step: OnboardingStep | None = None
    last_seen: datetime | None = None
    connection_url: str = ""
    auth_url: str = ""
    capacity: int | None = None
    labels: tuple[str, ...] = ()
    worker_seen: datetime | None = None
    modified: datetime | None = None

    @classmethod
    def parse(cls, row: Holder) -> UserRow:
        """The person of a row; columns that were not asked for, or are not there, read as empty."""
        capacity = row.get("crb3b_capacity")
        labels = (word.strip() for word in text_of(row, "crb3b_labels").split(","))
        return cls(
            id=row.id,
            etag=row.etag,
            email=text_of(row, "crb3b_useremail"),
            azure_ad_id=text_of(row, "crb3b_azureadid"),
            devbox_name=text_of(row, "crb3b_devboxname"),
            devbox_status=word_of(row, "crb3b_devboxstatus", DevBoxStatus),
            auth_status=word_of(row, "crb3b_claudeauthstatus", AuthStatus),
            manager_status=word_of(row, "crb3b_managerstatus", ManagerStatus),
            onboarding_step=word_of(row, "crb3b_onboardingstep", OnboardingStep),
            last_seen=moment_of(row, "crb3b_lastseen"),
            connection_url=text_of(row, "crb3b_connectionurl"),
            auth_url=text_of(row, "crb3b_authurl"),
            capacity=capacity if isinstance(capacity, int) and not isinstance(capacity, bool) else None,
            labels=tuple(word for word in labels if word),
            worker_seen=moment_of(row, "crb3b_workerseen"),
            modified=moment_of(row, "modifiedon"),
        )
