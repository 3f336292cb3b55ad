"""``operator tickets``: look at tickets, open them by hand, and decide about them; also ``operator cancel``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from operator_core.cli.context import AsJson, invocation, open_api, open_server, open_store, run
from operator_core.cli.hints import completed
from operator_core.cli.output import Output, flat, plain, seconds
from operator_core.errors import ConfigError
from operator_core.model.ticket import Ticket, TicketKind, TicketStatus, plain_diagnosis

if TYPE_CHECKING:
    from operator_core.api.models import TicketDetail, TicketView
    from operator_core.client import Client
    from operator_core.db.tickets import TicketDB

__all__ = ["app"]

app = typer.Typer(help="Look at tickets, open them by hand, decide about them.", no_args_is_help=True)

_PAGE = 200
_OPEN = "is open"
_OPEN_WITHOUT = "is open; it has no check, so its work cannot be proved"

TicketId = Annotated[int, typer.Argument(metavar="ID", help="Number of the ticket.", show_default=False)]


@app.command("list")
def list_(
    context: typer.Context,
    status: Annotated[TicketStatus | None, typer.Option("--status", "-s", help="Only those in this state.")] = None,
    kind: Annotated[TicketKind | None, typer.Option("--kind", help="Only those of this kind.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List tickets, newest first."""

    async def work() -> list[Ticket]:
        from operator_core.db.tickets import TicketDB

        async with open_store(context) as database:
            return await TicketDB(database).list_tickets(status, kind=kind, limit=limit)

    out = Output()
    if as_json:
        # The same document wherever the tickets are.
        out.json([_document(ticket) for ticket in run(_listed(context, status, kind, limit))])
        return
    found: Sequence[Ticket | TicketView]
    found = run(_listed(context, status, kind, limit) if _there(context) else work())
    rows = [(t.id, _state(t), _kind(t), t.invariant_name, t.occurrence_count, t.last_seen_at, _about(t)) for t in found]
    out.table(("id", "state", "kind", "name", "seen", "last seen", "about"), rows, empty="There are no tickets.")


@app.command()
def show(context: typer.Context, ticket_id: TicketId, as_json: AsJson = False) -> None:
    """Show one ticket.

    That is: the closure report of its newest session, if there is one; then what it is about, what is checked, its
    sessions and everything that happened to it.
    """

    async def ask() -> dict[str, Any]:
        from operator_core.cli.remote import ticket_data

        async with open_server(context) as server:
            return ticket_data(await server.ticket(ticket_id))

    async def work() -> dict[str, Any]:
        from operator_core.api.briefs import read_observed
        from operator_core.cli.closing import closing_of
        from operator_core.cli.remote import plain_data
        from operator_core.db.audit_log import AuditLogDB
        from operator_core.db.ledger import ticket_history
        from operator_core.db.tickets import TicketDB

        async with open_store(context) as database:
            ticket = await TicketDB(database).get_ticket(ticket_id)
            sessions = await AuditLogDB(database).sessions(ticket_id=ticket_id)
            history = await ticket_history(database, ticket_id)
            closing = await closing_of(database, ticket_id)
            observed = await read_observed(database, ticket_id, ticket.status, ticket.last_seen_at)
        return {
            **ticket.to_dict(),
            "observed": plain_data(observed),
            "closing": closing._asdict() if closing else None,
            "sessions": [session._asdict() for session in sessions],
            "history": [{"seq": row.seq, "at": row.at, "kind": row.kind, **row.body} for row in history],
        }

    data = run(ask() if _there(context) else work())
    out = Output()
    if as_json:
        out.json(data)
        return
    closing = data["closing"] or {}
    if closing.get("markdown"):
        out.line(plain(completed(closing["markdown"])))
    _show(out, data)
    if data["session_id"] is not None:
        out.line()
        out.ours(f"Every step: `operator sessions show {data['session_id']}`")
        if data["status"] in (TicketStatus.RESOLVED, TicketStatus.ESCALATED) and not _there(context):
            out.ours(f"The proof, or what is missing: `operator audit export {data['session_id']} --format report`")


