"""The MCP servers of an agent's phase: where each of them runs, and what it is given."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from operator_core.agent_lab.fence import Fence
from operator_core.agent_lab.toolbox.mcp import McpTools, Offer, offer_of, offers_of
from operator_core.agent_lab.toolbox.mcp_link import Connect, LinkLost, by_address, by_program
from operator_core.agent_lab.toolbox.tool import Tool
from operator_core.config import Settings
from operator_core.model.entry import Entry
from operator_core.model.mcp import McpServer
from operator_core.redaction import Redactor, looks_secret
from operator_core.sandbox import Policy, Sandbox, open_sandbox
from operator_core.work.session import SessionBase

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

__all__ = ["Servers", "policy_with", "read_token", "servers_of"]

_LONGEST_TOKEN = 8192


def servers_of(settings: Settings, profile: str) -> tuple[McpServer, ...]:
    """Those that an agent with this profile may use."""
    return tuple(server for server in settings.mcp_server if profile in server.profiles)


def policy_with(policy: Policy, servers: Sequence[McpServer]) -> Policy:
    """A policy with room for the programs among them that run in the agent's sandbox."""
    inside = [server for server in servers if server.command is not None and not server.trusted]
    if not inside:
        return policy
    readable = (*policy.readable, *(path for server in inside for path in server.readable))
    return replace(policy, readable=readable, limits=replace(policy.limits, jobs=policy.limits.jobs + len(inside)))


class Servers:
    """The servers of one phase.

    Args:
        session: For its journal's redactor and its folder.
        servers: See :func:`servers_of`.
        sandbox: The agent's own.
        policy: Of that sandbox.
        fence: Of the conversation.
    """

    def __init__(
        self, session: SessionBase, servers: Sequence[McpServer], sandbox: Sandbox, policy: Policy, fence: Fence
    ) -> None:
        self._session, self._sandbox, self._policy = session, sandbox, policy
        self._redactor: Redactor = session.tools.audit.database.redactor
        self._outside: Sandbox | None = None
        self._tools = McpTools(
            [(server, self._way(server)) for server in servers],
            fence=fence,
            clean=self._redactor.text,
            say=session.tools.say,
        )

    async def offers(self, begun: Entry | None) -> list[Offer]:
        """What the agent is offered: as its conversation began with, if it has begun."""
        if begun is not None:
            return offers_of(begun.body)
        # As the journal will have it, so that whoever resumes offers the same.
        return [offer_of(self._redactor.tree(offer.body)) for offer in await self._tools.ask()]

    def kit(self, offers: Sequence[Offer]) -> tuple[Tool, ...]:
        """The tools of these offers."""
        return self._tools.kit(offers)

    async def close(self) -> None:
        """End the connections and the programs."""
        try:
            await self._tools.close()
        finally:
            if self._outside is not None:
                await self._outside.close()

    # ---- the way to each

    def _way(self, server: McpServer) -> Connect:
        if server.url is not None:
            return by_address(server, lambda: self._token(server))

        @asynccontextmanager
        async def connect(ended: Callable[[str], None]) -> AsyncIterator[TransportStreams]:
            sandbox = await self._trusted() if server.trusted else self._sandbox
            async with by_program(server, sandbox, self._environment(server))(ended) as streams:
                yield streams

        return connect

    def _environment(self, server: McpServer) -> dict[str, str]:
        env = {name: os.environ[name] for name in server.env if name in os.environ}
        self._redactor.learn(value for name, value in env.items() if looks_secret(name))
        return env

    async def _trusted(self) -> Sandbox:
        """Where programs run that are trusted: no sandbox, but they end with the session."""
        if self._outside is None:
            folder = self._session.tools.state.session(self._session.session_id)
            policy = Policy(workspace=self._policy.workspace, limits=self._policy.limits)
            self._outside = open_sandbox(
                "none", policy, session_dir=folder / f"mcp-{self._session.generation}", redact=self._redactor.filter
            )
            await self._outside.start()
        return self._outside

    def _token(self, server: McpServer) -> str | None:
        """The bearer token for an address.

        Raises:
            LinkLost: It cannot be read.
        """
        found = read_token(server)
        if found is not None:
            self._redactor.learn([found])
        return found


def read_token(server: McpServer) -> str | None:
    """The bearer token for the address of a server; None: it needs none.

    Raises:
        LinkLost: It cannot be read.
    """
    if server.token_file is not None:
        try:
            with Path(server.token_file).expanduser().open("rb") as file:
                found = file.read(_LONGEST_TOKEN).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise LinkLost(f"its token file {server.token_file} cannot be read") from None
    elif server.token_env is not None:
        found = os.environ.get(server.token_env, "").strip()
    else:
        return None
    if not found or not found.isprintable():
        raise LinkLost("its token is missing; set it where `token_env` or `token_file` says")
    return found
