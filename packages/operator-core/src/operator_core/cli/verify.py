"""``operator verify``: judge the work on a finished ticket once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, invocation, open_store, run
from operator_core.cli.output import Output

if TYPE_CHECKING:
    from operator_core.work.rejudge import Rejudged

__all__ = ["verify"]


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

    Exit code 0 if it is verified, 1 if it is not.
    """

    async def work() -> Rejudged:
        from operator_core.agent_lab.engine import open_engine, unused_engine
        from operator_core.clock import Clock
        from operator_core.db.audit_log import AuditLogDB
        from operator_core.db.queue import WorkQueue
        from operator_core.db.tickets import TicketDB
        from operator_core.model.task import TaskCheck
        from operator_core.monitor.recheck import Recheck
        from operator_core.work.rejudge import rejudge
        from operator_core.work.session import SessionTools
        from operator_core.work.state import StateFolder
        from operator_core.work.submit import usable_check

        settings = invocation(context).settings
        out = Output()
        async with open_store(context) as database:
            ticket = await TicketDB(database).get_ticket(ticket_id)
            asks = not checks_only and (ticket.check_spec or {}).get("profile") == "shraga"
            engine = open_engine(settings.model) if asks else unused_engine(settings.model)
            try:
                tools = SessionTools(
                    settings,
                    AuditLogDB(database),
                    WorkQueue(database),
                    engine,
                    StateFolder(settings, database),
                    Clock(),
                    (lambda line: None) if as_json else out.say,
                    Recheck().look,
                )
                checks = None if check is None else [TaskCheck(command=usable_check(command)) for command in check]
                return await rejudge(tools, ticket_id, checks=checks, model=model, checks_only=checks_only)
            finally:
                await engine.close()

    judged = run(work())
    out = Output()
    if as_json:
        out.json(
            {
                "ticket": ticket_id,
                "verdict": judged.verdict.to_dict(),
                "before": judged.before.to_dict() if judged.before else None,
                "session": judged.session_id,
                "judged": judged.judged,
                "unchanged": judged.unchanged,
                "notes": list(judged.notes),
            }
        )
    else:
        _tell(out, ticket_id, judged)
    raise typer.Exit(0 if judged.verdict.kind.value == "verified" else 1)


def _tell(out: Output, ticket_id: int, judged: Rejudged) -> None:
    out.line(f"Ticket #{ticket_id}, the work of session {judged.judged}:")
    out.line(f"now: {judged.verdict.kind.value}: {judged.verdict.why}")
    out.line(f"then: {judged.before.kind.value}: {judged.before.why}" if judged.before else "then: it was not judged")
    for clause in judged.verdict.clauses:
        out.line(f"  {clause.clause.value}: {clause.state.value}: {clause.why}")
    for note in judged.notes:
        out.line(f"  {note}")
    if judged.unchanged is False:
        out.line("The workspace is not what was judged then: somebody has changed it since.")
    out.line(f"Every step: `operator sessions show {judged.session_id}`; the ticket stays as it is.")
    if judged.verdict.kind.value != "verified":
        out.line(f"For a new attempt: `operator tickets reopen {ticket_id}`")
