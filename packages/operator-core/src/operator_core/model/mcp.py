"""MCP servers whose tools agents may use (`[[mcp_server]]`)."""

from __future__ import annotations

import ipaddress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from operator_core.redaction import looks_secret

__all__ = ["McpProfile", "McpServer"]

McpProfile = Literal["operator", "worker", "verifier", "ouroboros"]
"""Who may be given tools: ``operator`` works on incidents, ``worker`` and ``verifier`` on tasks, ``ouroboros``
explores."""

_ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"


class McpServer(BaseModel):
    """One MCP server; its tools are called ``NAME__TOOL``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    """First part of the names of its tools."""
    command: str | None = Field(default=None, min_length=1, pattern=r"^[^\x00]+$")
    """Program that speaks MCP over its standard input and output. Either this or ``url``."""
    args: tuple[str, ...] = ()
    """Its arguments; no secrets, because other commands of the session can see them."""
    env: tuple[str, ...] = ()
    """Names of variables of the worker that it gets; a name that looks secret only with ``trusted``."""
    readable: tuple[Path, ...] = ()
    """Folders that it needs; the agent's own commands can read them too."""
    trusted: bool = False
    """Run the program outside of the sandbox, with the rights of the worker. Without it, it runs in the agent's own
    sandbox, with its workspace and its network."""
    url: str | None = Field(default=None, max_length=2000)
    """Server that speaks MCP over streamable HTTP; the worker calls it, not the agent's sandbox."""
    token_env: str | None = Field(default=None, pattern=_ENV_NAME)
    """Variable of the worker with the bearer token for ``url``."""
    token_file: Path | None = None
    """File with it; read for each connection."""
    tools: tuple[str, ...] = Field(default=("*",), min_length=1)
    """Names of the tools that agents may use, as the server calls them; ``*`` and ``?`` as in names of files."""
    profiles: tuple[McpProfile, ...] = Field(default=("operator", "worker"), min_length=1)
    """Which agents may use them. A verifier that has them can be misled by what the server says."""
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Limit of one call, in seconds."""
    start_timeout_s: float = Field(default=20.0, gt=0, le=600)
    """Limit of its start, in seconds; a session goes on without a server that is not there by then."""

    @model_validator(mode="after")
    def _usable(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("it needs either `command` or `url`")
        if self.url is None:
            if self.token_env or self.token_file:
                raise ValueError("`token_env` and `token_file` are for a `url`; give a command its variables in `env`")
        else:
            if self.args or self.env or self.readable or self.trusted:
                raise ValueError("`args`, `env`, `readable` and `trusted` are for a `command`")
            if self.token_env and self.token_file:
                raise ValueError("it needs one of `token_env` and `token_file`, not both")
            _check_address(self.url, secret=bool(self.token_env or self.token_file))
        secret = next((name for name in self.env if looks_secret(name)), None)
        if secret is not None and not self.trusted:
            raise ValueError(
                f"`{secret}` looks like a secret, which every command of the agent could read in the sandbox; it needs "
                "`trusted = true`"
            )
        if any("\0" in word for word in self.args):
            raise ValueError("an argument holds a NUL character")
        return self

    def offers(self, tool: str) -> bool:
        """Whether agents may use the tool that the server calls so."""
        return any(fnmatchcase(tool, pattern) for pattern in self.tools)


def _check_address(url: str, *, secret: bool) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("`url` is no address") from None
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise ValueError("`url` must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("`url` holds a user or password; put a token into `token_env` or `token_file`")
    if secret and parts.scheme == "http" and not _is_here(host):
        raise ValueError("a token is sent to another machine only by https://")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
