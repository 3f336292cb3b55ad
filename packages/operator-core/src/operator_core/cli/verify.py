"""``operator verify``: judge the work on a finished ticket once more, here or by a worker of a server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, invocation, open_server, open_store, run
from operator_core.cli.output import Output
from operator_core.errors import ConfigError, StoreUnavailable

if TYPE_CHECKING:
    from operator_core.api.models import SecondLookView, TicketDetail, VerdictView
    from operator_core.client import Client
    from operator_core.work.rejudge import Rejudged

__all__ = ["verify"]

_LOOK_S = 1.0


def verify(
    context: typer.Context,
    ticket_id: Annotated[int, typer.Argument(metavar="TICKET", help="A ticket whose work has ended.")],
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="CMD", help="Instead of the task's own; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Of the verifier agent.")] = None,
    checks_only: Annotated[
        bool, typer.Option("--checks-only", help="Without the verifier agent, and so without a model.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Judge finished work again: after a check, a model or a policy changed. The ticket stays as it is.

    With --server a worker of that server does it, and this command waits for what it finds. Exit code 0 if it is
    verified, 1 if it is not.
    """
    out = Output()
    if invocation(context).server is not None:
        if check is not None or model is not None:
            raise ConfigError("--check and --model are for judging on this machine; leave them or --server out.")
        found = run(_there(context, ticket_id, checks_only, out, quiet=as_json))
        if found is None:
            raise KeyboardInterrupt
    else:
        found = run(_here(context, ticket_id, check, model, checks_only, quiet=as_json))
    if as_json:
        out.json(found)
    else:
        _tell(out, found)
    raise typer.Exit(0 if found["verdict"]["kind"] == "verified" else 1)


async def _here(
    context: typer.Context,
    ticket_id: int,
    check: list[str] | None,
    model: str | None,
    checks_only: bool,
    *,
    quiet: bool,
) -> dict[str, Any]:
    from operator_core.agent_lab.engine import open_engine, unused_engine
    from operator_core.db.tickets import TicketDB
    from operator_core.model.task import TaskCheck
    from operator_core.monitor.recheck import Recheck
    from operator_core.work.rejudge import rejudge
    from operator_core.work.session import SessionTools
    from operator_core.work.submit import usable_check

    settings = invocation(context).settings
    out = Output()
    async with open_store(context) as database:
        ticket = await TicketDB(database).get_ticket(ticket_id)
        asks = not checks_only and (ticket.check_spec or {}).get("profile") == "shraga"
        try:
            engine = open_engine(settings.model) if asks else unused_engine(settings.model)
        except ConfigError as error:
            alone = f"The checks alone need no model: `operator verify {ticket_id} --checks-only`."
            raise ConfigError(f"{error} {alone}") from None
        try:
            say = (lambda line: None) if quiet else out.say
            tools = SessionTools.on(database, settings, engine, say, look_with_checker=Recheck().look)
            checks = None if check is None else [TaskCheck(command=usable_check(command)) for command in check]
            return _document(
                ticket_id, await rejudge(tools, ticket_id, checks=checks, model=model, checks_only=checks_only)
            )
        finally:
            await engine.close()


async def _there(
    context: typer.Context, ticket_id: int, checks_only: bool, out: Output, *, quiet: bool
) -> dict[str, Any] | None:
    """What a worker of the server found; None: the person does not want to wait any more.

    Raises:
        VerificationError: It could not be judged; the sentence says why.
    """
    from operator_core.errors import VerificationError

    async with open_server(context) as server:
        ticket = await server.verify(ticket_id, checks_only=checks_only)
        look = await _ended(server, ticket, out, quiet=quiet)
        if look is None:
            return None
        if look.verdict is None:
            raise VerificationError(look.why or "It could not be judged; ask again.")
        return _document_there(await server.ticket(ticket_id), look)


async def _ended(server: Client, ticket: TicketDetail, out: Output, *, quiet: bool) -> SecondLookView | None:
    from operator_core.cli.away import Away
    from operator_core.cli.until import until_signal

    asked, stop, told = ticket.second_looks[0].id, until_signal(), ""
    away = Away((lambda line: None) if quiet else out.ours)
    try:
        while True:
            look = next((one for one in ticket.second_looks if one.id == asked), None)
            if look is None or look.ended_at is not None:
                return look
            if stop.is_set():
                if not quiet:
                    out.ours(f"It stays asked for; look with `operator tickets show {ticket.id}`.")
                return None
            line = look.stalled or ("A worker is at it." if look.state == "running" else "It waits for a worker.")
            if line != told and not quiet:
                out.ours(line)
            told = line
            out.working(None if quiet else f"Ticket #{ticket.id} is judged again …")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await stop.wait()
            try:
                ticket = await server.ticket(ticket.id)
                away.over()
            except StoreUnavailable as error:
                away.met(error)
    finally:
        out.working(None)


def _document(ticket_id: int, judged: Rejudged) -> dict[str, Any]:
    return {
        "ticket": ticket_id,
        "verdict": judged.verdict.to_dict(),
        "before": judged.before.to_dict() if judged.before else None,
        "session": judged.session_id,
        "judged": judged.judged,
        "unchanged": judged.unchanged,
        "notes": list(judged.notes),
    }


def _document_there(ticket: TicketDetail, look: SecondLookView) -> dict[str, Any]:
    judged = next((s.judges for s in ticket.sessions if s.session_id == look.session_id), None)
    verdict = next((v for v in ticket.verdicts if v.session_id == look.session_id), None)
    before = next((v for v in ticket.verdicts if v.session_id == judged), None)
    alone: dict[str, Any] = {"kind": look.verdict, "why": look.why, "clauses": [], "check_hash": None, "failed": []}
    return {
        "ticket": ticket.id,
        "verdict": alone if verdict is None else _verdict(verdict),
        "before": None if before is None else _verdict(before),
        "session": look.session_id,
        "judged": judged,
        "unchanged": look.unchanged,
        "notes": [],
    }


def _verdict(view: VerdictView) -> dict[str, Any]:
    return view.model_dump(include={"kind", "why", "clauses", "check_hash", "failed"})


def _tell(out: Output, found: dict[str, Any]) -> None:
    verdict, before = found["verdict"], found["before"]
    out.line(f"Ticket #{found['ticket']}, the work of session {found['judged']}:")
    out.line(f"now: {verdict['kind']}: {verdict['why']}")
    out.line(f"then: {before['kind']}: {before['why']}" if before else "then: it was not judged")
    for clause in verdict["clauses"]:
        out.line(f"  {clause['clause']}: {clause['state']}: {clause['why']}")
    for note in found["notes"]:
        out.line(f"  {note}")
    if found["unchanged"] is False:
        out.line("The workspace is not what was judged then: somebody has changed it since.")
    out.ours(f"Every step: `operator sessions show {found['session']}`; the ticket stays as it is.")
    if verdict["kind"] != "verified":
        out.ours(f"For a new attempt: `operator tickets reopen {found['ticket']}`")
