"""How a sandbox is opened, beside the policy of one session: choices of the installation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

__all__ = ["Decision", "OnEgress", "Options", "Secret"]


class Decision(NamedTuple):
    """What the egress proxy decided about one request, before anything left.

    Attributes:
        allowed: Whether it may leave.
        method: ``GET``, ``CONNECT``, ...
        host: As the agent named it.
        port: TCP port.
        why: The rule that allows it, or one sentence that says why it is refused.
        addresses: What the name was resolved to; empty if it was refused before.
        credential: Name of the secret that is added; empty if none.
    """

    allowed: bool
    method: str
    host: str
    port: int
    why: str
    addresses: tuple[str, ...] = ()
    credential: str = ""


OnEgress = Callable[[Decision], Awaitable[None]]
"""Told of each decision, and waited for, before a connection is made: a decision is durable before its effect."""


class Secret(NamedTuple):
    """A secret that the proxy adds to requests, so that the agent uses it and never sees it.

    Attributes:
        name: For the journal.
        hosts: Rules as in ``Policy.allow_hosts``.
        header: Name of the header.
        value: Its value; ``{}`` stands for the secret.
        read: Gives the secret, at each use.
    """

    name: str
    hosts: tuple[str, ...]
    header: str
    value: str
    read: Callable[[], str]


class Options(NamedTuple):
    """Choices of the installation.

    Attributes:
        on_unavailable: ``degrade`` lets ``auto`` fall back to landlock.
        docker_image: For the backend ``docker``; None: there is none, and ``auto`` never takes docker.
        docker_program: ``docker`` or ``podman``.
        secrets: For the egress proxy.
        on_egress: See :data:`OnEgress`.
    """

    on_unavailable: Literal["refuse", "degrade"] = "refuse"
    docker_image: str | None = None
    docker_program: str = "docker"
    secrets: tuple[Secret, ...] = ()
    on_egress: OnEgress | None = None
