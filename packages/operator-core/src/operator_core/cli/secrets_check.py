"""Whether the secrets of channels, doors, MCP servers and people are there, as far as this machine can see."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from operator_core.cli.finding import Finding

if TYPE_CHECKING:
    from operator_core.config import Settings
    from operator_core.db.engine import Database

__all__ = ["examine_secrets", "examine_tokens"]

_SOON = timedelta(days=7)


def examine_secrets(settings: Settings) -> list[Finding]:
    """One finding for each channel, door and MCP server; nothing is sent.

    What is missing here may be there where the server or the worker runs, if that is elsewhere.
    """
    return [*_channels(settings), *_doors(settings), *_mcp(settings)]


def _channels(settings: Settings) -> list[Finding]:
    from operator_core.announce.secret import access_of
    from operator_core.errors import OperatorError
    from operator_core.redaction import Redactor

    found = []
    for channel in settings.notify.channel:
        name = f"channel {channel.name}"
        try:
            access = access_of(channel, Redactor())
        except OperatorError as error:
            found.append(Finding(name, "wrong", str(error)))
            continue
        scheme = access.url.partition("://")[0]
        detail = f"its address ({scheme}://…){' and its secret are' if access.key else ' is'} there"
        found.append(Finding(name, "ok", f"{detail}; `operator notify test {channel.name}` tries it"))
    return found


def _doors(settings: Settings) -> list[Finding]:
    from operator_core.intake.reception import closed_doors

    found = []
    for intake in settings.intake:
        closed = closed_doors(settings.model_copy(update={"intake": (intake,)}))
        name = f"intake {intake.name}"
        found.append(Finding(name, "wrong", closed[0]) if closed else Finding(name, "ok", "its secret is there"))
    return found


def _mcp(settings: Settings) -> list[Finding]:
    from operator_core.agent_lab.toolbox.mcp_link import LinkLost
    from operator_core.work.mcp_servers import read_token

    found = []
    for server in settings.mcp_server:
        if server.token_env is None and server.token_file is None:
            continue
        name = f"mcp server {server.name}"
        try:
            read_token(server)
        except LinkLost as error:
            found.append(Finding(name, "wrong", str(error)))
        else:
            found.append(Finding(name, "ok", "its token is there"))
    return found


async def examine_tokens(database: Database) -> Finding:
    """Whether somebody can log in, next week too."""
    from operator_core import clock
    from operator_core.db.tokens import Tokens
    from operator_core.model.person import Role

    now = clock.now()
    every = await Tokens(database).list()
    valid = [token for token in every if token.state == "valid"]
    if not every:
        return Finding("tokens", "ok", "there is none yet; the first start of a server makes one and shows it")
    admins = [token for token in valid if token.role is Role.ADMIN]
    make = "make one with `operator token create NAME --role admin`"
    if not admins:
        return Finding("tokens", "warning", f"{len(valid)} valid, none of them an administrator's; {make}")
    if all(token.expires_at is not None and token.expires_at < now + _SOON for token in admins):
        return Finding("tokens", "warning", f"the last one of an administrator ends within a week; {make}")
    return Finding("tokens", "ok", f"{len(valid)} valid, {len(admins)} of them for administrators")
