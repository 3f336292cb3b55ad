"""Where the agent's commands run, and the secrets that they may use."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from operator_core.config.section import Section

__all__ = ["Credential", "SandboxSettings"]


class SandboxSettings(Section):
    """Where the agent's commands run."""

    backend: Literal["auto", "bubblewrap", "docker", "landlock", "none"] = "auto"
    """``auto`` never downgrades by itself: it is bubblewrap, else docker where an image is configured, else a refusal.
    ``none`` is no sandbox at all."""
    on_unavailable: Literal["refuse", "degrade"] = "refuse"
    """``degrade`` lets ``auto`` fall back to landlock, which holds less; the report then says ``confined``."""
    run_as: int | None = Field(default=None, ge=1, lt=2**31)
    """User id of the agent's commands when the worker is root. None: one that nobody else uses."""
    docker_image: str | None = Field(default=None, min_length=1)
    """Image for the backend ``docker``; it needs bash and python3. Without one ``auto`` never takes docker."""
    docker_program: str = "docker"
    """``docker`` or ``podman``, or the path of one."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts that every agent with ``network = "allowlist"`` may reach, e.g. ``*.example.org:443``."""
    readable: tuple[Path, ...] = ()
    """Further folders that every agent may read."""
    env_passthrough: tuple[str, ...] = ()
    """Variables of the worker that the agent's commands may see; names that look secret are refused."""


class Credential(Section):
    """A secret that the agent may use and never sees."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")
    """What the journal calls it."""
    env: str | None = None
    """Variable of the worker that holds it. Either this or ``file``."""
    file: Path | None = None
    """File that holds it; read at each use, so that a rotated secret is taken up."""
    hosts: tuple[str, ...] = ()
    """Hosts to which the egress proxy adds it as a header; the agent asks for ``http://HOST/...`` and the proxy speaks
    TLS to the host."""
    header: str = Field(default="Authorization", pattern=r"^[A-Za-z0-9-]+$")
    """The header."""
    value: str = "Bearer {}"
    """The header's value; ``{}`` stands for the secret."""
    phases: tuple[Literal["worker", "verifier", "checks"], ...] = ()
    """Phases in which commands may read the ``file`` itself, at ``/run/secrets/NAME``."""

    @model_validator(mode="after")
    def _usable(self) -> Credential:
        if (self.env is None) == (self.file is None):
            raise ValueError("it needs either `env` or `file`")
        if self.value.count("{}") != 1:
            raise ValueError("`value` must hold `{}` once, where the secret goes")
        if self.phases and self.file is None:
            raise ValueError("only a secret in a `file` can be shown in `phases`")
        if not self.hosts and not self.phases:
            raise ValueError("it is of no use without `hosts` or `phases`")
        return self
