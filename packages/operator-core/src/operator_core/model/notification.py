"""Who is told what: the channels, the rules and the digest (`[notify]`)."""

from __future__ import annotations

import re
from datetime import time
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from operator_core.model.ticket import Reason, TicketKind, TicketStatus

__all__ = ["Channel", "DigestPlan", "NotifyRule"]

_ADDRESS = re.compile(r"https?://[^\s/@?#]+(/[^\s@]*)?")
_HOUR_OF_DAY = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Channel(_Part):
    """One way to reach people or programs."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """What rules call it."""
    kind: Literal["apprise", "webhook"]
    """``apprise``: Slack, Teams, e-mail and many others; ``webhook``: a signed POST of JSON."""
    url: str | None = None
    """Of a webhook whose address is no secret. Either this, ``url_env`` or ``url_file``."""
    url_env: str | None = Field(default=None, min_length=1)
    """Variable of the server that holds the address; that of apprise holds passwords, so it is never written here."""
    url_file: Path | None = None
    """File that holds the address; read for each message, so that a rotated one is taken up."""
    secret_env: str | None = Field(default=None, min_length=1)
    """Variable of the server that holds the secret with which a webhook is signed. Either this or ``secret_file``."""
    secret_file: Path | None = None
    """File that holds it."""
    give_up_hours: float = Field(default=24.0, gt=0, le=24 * 7)
    """So long it is tried to deliver a message; the later ones of this channel wait behind it."""
    approval_links: bool = False
    """Questions for approval carry a link with which whoever reads the message can answer, without a login."""

    @model_validator(mode="after")
    def _usable(self) -> Channel:
        if sum(value is not None for value in (self.url, self.url_env, self.url_file)) != 1:
            raise ValueError("it needs one of `url_env` and `url_file`, or, if it is a webhook, `url`")
        secrets = sum(value is not None for value in (self.secret_env, self.secret_file))
        if self.kind == "apprise" and self.url is not None:
            raise ValueError("an address of apprise holds secrets; put it into a variable (`url_env`) or a `url_file`")
        if self.kind == "apprise" and secrets:
            raise ValueError("only webhooks are signed; leave `secret_env` and `secret_file` out")
        if self.kind == "webhook" and secrets != 1:
            raise ValueError("a webhook is signed, so it needs either `secret_env` or `secret_file`")
        if self.url is not None and not _ADDRESS.fullmatch(self.url):
            raise ValueError("`url` must be http:// or https:// with a host and without a login")
        return self


class NotifyRule(_Part):
    """What a channel is told; all conditions that are given must hold. A message goes to a channel once."""

    channels: tuple[str, ...] = Field(min_length=1)
    """Names of channels."""
    states: tuple[TicketStatus, ...] = (
        TicketStatus.WAITING_FOR_INPUT,
        TicketStatus.ESCALATED,
        TicketStatus.RESOLVED,
    )
    """States that a ticket comes into; ``open`` means that it opened, or opened again."""
    reasons: tuple[Reason | Literal["opened", "submitted"], ...] = ()
    """Why it came into it; empty: any reason but those of everyday work (released, answered and the like)."""
    severities: tuple[str, ...] = ()
    """Of the ticket, e.g. ``critical``; empty: any."""
    kinds: tuple[TicketKind, ...] = ()
    """``incident`` or ``task``; empty: both."""
    names: tuple[str, ...] = ()
    """Names of invariants or tasks, with ``*`` for anything; empty: any."""
    labels: dict[str, str] = {}
    """Labels that the ticket must have, with ``*`` for anything."""


class DigestPlan(_Part):
    """A summary for people, once a day: what was resolved and how it was proved, what needs somebody, what it cost."""

    channels: tuple[str, ...] = Field(min_length=1)
    """Names of channels."""
    at: str = Field(default="07:30", pattern=_HOUR_OF_DAY)
    """When it is sent; it tells of the time since the last one."""
    timezone: str = "UTC"
    """Where that is the time of day, e.g. ``Europe/Berlin``."""

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (OSError, ValueError, KeyError):
            raise ValueError(f"{name!r} is no time zone that this machine knows, such as Europe/Berlin") from None
        return name

    @property
    def time(self) -> time:
        """The time of day, in its zone."""
        return time.fromisoformat(self.at).replace(tzinfo=ZoneInfo(self.timezone))
