"""``operator-dataverse flows``, ``relay`` and ``bot``: what runs in Power Automate and Copilot Studio."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output
from operator_dataverse.cli.connection import DryRun, dataverse_settings, open_dataverse

if TYPE_CHECKING:
    from operator_dataverse.bot.configure import Step
    from operator_dataverse.flows.api import Deployed
    from operator_dataverse.flows.flow import Flow
    from operator_dataverse.flows.solution import Created

__all__ = ["bot_app", "flows_app", "relay_app"]

flows_app = typer.Typer(help="The flows of Power Automate.", no_args_is_help=True)
relay_app = typer.Typer(help="The flow between the bot and the conversations table.", no_args_is_help=True)
bot_app = typer.Typer(help="The bot of Copilot Studio.", no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME…", help="Default: all of them.")]
Connections = Annotated[
    list[str] | None,
    typer.Option("--connection", metavar="CONNECTOR=NAME", help="E.g. shared_teams=NAME; may be given again."),
]
Files = Annotated[
    list[Path] | None, typer.Option("--file", metavar="FILE", help="A definition of your own; may be given again.")
]


@flows_app.command("list")
def list_flows(
    context: typer.Context,
    there: Annotated[bool, typer.Option("--there", help="Those of `[dataverse] flow_environment` too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the flows of the product, and whether they are in the environment."""
    from operator_dataverse.flows import load_flows

    found: dict[str, dict[str, str]] = {}

    async def look() -> None:
        from operator_dataverse.flows.api import PowerAutomate

        async with PowerAutomate.open(dataverse_settings(context)) as automate:
            async for flow in automate.flows():
                found.setdefault(flow.name, {"id": flow.id, "state": flow.state, "modified": flow.modified})

    if there:
        run(look())
    rows = [
        {"name": flow.name, "description": flow.description, **({"there": found.get(flow.name)} if there else {})}
        for flow in load_flows().values()
    ]
    out = Output()
    if as_json:
        out.json(rows)
    elif there:
        cells = [(name, found.get(name, {}).get("id", "-"), found.get(name, {}).get("state", "-")) for name in
                 load_flows()]  # fmt: skip
        out.table(("name", "id", "state"), cells)
    else:
        out.table(("name", "what it does"), [(row["name"], row["description"]) for row in rows])


@flows_app.command("validate")
def validate(names: Names = None, files: Files = None, as_json: AsJson = False) -> None:
    """Check definitions: their form, their expressions, their cards, and every column against the schemas."""
    from operator_dataverse.flows import flow_problems

    found = {flow.name: flow_problems(flow) for flow in _flows(names, files)}
    out = Output()
    if as_json:
        out.json(found)
    else:
        for name, problems in found.items():
            out.line(f"{name}: {'ok' if not problems else f'{len(problems)} problems'}")
            for problem in problems:
                out.line(f"  {problem}")
    if any(found.values()):
        raise typer.Exit(1)


@flows_app.command("deploy")
def deploy(
    context: typer.Context,
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="All flows of the product.")] = False,
    flow_id: Annotated[str | None, typer.Option("--id", help="Id of the flow there, if names do not tell.")] = None,
    connection: Connections = None,
    start: Annotated[bool, typer.Option("--start", help="Switch them on.")] = False,
    files: Files = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Bring flows into `[dataverse] flow_environment`. What is as it should be is left alone."""
    if not names and not files and not everything:
        raise typer.BadParameter("name the flows, or say --all")
    chosen = _flows(names, files)
    if flow_id and len(chosen) != 1:
        raise typer.BadParameter("--id goes with exactly one flow")
    _must_be_good(chosen)
    connections = _pairs(connection)

    async def work() -> list[Deployed]:
        from operator_dataverse.flows.api import PowerAutomate

        async with PowerAutomate.open(dataverse_settings(context)) as automate:
            return [
                await automate.deploy(flow, flow_id=flow_id, connections=connections, start=start, dry_run=dry_run)
                for flow in chosen
            ]

    done = run(work())
    out = Output()
    if as_json:
        out.json([{**one._asdict(), "dry_run": dry_run} for one in done])
    else:
        out.table(("name", "id", _done(dry_run)), [(one.name, one.id, one.outcome) for one in done])


@flows_app.command("export")
def export(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="Display name of a flow there, or its id.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it there; default: print it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a flow as it is there, without its connections, in the form of our files, which is JSON."""
    from operator_core.errors import ConfigError

    async def work() -> Flow:
        from operator_dataverse.flows.api import PowerAutomate

        async with PowerAutomate.open(dataverse_settings(context)) as automate:
            there = await automate.named(name)
            return await automate.export(there.id if there else name)

    text = run(work()).text()
    if output is None:
        Output().line(text.rstrip("\n"))
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{output} cannot be written ({error.strerror}); name another file.") from None
        if as_json:
            Output().json({"written": str(output)})
        else:
            Output().line(f"Written to {output}.")


