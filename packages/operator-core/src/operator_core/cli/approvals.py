"""``operator approvals``: calls of agents that wait for a person's word."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, open_api, run
from operator_core.cli.output import Output, flat
from operator_core.errors import ConfigError, NotFound
from operator_core.text import clip, exact

if TYPE_CHECKING:
    from operator_core.api.models import ApprovalView, TicketBrief
    from operator_core.api.protocol import Api

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Calls of agents that wait for a person's word.")

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="Id of the question, or how it begins.")]
Note = Annotated[str, typer.Option("--note", "-n", metavar="TEXT", help="A word with it, which the agent reads.")]

_MOST = 200
_LABELS = 6
_MARK = "  >        "
_INDENT = " " * 11
_START = re.compile("[0-9a-f]{4,31}")


@app.command("list")
def list_(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also those that were answered, newest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """What waits for a word, the most urgent first."""

    async def work() -> list[ApprovalView]:
        async with open_api(context) as api:
            return await api.approvals(pending=not every, limit=limit)

    found = run(work())
    out = Output()
    if as_json:
        _print(out, found)
        return
    for approval in found:
        _show(out, approval)
    if not found:
        out.line("Nothing was asked yet." if every else "Nothing waits for your word.")


@app.command()
def show(context: typer.Context, approval_id: ApprovalId, as_json: AsJson = False) -> None:
    """One question, with everything that would be executed."""

    async def work() -> ApprovalView:
        async with open_api(context) as api:
            return await _find(api, approval_id)

    approval = run(work())
    out = Output()
    if as_json:
        _print(out, approval)
    else:
        _show(out, approval, whole=True)


@app.command()
def approve(context: typer.Context, approval_id: ApprovalId, note: Note = "", as_json: AsJson = False) -> None:
    """Allow exactly this call, once; the session goes on."""
    _decide(context, approval_id, True, note, as_json)


@app.command()
def deny(context: typer.Context, approval_id: ApprovalId, note: Note = "", as_json: AsJson = False) -> None:
    """Deny this call; the session goes on, and the agent is told."""
    _decide(context, approval_id, False, note, as_json)


def _decide(context: typer.Context, approval_id: str, approve: bool, note: str, as_json: bool) -> None:
    async def work() -> tuple[ApprovalView, str | None]:
        from operator_core.cli.remote import nobody_works_there

        async with open_api(context) as api:
            asked = await _find(api, approval_id)
            done = await api.decide(asked.id, approve, note=note)
            ticket = await api.ticket(done.ticket_id)
            return done, await nobody_works_there(api, ticket.pinned_to)

    done, hint = run(work())
    out = Output()
    if as_json:
        _print(out, done)
        return
    word = "may run this call once" if approve else "is told that this call is denied"
    out.line(f"The agent of ticket #{done.ticket_id} {word}.")
    if hint:
        out.ours(hint)


async def _find(api: Api, start: str) -> ApprovalView:
    """The question whose id begins so.

    Raises:
        NotFound: None does.
        ConfigError: More than one does.
    """
    if not _START.fullmatch(start):
        return await api.approval(start)
    for pending in (True, False):
        found = [a for a in await api.approvals(pending=pending, limit=_MOST) if a.id.startswith(start)]
        if len(found) > 1:
            raise ConfigError(f"More than one question begins with {start}; write more of its id.")
        if found:
            return found[0]
    raise NotFound(f"No question begins with {start}; list them with `operator approvals list --all`.")


def _show(out: Output, approval: ApprovalView, *, whole: bool = False) -> None:
    state = f"{approval.state} by {approval.answered_by}" if approval.answered_by else approval.state
    out.line(f"{approval.id}  ticket #{approval.ticket_id}  {approval.phase}  {approval.tool}  {state}", style="bold")
    if approval.ticket is not None:
        _about(out, approval.ticket, whole=whole)
    out.line(f"  why      {flat(approval.why, 1000)}", mark=_INDENT)
    for name, value in approval.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines = exact(text if whole else clip(" ".join(text.split()), 160)).split("\n")
        # An agent chooses the names too: they must neither look like ours nor write lines of their own.
        out.line(f"  > {clip(' '.join(exact(name).split()), 40):<6} {lines[0]}", mark=_MARK)
        for line in lines[1:]:
            out.line(f"{_MARK}{line}", mark=_MARK)
    if whole:
        out.line(f"  hash     {approval.arguments_hash}")
    if approval.note:
        out.line(f"  note     {approval.note}", mark=_INDENT)
    moments = "  asked    {:%Y-%m-%d %H:%M:%S} UTC, expires {:%Y-%m-%d %H:%M:%S} UTC"
    out.line(moments.format(approval.asked_at, approval.expires_at))


def _about(out: Output, ticket: TicketBrief, *, whole: bool) -> None:
    """What the ticket is about, and what was said about it since: all of it is text that nobody may trust."""
    kind = "task" if ticket.kind == "task" else ticket.severity
    out.line(f"  ticket   {flat(ticket.invariant_name, 120)} ({flat(kind, 40)})", mark=_INDENT)
    if ticket.message.strip() != ticket.invariant_name:
        out.line(f"  about    {flat(ticket.message, 500 if whole else 160)}", mark=_INDENT)
    if ticket.labels:
        from operator_core.api.telling import telling_labels

        told = telling_labels(ticket.labels, ticket.invariant_name, ticket.severity)
        named = [f"{flat(name, 60)}={flat(value, 80)}" for name, value in told]
        shown = named if whole else named[:_LABELS]
        more = [f"and {len(named) - len(shown)} more"] if len(named) > len(shown) else []
        out.line(f"  labels   {', '.join([*shown, *more])}", mark=_INDENT)
    if ticket.observed is not None:
        from operator_core.api.happened import said_since

        out.line(f"  since    {said_since(ticket.observed, flat)}", mark=_INDENT)


def _print(out: Output, value: object) -> None:
    from operator_core.cli.remote import plain_data

    out.json(plain_data(value))