@app.command("open")
def open_(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is about, in a word.")],
    message: Annotated[str, typer.Argument(help="What is wrong, for the agent and for people.")],
    subject: Annotated[str | None, typer.Option("--subject", help="The configured system it is about.")] = None,
    invariant: Annotated[
        str | None, typer.Option("--invariant", help="The configured invariant that a repair must restore.")
    ] = None,
    severity: Annotated[Literal["critical", "warning", "info"], typer.Option("--severity")] = "warning",
    about: Annotated[str | None, typer.Option("--context", help="What the agent should know of the system.")] = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher ones are worked on first.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Open a ticket by hand. With --invariant its repair can be proved; without, it can only be done."""
    for value, what in ((name, "name"), (message, "message")):
        if not value.strip():
            raise ConfigError(f"The {what} of a ticket must say something; see `operator tickets open --help`.")

    async def ask() -> TicketDetail:
        async with open_server(context) as server:
            return await server.open_incident(
                name,
                message,
                severity=severity,
                context=about,
                invariant=invariant,
                subject=subject,
                priority=priority,
            )

    if _there(context):
        opened = run(ask())
        _done(opened, _OPEN if opened.check_hash else _OPEN_WITHOUT, as_json)
        return
    from operator_core.api.acts import check_of

    check = check_of(invocation(context).settings, subject, invariant)

    async def work() -> Ticket:
        from operator_core.db.tickets import TicketDB

        async with open_store(context, create=True) as database:
            return await TicketDB(database).open_ticket(
                name,
                message,
                severity=severity,
                subject_context=about or (check.subject.context if check else None),
                check=check,
                priority=priority,
                key=check.invariant.name if check else None,
            )

    _done(run(work()), _OPEN if check else _OPEN_WITHOUT, as_json)


@app.command()
def cancel(
    context: typer.Context,
    ticket_id: TicketId,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for a good moment: kill what it runs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cancel a ticket and stop its session; it wins over any late result.

    The session of a task ends between two of its phases, unless you say --now; that of an incident ends at once.
    """
    ticket = _change(
        context, lambda db: db.cancel_ticket(ticket_id, now=now), lambda server: server.cancel(ticket_id, now=now)
    )
    asked = "is stopped now" if now else f"is asked to stop; `operator cancel {ticket_id} --now` does not wait"
    _done(ticket, asked if ticket.status is TicketStatus.RUNNING else "is canceled", as_json)


@app.command()
def hold(context: typer.Context, ticket_id: TicketId, as_json: AsJson = False) -> None:
    """Keep workers and clean-up away from a ticket.

    A session that works on it already goes on.
    """
    ticket = _change(context, lambda db: db.hold_ticket(ticket_id), lambda server: server.hold(ticket_id, True))
    running = ticket.status is TicketStatus.RUNNING
    goes_on = f"is held; the session that works on it goes on, unless you say `operator tickets cancel {ticket_id}`"
    _done(ticket, goes_on if running else "is held", as_json)


@app.command()
def unhold(context: typer.Context, ticket_id: TicketId, as_json: AsJson = False) -> None:
    """Give a held ticket back."""
    ticket = _change(context, lambda db: db.unhold_ticket(ticket_id), lambda server: server.hold(ticket_id, False))
    _done(ticket, "is not held any more", as_json)


@app.command()
def resolve(
    context: typer.Context,
    ticket_id: TicketId,
    note: Annotated[str, typer.Option("--note", help="What was done.")] = "",
    as_json: AsJson = False,
) -> None:
    """Say that it is done; recorded as resolved by hand, not as proved."""
    if _there(context) and not note.strip():
        raise ConfigError("A server wants to know why; say with --note what was done.")
    ticket = _change(
        context, lambda db: db.resolve_ticket(ticket_id, note=note), lambda server: server.resolve(ticket_id, note)
    )
    _done(ticket, "is resolved by hand", as_json)


@app.command()
def reopen(context: typer.Context, ticket_id: TicketId, as_json: AsJson = False) -> None:
    """Give a closed or escalated ticket to the workers again."""
    ticket = _change(context, lambda db: db.reopen_ticket(ticket_id), lambda server: server.reopen(ticket_id))
    _done(ticket, "is open again", as_json)


def _there(context: typer.Context) -> bool:
    """Whether a server is asked."""
    return invocation(context).server is not None


async def _listed(
    context: typer.Context, status: TicketStatus | None, kind: TicketKind | None, limit: int
) -> list[TicketView]:
    found: list[TicketView] = []
    cursor: str | None = None
    async with open_api(context) as api:
        while len(found) < limit:
            states = [status.value] if status else []
            page = await api.tickets(
                status=states, kind=kind and kind.value, limit=min(_PAGE, limit - len(found)), cursor=cursor
            )
            found += page.items
            cursor = page.next
            if cursor is None:
                break
    return found


def _change(
    context: typer.Context,
    change: Callable[[TicketDB], Awaitable[Ticket]],
    ask: Callable[[Client], Awaitable[TicketDetail]],
) -> Ticket | TicketDetail:
    """Decide about a ticket, in the store or on the server."""

    async def there() -> TicketDetail:
        async with open_server(context) as server:
            return await ask(server)

    async def work() -> Ticket:
        from operator_core.db.tickets import TicketDB

        async with open_store(context) as database:
            return await change(TicketDB(database))

    return run(there()) if _there(context) else run(work())


def _document(ticket: Ticket | TicketView) -> dict[str, Any]:
    from operator_core.cli.remote import plain_data

    document: dict[str, Any] = ticket.to_dict() if isinstance(ticket, Ticket) else plain_data(ticket)
    return document


def _done(ticket: Ticket | TicketDetail, what: str, as_json: bool) -> None:
    out = Output()
    if as_json:
        out.json(_document(ticket))
    else:
        out.ours(f"Ticket #{ticket.id} {what}.")


def _state(ticket: Ticket | TicketView) -> str:
    state = ticket.status.value
    if ticket.reason and ticket.reason != state:
        state += f": {ticket.reason}"
    notes = [word for word, there in (("held", ticket.held), ("flapping", ticket.flapping)) if there]
    if ticket.pinned_to:
        notes.append(f"on {ticket.pinned_to}")
    return f"{state} ({', '.join(notes)})" if notes else state


def _kind(ticket: Ticket | TicketView) -> str:
    return "task" if ticket.kind is TicketKind.TASK else ticket.severity


def _about(ticket: Ticket | TicketView) -> str:
    """What an incident says; of a task, whose name says that already, how it is judged, or what it does."""
    if ticket.kind is not TicketKind.TASK:
        return ticket.message
    if not isinstance(ticket, Ticket):
        return ticket.doing or ticket.message
    spec = ticket.check_spec or {}
    checks = [check["command"] for check in spec.get("checks", ())]
    place = (spec.get("source") or {}).get("location")
    return " · ".join([*([f"in {place}"] if place else []), *checks]) or "no check"


def _task_fields(spec: dict[str, Any]) -> dict[str, object]:
    source = spec["source"]
    at = " at ".join(part for part in (source["ref"], (source["commit"] or "")[:12]) if part)
    limit = spec["budget_usd"]
    begins = f"{source['kind']} {source['location']} {at}".rstrip()
    return {
        "begins with": "nothing" if source["kind"] == "none" else begins,
        "checks": "\n".join(check["command"] for check in spec["checks"]) or "none: only a verifier agent judges it",
        "check files": "\n".join(f"{file['path']} ({file['sha256'][:12]})" for file in spec["check_files"]),
        "may change": "\n".join(spec["allow_change"]),
        "engine": f"{spec['engine']}, model {spec['model']}" if spec["model"] else spec["engine"],
        "budget": f"{limit:g} USD" if limit else None,
        "iterations": f"at most {spec['max_iterations']}",
        "profile": spec["profile"],
        "network": spec["network"],
    }


def _check_field(check: dict[str, Any] | None) -> str:
    return f"{check['subject']['name']} / {check['invariant']['name']}" if check else "none: nothing can be proved"


def _said_since(data: dict[str, Any]) -> str | None:
    from operator_core.api.happened import said_since
    from operator_core.api.models import Observed

    return data["observed"] and said_since(Observed.model_validate(data["observed"]), flat)


def _show(out: Output, data: dict[str, Any]) -> None:
    from operator_core.api.happened import event_word, happened

    check, task = data["check_spec"], data["kind"] == TicketKind.TASK.value
    closing = data["closing"] or {}
    out.line(f"# Ticket #{data['id']}: {data['invariant_name']}")
    out.fields(
        {
            "state": f"{data['status']}: {data['reason']}" if data["reason"] else data["status"],
            "held": "yes" if data["held"] else None,
            "flapping": "yes" if data["flapping"] else None,
            "severity": None if task else data["severity"],
            "kind": data["kind"],
            "pinned to": data["pinned_to"],
            "prompt" if task else "message": data["message"],
            "asks": closing.get("question") if data["status"] == TicketStatus.WAITING_FOR_INPUT else None,
            "submitted" if task else "first seen": seconds(data["first_seen_at"]),
            "last seen": None if task else f"{seconds(data['last_seen_at'])} ({data['occurrence_count']} times)",
            "said since": _said_since(data),
            "diagnosis": plain_diagnosis(data["diagnosis"]),
            "resolved": seconds(data["resolved_at"]),
            "watched until": seconds(data["watch_until"]),
            "reopened from": data["reopened_from"],
            **(_task_fields(check) if task and check else {"check": _check_field(check)}),
            "check hash": data["check_hash"],
            "session folder": closing.get("folder"),
        }
    )
    out.line()
    rows = [
        (s["session_id"], s["status"], seconds(s["started_at"]), s["entries"], s["outcome_summary"])
        for s in data["sessions"]
    ]
    out.table(("session", "state", "started", "entries", "outcome"), rows, empty="Nobody has worked on it yet.")
    out.line()
    events = [
        (
            seconds(h["at"]),
            f"{h.get('old') or '-'} -> {h['new']}" if "new" in h else event_word(h["kind"]),
            h.get("reason") or happened(h["kind"], h),
            h.get("actor"),
        )
        for h in data["history"]
    ]
    out.table(("when", "what", "reason", "who"), events)
