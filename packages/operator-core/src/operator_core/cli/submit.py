"""``operator submit``: hand over a task, and if wanted wait for its proof."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from operator_core.cli.context import AsJson, invocation, open_server, open_store, run
from operator_core.cli.output import Output
from operator_core.cli.people import nobody_works, spoken
from operator_core.model.ticket import Reason, TicketStatus

if TYPE_CHECKING:
    from operator_core.cli.closing import Closing

__all__ = ["submit"]

_MANY = "; repeatable."
_STAYS = "Ticket #{0} stays as it is; cancel it with `operator cancel {0}`."
_NO_CHECK = {
    "shraga": "It has no check, so only a verifier agent will judge it.",
    "operator": "It has no check, so nothing can be proved.",
}


def submit(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT|-", help="What is to be done; - reads standard input.")],
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="PATH|URL", help="A repository, or a folder that is copied.")
    ] = None,
    ref: Annotated[
        str | None, typer.Option("--ref", help="Branch, tag or commit; default: what is checked out.")
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="CMD", help="Must end with 0 when the work is right" + _MANY)
    ] = None,
    check_file: Annotated[
        list[str] | None,
        typer.Option("--check-file", metavar="PATH[=PLACE]", help="A file that the checks need, frozen now" + _MANY),
    ] = None,
    allow_change: Annotated[
        list[str] | None,
        typer.Option("--allow-change", metavar="PATH", help="A test file that the work may change" + _MANY),
    ] = None,
    engine: Annotated[
        Literal["anthropic", "claude-code"] | None, typer.Option("--engine", help="Default: [tasks] engine.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Default: [model] model.")] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="USD", help="Over all phases; default: [limits] cost_usd.")
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option("--max-iterations", help="How often it may try: 1 to 10.")
    ] = None,
    profile: Annotated[
        Literal["shraga", "operator"], typer.Option("--profile", help="operator: checks only, no verifier agent.")
    ] = "shraga",
    network: Annotated[
        Literal["none", "allowlist", "host"] | None,
        typer.Option("--network", help="Of its commands and checks; default: none, or allowlist with --allow-host."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="HOST[:PORT]", help="What they reach through the proxy" + _MANY),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Short, for people; default: the prompt's first line.")
    ] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="WORKER", help="Only the worker of that name.")] = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher ones are worked on first.")] = 0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end: exit code 0 resolved, 1 not, 3 it asks something.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait, and show every step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Hand over a task. It is done when its checks and a verifier say so."""
    from operator_core.errors import ConfigError

    if follow and as_json:
        raise ConfigError("--json prints one document at the end, so there is nothing to --follow; leave one out.")
    words = spoken(prompt)
    if not words.strip():
        raise ConfigError("The prompt must say what is to be done.")
    there = invocation(context).server is not None
    out = Output()
    options: dict[str, Any] = {
        "repo": repo,
        "ref": ref,
        "checks": check or (),
        "check_files": check_file or (),
        "allow_change": allow_change or (),
        "engine": engine,
        "model": model,
        "budget_usd": budget,
        "max_iterations": max_iterations,
        "profile": profile,
        "name": name,
        "network": network or ("allowlist" if allow_host else "none"),
        "allow_hosts": allow_host or (),
        "priority": priority,
        "pinned_to": on,
    }

    def say(line: str) -> None:
        if not as_json:
            out.ours(line)

    def opened(number: int | None) -> None:
        say(f"Ticket #{number} is open.")
        if not check:
            say(_NO_CHECK[profile])
        if not (wait or follow):
            say(f"Look at it with `operator tickets show {number}`.")

    async def ask() -> tuple[dict[str, Any] | None, Closing | None]:
        from operator_core.cli.closing import Closing
        from operator_core.cli.remote import nobody_works_there, ticket_data
        from operator_core.cli.waiting import wait_there

        async with open_server(context) as server:
            ticket = await server.submit(words, **options)
            opened(ticket.id)
            if not (wait or follow):
                if hint := await nobody_works_there(server, ticket.pinned_to):
                    say(hint)
                return ticket_data(ticket), None
            ended = await wait_there(server, ticket.id, out, follow=follow, say=say)
            if ended is None:
                say(_STAYS.format(ticket.id))
                return None, None
            data = ticket_data(ended)
            found = data.pop("closing")
            return data, Closing(**found) if found else None

    async def work() -> tuple[dict[str, Any] | None, Closing | None]:
        from operator_core.cli.closing import closing_of
        from operator_core.cli.waiting import wait_for
        from operator_core.work.submit import submit_task

        settings = invocation(context).settings
        async with open_store(context, create=True) as database:
            ticket = await submit_task(
                database,
                settings,
                words,
                **options,
                warn=lambda sentence: Output(sys.stderr).line(f"Warning: {sentence}"),
            )
            number = ticket.id
            assert number is not None
            opened(number)
            if not (wait or follow):
                if hint := await nobody_works(database, ticket):
                    say(hint)
                return ticket.to_dict(), None
            ended = await wait_for(settings, database, number, out, follow=follow, say=say)
            if ended is None:
                say(_STAYS.format(number))
                return None, None
            return ended.to_dict(), await closing_of(database, number)

    ticket, closing = run(ask() if there else work())
    if ticket is None:
        raise KeyboardInterrupt
    if as_json:
        waited: dict[str, Any] = {"closing": closing._asdict() if closing else None} if wait else {}
        out.json({**ticket, **waited})
    elif wait or follow:
        _tell(out, ticket, closing)
    if wait or follow:
        from operator_core.cli.waiting import exit_code

        raise typer.Exit(exit_code(TicketStatus(ticket["status"])))


def _tell(out: Output, ticket: dict[str, Any], closing: Closing | None) -> None:
    """How it ended, where everything is, and what a person can do now."""
    number = ticket["id"]
    out.line(f"Ticket #{number} is {ticket['status']}: {ticket['reason']}.")
    if ticket["status"] == TicketStatus.WAITING_FOR_INPUT:
        if closing and closing.question:
            out.line(closing.question)
        if ticket["reason"] != Reason.NEEDS_APPROVAL.value:
            out.ours(f'Answer with `operator reply {number} "…"`.')
    elif closing and closing.headline:
        out.line(closing.headline)
    if closing and closing.folder:
        out.line(f"Session folder: {closing.folder}")
    if closing and closing.markdown:
        place = f"{closing.folder}/REPORT.md, and " if closing.folder else ""
        out.ours(f"Report: {place}`operator tickets show {number}`")