@relay_app.command("create")
def relay_create(
    context: typer.Context,
    name: Annotated[str, typer.Option("--flow", help="Which flow.")] = "SendMessage",
    connection: Connections = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make the relay flow in the organisation and switch it on. Again: it is brought up to date."""
    from operator_dataverse.flows import flow_named

    flow = flow_named(name)
    _must_be_good([flow])

    async def work() -> Created:
        from operator_dataverse.flows.solution import create_in_dataverse

        async with open_dataverse(context) as dataverse:
            return await create_in_dataverse(dataverse, flow, _pairs(connection), dry_run=dry_run)

    done = run(work())
    out = Output()
    if as_json:
        out.json({"name": flow.name, **done._asdict(), "dry_run": dry_run})
    else:
        out.fields({"Flow": flow.name, "Id": done.id, _done(dry_run).capitalize(): done.outcome, "On": done.active})


@bot_app.command("configure")
def configure(
    context: typer.Context,
    bot: Annotated[str, typer.Option("--bot", metavar="SCHEMA_NAME", help="E.g. cr123_helper.")],
    flow_id: Annotated[str, typer.Option("--flow", metavar="ID", help="Id of the flow SendMessage there.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give the bot its topic. Publish the bot by hand afterwards."""

    async def work() -> list[Step]:
        from operator_dataverse.bot.configure import configure_bot

        async with open_dataverse(context) as dataverse:
            return await configure_bot(dataverse, bot, flow_id, dry_run=dry_run)

    steps = run(work())
    out = Output()
    if as_json:
        out.json([{**step._asdict(), "dry_run": dry_run} for step in steps])
        return
    out.table(("topic", "what", _done(dry_run)), [tuple(step) for step in steps])
    if not dry_run:
        out.line("Publish the bot in Copilot Studio; until then it answers as before.")


@bot_app.command("show")
def show(
    flow_id: Annotated[str | None, typer.Option("--flow", metavar="ID", help="Put this flow's id into it.")] = None,
) -> None:
    """Print the topic, to be pasted into Copilot Studio by hand."""
    from operator_dataverse.bot import topic_text

    Output().line(topic_text(flow_id).rstrip("\n"))


@bot_app.command("validate")
def validate_bot(as_json: AsJson = False) -> None:
    """Check that the topic and the flow that it calls fit each other."""
    from operator_dataverse.bot import topic_problems, topic_text
    from operator_dataverse.flows import flow_named

    found = topic_problems(topic_text(), flow_named("SendMessage"))
    out = Output()
    if as_json:
        out.json(found)
    else:
        out.line("\n".join(found) or "ok")
    if found:
        raise typer.Exit(1)


def _flows(names: list[str] | None, files: list[Path] | None) -> list[Flow]:
    from operator_core.errors import ConfigError
    from operator_dataverse.flows import Flow, flow_named, load_flows

    chosen = [flow_named(name) for name in names or ()]
    for file in files or ():
        try:
            chosen.append(Flow.parse(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{file} cannot be read ({error.strerror}); name a file of `flows export`.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{file} is no text in UTF-8; name a file of `flows export`.") from None
    return chosen or list(load_flows().values())


def _must_be_good(flows: list[Flow]) -> None:
    from operator_core.errors import ConfigError
    from operator_dataverse.flows import flow_problems

    for flow in flows:
        if problems := flow_problems(flow):
            raise ConfigError(f"{problems[0]}; see all with `operator-dataverse flows validate`.")


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        connector, sign, name = text.partition("=")
        if not sign or not connector or not name:
            raise typer.BadParameter(f"{text!r} is not of the form CONNECTOR=NAME")
        pairs[connector] = name
    return pairs


def _done(dry_run: bool) -> str:
    return "would be" if dry_run else "outcome"
