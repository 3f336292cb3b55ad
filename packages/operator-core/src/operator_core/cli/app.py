"""The tree of commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from operator_core import __version__
from operator_core.cli import (
    audit,
    docker_proxy,
    doctor,
    explore,
    people,
    play,
    running,
    sandbox,
    sessions,
    setup,
    submit,
    tickets,
    verify,
)
from operator_core.cli.context import Invocation
from operator_core.errors import ConfigError

__all__ = ["app", "run_app", "run_typer"]

app = typer.Typer(
    name="operator",
    help="An autonomous operations agent whose work counts only when it is proved.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"operator {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    db: Annotated[
        str | None, typer.Option("--db", metavar="PATH|URL", help="The store: an SQLite file or postgresql://…")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Default: operator.toml in the current folder.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    context.obj = Invocation(db, config)


app.command("init")(setup.init)
app.command("doctor")(doctor.doctor)
app.command("demo")(play.demo)
app.command("up")(running.up)
app.command("submit")(submit.submit)
app.command("reply")(people.reply)
app.command("steer")(people.steer)
app.command("cancel")(tickets.cancel)
app.command("docker-proxy")(docker_proxy.docker_proxy)
app.command("verify")(verify.verify)
app.add_typer(running.monitor_app, name="monitor")
app.add_typer(running.worker_app, name="worker")
app.add_typer(running.agent_app, name="agent")
app.add_typer(explore.app, name="explore")
app.add_typer(tickets.app, name="tickets")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(sessions.app, name="sessions")
app.add_typer(audit.app, name="audit")
app.add_typer(setup.config_app, name="config")


def run_app(words: Sequence[str]) -> int:
    """Run one command; its exit code.

    Raises:
        OperatorError: One sentence.
    """
    return run_typer(app, words, "operator")


def run_typer(program: typer.Typer, words: Sequence[str], name: str) -> int:
    """Run one command of a program; its exit code.

    Args:
        name: How the program is called, for the hints.

    Raises:
        OperatorError: One sentence.
    """
    from typer._click.exceptions import ClickException, NoArgsIsHelpError

    command = typer.main.get_command(program)
    try:
        code = command.main(list(words), prog_name=name, standalone_mode=False)
    except NoArgsIsHelpError as error:
        # As every other command without its words: what there is, and an exit code that says that nothing was done.
        typer.echo(error.format_message())
        return 2
    except ClickException as error:
        text = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
        end = " See" if text.endswith("?") else "; see"
        command_path = getattr(getattr(error, "ctx", None), "command_path", name)
        raise ConfigError(f"{text}{end} `{command_path} --help`.") from None
    return code if isinstance(code, int) else 0
