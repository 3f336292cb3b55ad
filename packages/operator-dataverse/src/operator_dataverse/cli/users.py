"""``operator-dataverse users``: what is known of people (rows B-047 and B-050)."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output, seconds
from operator_core.errors import ConfigError, OperatorError
from operator_core.text import printable
from operator_dataverse.cli.connection import DryRun, open_dataverse
from operator_dataverse.tables.user import UserRow

__all__ = ["app"]

app = typer.Typer(help="What is known of people and of the set-up of their dev boxes.", no_args_is_help=True)

Email = Annotated[str, typer.Argument(metavar="ADDRESS", help="E-mail address of the person.", show_default=False)]
_UNKNOWN = 1
_FAILED = 2


@app.command("list")
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List everybody."""

    async def work() -> list[UserRow]:
        from operator_dataverse.fleet.users import Users

        async with open_dataverse(context) as dataverse:
            return await Users(dataverse).all()

    users = run(work())
    out = Output()
    if as_json:
        from operator_dataverse.fleet.users import known_of

        out.json([known_of(user) for user in users])
        return
    rows = [
        (user.email, user.devbox_name, user.devbox_status or "-", user.auth_status or "-", user.onboarding_step or "-")
        for user in users
    ]
    out.table(("person", "box", "box status", "signed in", "step"), rows, empty="Nobody is known.")


@app.command()
def show(context: typer.Context, email: Email, as_json: AsJson = False) -> int:
    """Show what is known of a person.

    Exit code 0: it is known; 1: it is not; 2: nobody could look.
    """

    async def work() -> UserRow | None:
        from operator_dataverse.fleet.users import Users

        async with open_dataverse(context) as dataverse:
            return await Users(dataverse).get(email)

    try:
        user = run(work())
    except OperatorError as error:
        # A script must be able to tell "unknown" from "could not look".
        print(f"Error: {' '.join(printable(str(error)).split())}", file=sys.stderr)
        return _FAILED
    out = Output()
    if user is None:
        if as_json:
            out.json({"found": False, "email": email})
        else:
            out.line(f"Nothing is known of {email}.")
        return _UNKNOWN
    _tell(user, as_json)
    return 0


@app.command("set")
def set_(
    context: typer.Context,
    email: Email,
    values: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE…", help="Nothing after the = takes the value away.", show_default=False),
    ],
    seen: Annotated[bool, typer.Option("--seen", help="It is also a sign of life of the personal manager.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write what is known of a person.

    KEY is azure_ad_id, devbox_name, devbox_status, claude_auth_status, manager_status, onboarding_step, capacity or
    labels.
    """
    wanted = _wanted(values)

    async def work() -> UserRow | None:
        from operator_dataverse.fleet.users import Users, address, columns_of

        if dry_run:
            address(email)
            columns_of(wanted)
            return None
        async with open_dataverse(context) as dataverse:
            users = Users(dataverse)
            return await users.seen(email, values=wanted) if seen else await users.set(email, wanted)

    user = run(work())
    if user is not None:
        _tell(user, as_json)
        return
    out = Output()
    if as_json:
        out.json({"dry_run": True, "email": email, "values": wanted})
    else:
        out.fields({"would write": email, **{key: value or "(nothing)" for key, value in wanted.items()}})


def _wanted(values: list[str]) -> dict[str, str | None]:
    wanted: dict[str, str | None] = {}
    for one in values:
        key, sign, value = one.partition("=")
        if not sign or not key:
            raise ConfigError(f"`{one:.60}` is no KEY=VALUE; write, for example, devbox_status=Succeeded.")
        wanted[key] = value or None
    return wanted


def _tell(user: UserRow, as_json: bool) -> None:
    from operator_dataverse.fleet.users import known_of

    known = known_of(user)
    out = Output()
    if as_json:
        out.json({"found": True, **known})
        return
    known |= {"labels": ", ".join(user.labels), "last_seen": seconds(known["last_seen"])}
    known |= {"worker_seen": seconds(known["worker_seen"])}
    out.fields(known)
