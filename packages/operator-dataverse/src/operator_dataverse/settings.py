"""``[dataverse]`` of ``operator.toml``, and the variables that the seed of this package names.

Nothing has an organisation, a person, a branch or an address as its default: an unconfigured worker refuses to start.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from uuid import UUID

from pydantic import Field, field_validator

from operator_core.config import Extension, Settings
from operator_dataverse.errors import NotConfigured

__all__ = ["SECTION", "DataverseSettings", "settings_of"]

SECTION = "dataverse"


class DataverseSettings(Extension):
    """Tasks from Microsoft Dataverse, and what goes back to it."""

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {
        "DATAVERSE_URL": "url",
        "TABLE_NAME": "table",
        "WEBHOOK_USER": "user",
        "WORK_BASE_DIR": "work_dir",
        "UPDATE_BRANCH": "update_branch",
        "ONEDRIVE_SESSIONS_DIR": "onedrive_dir",
    }

    url: str | None = None
    """The organisation, e.g. ``https://example.crm.dynamics.com``. Without it there is no work from Dataverse."""
    table: str = "cr_shraga_tasks"
    """Entity set of the tasks."""
    user: str | None = None
    """E-mail address of the person whose tasks this worker takes."""
    trusted_owners: tuple[str, ...] = ()
    """Ids (of `systemusers`) of accounts whose rows are believed: of the flows, the global chat, the fleet."""
    box: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200)
    """Name of this dev box in the rows; default: the name of the host."""
    token_env: str = "DATAVERSE_TOKEN"
    """Variable that may hold an access token; without it the usual Azure credentials are tried in their order."""
    poll_s: float = Field(default=10.0, gt=0)
    """Time between two looks at the task table."""
    lease_s: float = Field(default=300.0, gt=0)
    """So long after its last sign of life the row of a worker may be taken back."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Limit of one request."""
    retry_s: float = Field(default=120.0, ge=0)
    """How long a failing request is repeated before it is given up for now."""
    message_s: float = Field(default=5.0, ge=0)
    """Progress is collected for so long before it becomes one row of the messages table."""
    messages_per_minute: int = Field(default=12, ge=1)
    """Most progress rows a minute for one task."""
    teams_webhook_env: str = "TEAMS_WEBHOOK_URL"
    """Variable that may hold the address of a Teams workflow; cards are posted there. The address is a secret."""
    teams_answers: bool = True
    """The workflow behind the webhook waits for answers, so that a question has a box for one; else it says where."""
    work_dir: Path | None = None
    """Folder of the sessions when there is no OneDrive. None: as ``[tasks] root``."""
    onedrive: bool = True
    """Put the session folders into OneDrive where it is found."""
    onedrive_dir: Path | None = None
    """The OneDrive folder, instead of looking for one."""
    onedrive_url: str | None = None
    """Its address in the web, where OneDrive does not note it (macOS, Linux); links to session folders need it."""
    update_branch: str | None = None
    """Ref that self-update follows, e.g. ``origin/main``. None: it never updates itself."""
    update_s: float = Field(default=600.0, gt=0)
    """Time between two looks for an update, while there is nothing to do."""
    update_signed: bool = True
    """Take only what a trusted key has signed, or what `update_allowed` names."""
    update_allowed: tuple[str, ...] = ()
    """Commits (full ids) that may be taken without a signature."""
    update_signers: Path | None = None
    """File of the SSH keys that are trusted, as of ``ssh-keygen`` (ALLOWED SIGNERS). OpenPGP keys are those of the
    account's key ring."""
    update_install: str | None = None
    """Command that installs a new version, started in its checkout. None: the checkout is all there is to change."""
    flow_environment: str | None = None
    """Environment of Power Automate that the flows are in, e.g. ``Default-…``; only `flows` uses it."""
    flow_url: str | None = None
    """Address of Power Automate's API. None: the one of the public cloud."""
    flow_token_env: str = "PA_TOKEN"
    """Variable that may hold an access token for Power Automate."""
    devcenter_url: str | None = None
    """DevCenter endpoint that provisions dev boxes."""
    devcenter_project: str | None = None
    """Its project."""
    devcenter_pool: str | None = None
    """Its pool."""
    provision_above: int = Field(default=5, ge=1)
    """So many waiting tasks for each living box, before another one is provisioned."""
    shared_boxes: dict[str, str] = Field(default={})
    """Dev boxes that also work for other people than their own: name -> e-mail address of the person whose worker runs
    there. Both are for the fleet manager to know; what the rows say about it is not believed."""
    chat_model: str | None = None
    """Model of the chat; None: ``[model] model``."""
    chat_poll_s: float = Field(default=3.0, gt=0)
    """Time between two looks for chat messages."""
    chat_lease_s: float = Field(default=60.0, gt=0)
    """So long after its last sign of life a chat message, or a person, is taken over from a manager."""
    chat_followup_s: float = Field(default=45.0, gt=0)
    """After so long without an answer the person is told that it takes longer; flows wait for 90 s at most."""
    chat_timeout_s: float = Field(default=240.0, gt=0)
    """Longest time that the model has for one chat message."""
    chat_turns: int = Field(default=8, ge=1)
    """Most model calls for one chat message."""
    chat_cost_usd: float = Field(default=0.5, ge=0)
    """Most money for one chat message; 0: no limit."""

    @field_validator("trusted_owners")
    @classmethod
    def _are_ids(cls, ids: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(str(UUID(one.strip())) for one in ids)
        except ValueError:
            raise ValueError("give the ids of users, as `operator-dataverse doctor` shows them") from None

    def needs(self, *keys: str) -> DataverseSettings:
        """These settings, when all of ``keys`` are set.

        Raises:
            NotConfigured: Names each one that is missing, and how it is given.
        """
        missing = [key for key in keys if not getattr(self, key)]
        if missing:
            names = {key: name for name, key in self.ENVIRONMENT.items()}
            said = " and ".join(
                f"`[{SECTION}] {key}`" + (f" (or {names[key]} in the environment)" if key in names else "")
                for key in missing
            )
            raise NotConfigured(f"Set {said} in operator.toml; nothing of Dataverse is contacted before that.")
        return self

    def secret(self, variable: str) -> str | None:
        """The value of a variable of this process that holds a secret; None: it is not set."""
        return os.environ.get(variable) or None


def settings_of(settings: Settings) -> DataverseSettings:
    """The section of these settings."""
    return settings.extension(SECTION, DataverseSettings)
