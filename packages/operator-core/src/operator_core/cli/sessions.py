"""``operator sessions``: what agents did, as a list, as a whole, and while it happens."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.away import Away
from operator_core.cli.context import AsJson, invocation, run
from operator_core.cli.output import Output, dumps, seconds, style_of
from operator_core.cli.remote import open_journal
from operator_core.errors import StoreUnavailable

if TYPE_CHECKING:
    from operator_core.db.audit_log import SessionInfo
    from operator_core.model.entry import Entry

__all__ = ["SessionId", "app", "list_sessions", "show_session"]

app = typer.Typer(help="What agents did: each session is one attempt at a ticket.", no_args_is_help=True)

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.", show_default=False)]

_LOOK_S = 0.3


@app.command("list")
def list_(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = 20,
    ticket: Annotated[int | None, typer.Option("--ticket", help="Only those of this ticket.")] = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first."""
    list_sessions(context, limit, ticket, as_json)


@app.command()
def show(
    context: typer.Context,
    session: SessionId,
    full: Annotated[bool, typer.Option("--full", help="Whole texts instead of summaries.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one session: every step, its result, and the verdict."""
    show_session(context, session, full, as_json)


@app.command()
def tail(
    context: typer.Context,
    session: SessionId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the session ends.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last entries.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", "-j", help="One JSON document per line and entry.")] = False,
) -> None:
    """Show the end of a session, and with --follow what comes."""
    run(_tail(context, session, follow, lines, as_json))


def list_sessions(context: typer.Context, limit: int, ticket: int | None, as_json: bool) -> None:
    """Print the newest sessions."""

    async def work() -> list[SessionInfo]:
        async with open_journal(context) as journal:
            return await journal.sessions(limit=limit, ticket_id=ticket)

    found = run(work())
    out = Output()
    if as_json:
        out.json([session._asdict() for session in found])
        return
    rows = [
        (
            s.session_id,
            s.status,
            "explorer" if s.ticket_id is None else f"#{s.ticket_id} {s.invariant_name or ''}",
            seconds(s.started_at),
            s.entries,
            s.outcome_summary,
        )
        for s in found
    ]
    out.table(("session", "state", "ticket", "started", "entries", "outcome"), rows, empty="There are no sessions.")


def show_session(context: typer.Context, session_id: str, full: bool, as_json: bool) -> None:
    """Print one session."""

    async def work() -> tuple[SessionInfo, list[Entry]]:
        async with open_journal(context) as journal:
            return await journal.session(session_id), await journal.entries(session_id)

    from operator_core.cli.journal_view import entry_dict, entry_lines, header

    session, entries = run(work())
    out = Output()
    if as_json:
        out.json({**session._asdict(), "journal": [entry_dict(entry) for entry in entries]})
        return
    out.fields(header(session))
    out.line()
    phase: str | None = None
    for entry in entries:
        lines = list(entry_lines(entry, full=full))
        if lines and entry.phase != phase:
            phase = entry.phase
            out.line(f"## {phase}")
        for line in lines:
            out.line(line, style=_style(line))


async def _tail(context: typer.Context, session_id: str, follow: bool, lines: int, as_json: bool) -> None:
    from operator_core.cli.journal_view import entry_dict, entry_lines

    out = Output()

    def put(entries: list[Entry]) -> None:
        for entry in entries:
            if as_json:
                out.line(dumps(entry_dict(entry)))
                continue
            for line in entry_lines(entry):
                out.line(line, style=_style(line))

    there = invocation(context).server is not None
    away = Away(Output(sys.stderr).ours)
    async with open_journal(context) as audit:
        session = await audit.session(session_id)
        entries = await audit.entries(session_id)
        put(entries[len(entries) - min(lines, len(entries)) :])
        seen = entries[-1].seq if entries else -1
        while follow:
            try:
                # The state is read before the entries, so that the last ones are not missed.
                session = await audit.session(session_id)
                news = await audit.entries(session_id, after=seen)
                away.over()
            except StoreUnavailable as error:
                if not there:
                    raise
                away.met(error)
                await asyncio.sleep(_LOOK_S)
                continue
            put(news)
            seen = news[-1].seq if news else seen
            if session.status != "running":
                break
            await asyncio.sleep(_LOOK_S)


def _style(line: str) -> str | None:
    return style_of(line[9:] if line[2:3] == ":" else line)
