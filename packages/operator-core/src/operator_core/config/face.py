"""What people see and decide: the API and the console, approvals, notifications."""

from __future__ import annotations

import re

from pydantic import Field, field_validator, model_validator

from operator_core.config.section import Section
from operator_core.model.approval import ApprovalRule
from operator_core.model.notification import Channel, DigestPlan, NotifyRule

__all__ = ["ApprovalSettings", "NotifySettings", "WebSettings"]

_ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?(?P<path>/[^?#]*)?")


class WebSettings(Section):
    """The HTTP API and the console (`operator serve`)."""

    host: str = "127.0.0.1"
    """Address to listen on. Behind anything but loopback put a server that speaks TLS in front of it."""
    port: int = Field(default=8642, ge=0, le=65535)
    """Port to listen on; 0: any free one."""
    public_url: str | None = None
    """How people reach it, for the links in notifications and for cookies; without a path. None: where it listens."""
    hosts: tuple[str, ...] = ()
    """Further names by which requests come, e.g. of this machine for webhooks; others are refused."""
    login_hours: float = Field(default=12.0, gt=0, le=24 * 90)
    """A browser must sign in again after so many hours."""
    max_body_bytes: int = Field(default=2 << 20, ge=1 << 10)
    """A longer request is refused."""
    streams_per_token: int = Field(default=100, ge=1, le=1000)
    """One token may have so many live streams open; a page that somebody looks at has one."""

    @field_validator("public_url")
    @classmethod
    def _of_a_host(cls, value: str | None) -> str | None:
        found = None if value is None else _ADDRESS.fullmatch(value)
        if value is not None and found is None:
            raise ValueError("it must be an address as https://operator.example.com")
        if found is not None and found["path"] not in (None, "/"):
            path = found["path"][:60]
            raise ValueError(
                f"Operator cannot be served below the path {path!r}; give it a host name or port of its own"
            )
        return value


class ApprovalSettings(Section):
    """Calls of agents that wait for a person; without a rule nothing does."""

    rule: tuple[ApprovalRule, ...] = ()
    """The first one that matches a call decides; a call that none matches is allowed."""
    expire_s: float = Field(default=86_400.0, gt=0, le=366 * 86_400.0)
    """A question that nobody has answered for so long is denied; an answer, too, is good for no longer."""
    environment: dict[str, str] = Field(default={})
    """What this worker's agents can touch, by names of your own, for example ``tier = "production"``."""


class NotifySettings(Section):
    """Who is told what."""

    channel: tuple[Channel, ...] = ()
    """Ways to reach people and programs."""
    rule: tuple[NotifyRule, ...] = ()
    """What each of them is told."""
    digest: DigestPlan | None = None
    """A summary once a day."""

    @model_validator(mode="after")
    def _channels_exist(self) -> NotifySettings:
        known = [channel.name for channel in self.channel]
        for part in (*self.rule, *((self.digest,) if self.digest else ())):
            for name in part.channels:
                if name not in known:
                    raise ValueError(f"there is no channel {name!r}; the channels are {', '.join(known) or 'none'}")
        return self
