"""``operator reply`` and ``operator steer``: what people say to a session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, invocation, open_server, open_store, run
from operator_core.cli.output import Output
from operator_core.errors import ConfigError

if TYPE_CHECKING:
    from operator_core.db.engine import Database
    from operator_core.model.ticket import Ticket

__all__ = ["nobody_works", "reply", "spoken", "steer"]

TicketId = Annotated[int, typer.Argument(metavar="TICKET", help="Number of the ticket.", show_default=False)]
Text = Annotated[str, typer.Argument(metavar="TEXT|-", help="What you say; - reads it from standard input.")]

_MOST_BYTES = 400_000


def reply(context: typer.Context, ticket_id: TicketId, text: Text, as_json: AsJson = False) -> None:
    """Answer a session that waits for input; it goes on where it was."""
    _say(context, ticket_id, text, as_json, answer=True)


def steer(context: typer.Context, ticket_id: TicketId, text: Text, as_json: AsJson = False) -> None:
    """Say something to a session that works; it reads it before its next step."""
    _say(context, ticket_id, text, as_json, answer=False)


def _say(context: typer.Context, ticket_id: int, text: str, as_json: bool, *, answer: bool) -> None:
    words = spoken(text)
    if not words.strip():
        raise ConfigError("The message must say something; write it behind the number of the ticket.")

    async def ask() -> tuple[dict[str, Any], str | None]:
        from operator_core.cli.remote import nobody_works_there, ticket_data

        async with open_server(context) as server:
            ticket = await (server.reply(ticket_id, words) if answer else server.steer(ticket_id, words))
            return ticket_data(ticket), await nobody_works_there(server, ticket.pinned_to)

    async def work() -> tuple[dict[str, Any], str | None]:
        from operator_core.db.tickets import TicketDB

        async with open_store(context) as database:
            tickets = TicketDB(database)
            await (tickets.reply(ticket_id, words) if answer else tickets.steer(ticket_id, words))
            ticket = await tickets.get_ticket(ticket_id)
            return ticket.to_dict(), await nobody_works(database, ticket)

    ticket, hint = run(ask() if invocation(context).server is not None else work())
    out = Output()
    if as_json:
        out.json(ticket)
        return
    later = "It was passed on; it is read with the next step, unless the work ends before."
    out.line(f"Ticket #{ticket_id} is open again, and goes on with your answer." if answer else later)
    if hint:
        out.ours(hint)


def spoken(text: str) -> str:
    """The text itself, or what standard input says when it is ``-``.

    Raises:
        ConfigError: Standard input is no UTF-8 text, or much too long.
    """
    if text != "-":
        return text
    data = sys.stdin.buffer.read(_MOST_BYTES + 1) if sys.stdin is not None else b""
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"Standard input has more than {_MOST_BYTES} bytes; put the details into a file.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError("Standard input is no UTF-8 text; convert it first, for example with `iconv`.") from None


async def nobody_works(database: Database, ticket: Ticket) -> str | None:
    """The sentence that says that there is no worker which could take the ticket; None: there is one."""
    from operator_core.api.listing import read_workers
    from operator_core.api.staffing import nobody_for

    return nobody_for(await read_workers(database), ticket.pinned_to)
