"""``operator token``: who may use the server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, open_store, run
from operator_core.cli.output import Output, seconds
from operator_core.errors import ConfigError
from operator_core.model.person import Role

if TYPE_CHECKING:
    from operator_core.db.tokens import TokenInfo

__all__ = ["token_app"]

token_app = typer.Typer(help="Who may use the API and the console.", no_args_is_help=True)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_PERSON = "person"


@token_app.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the ledger calls its bearer.")],
    role: Annotated[Role, typer.Option("--role", "-r", help="viewer reads; operator acts; admin also gives tokens.")],
    expires: Annotated[
        str | None, typer.Option("--expires", "-e", metavar="TIME", help="E.g. 12h, 30d or 1y; default: never.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and show it, once: only its digest is stored."""
    expires_s = None if expires is None else _duration(expires)

    async def work() -> tuple[str, TokenInfo]:
        from operator_core.db.tokens import Tokens

        async with open_store(context, create=True) as database:
            return await Tokens(database).create(name, role, by=_PERSON, expires_s=expires_s)

    text, info = run(work())
    out = Output()
    if as_json:
        out.json({**_values(info), "token": text})
        return
    until = f"until {_moment(info.expires_at)}" if info.expires_at else "until it is revoked"
    out.line(f"{info.name} ({info.role.value}, valid {until}); this is shown only now:")
    out.line(text)


@token_app.command("list")
def list_tokens(context: typer.Context, as_json: AsJson = False) -> None:
    """List tokens, the newest first; never their secrets."""

    async def work() -> list[TokenInfo]:
        from operator_core.db.tokens import Tokens

        async with open_store(context) as database:
            return await Tokens(database).list()

    found = run(work())
    out = Output()
    if as_json:
        out.json([_values(info) for info in found])
        return
    out.table(
        ["id", "name", "role", "state", "created", "by", "expires", "last used"],
        [
            (
                info.id,
                info.name,
                info.role.value,
                info.state,
                _moment(info.created_at),
                info.created_by,
                _moment(info.expires_at) or "never",
                _moment(info.last_used_at) or "never",
            )
            for info in found
        ],
        empty="There is no token; the first `operator serve` makes one, or `operator token create NAME --role admin`.",
    )


@token_app.command("revoke")
def revoke(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="ID|NAME", help="Of the token.")],
    as_json: AsJson = False,
) -> None:
    """End a token, and every login that was made with it; live streams end within a minute."""

    async def work() -> TokenInfo:
        from operator_core.db.tokens import Tokens

        async with open_store(context) as database:
            return await Tokens(database).revoke(token, by=_PERSON)

    info = run(work())
    out = Output()
    if as_json:
        out.json(_values(info))
        return
    out.line(f"The token {info.id} ({info.name}) is revoked.")


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9})([smhdwy])", text.strip())
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"{text!r} is no time; write a number and a unit, e.g. 12h, 30d or 1y.")
    return int(match[1]) * _UNITS[match[2]]


def _moment(moment: object) -> str | None:
    from datetime import datetime

    return seconds(moment.isoformat()) if isinstance(moment, datetime) else None


def _values(info: TokenInfo) -> dict[str, Any]:
    return {**info._asdict(), "role": info.role.value, "state": info.state}
