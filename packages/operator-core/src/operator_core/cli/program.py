"""What every program of the product has: the same global options, and errors that are one sentence.

Its annotations are no strings, as they are elsewhere: typer could not find in them what a function's own scope names.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from operator_core.cli.context import Invocation
from operator_core.cli.hints import remember
from operator_core.errors import ConfigError

__all__ = ["program", "run_program"]


def program(name: str, about: str, version: str, *, remote: Collection[str] = ()) -> typer.Typer:
    """A program without commands.

    Args:
        name: How it is called.
        about: One sentence.
        version: What ``--version`` says.
        remote: The commands and groups that can ask a server (``--server``); without any there is no such option.
    """
    app = typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{name} {version}")
            raise typer.Exit

    @app.callback()
    def options(
        context: typer.Context,
        db: Annotated[
            str | None, typer.Option("--db", metavar="PATH|URL", help="The store: an SQLite file or postgresql://…")
        ] = None,
        config: Annotated[
            Path | None, typer.Option("--config", metavar="FILE", help="Default: operator.toml in the current folder.")
        ] = None,
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
        server: Annotated[
            str | None,
            typer.Option("--server", metavar="URL", help="Ask that server instead of a store.", hidden=not remote),
        ] = None,
        token_file: Annotated[
            Path | None,
            typer.Option(
                "--token-file", metavar="FILE", help="Its token; default: $OPERATOR_TOKEN.", hidden=not remote
            ),
        ] = None,
    ) -> None:
        remember(db=db, config=config, server=server, token_file=token_file, remote=remote)
        if server is not None:
            _check_remote(context.invoked_subcommand or "", db, remote)
        elif token_file is not None:
            raise ConfigError("--token-file is for a server; name that with --server.")
        context.obj = Invocation(db, config, server, token_file)

    return app


def _check_remote(command: str, db: str | None, remote: Collection[str]) -> None:
    if command not in remote:
        raise ConfigError(f"`{command}` works on this machine only; leave --server out.")
    if db is not None:
        raise ConfigError("--db names a store and --server a server; give one of them.")


def run_program(app: typer.Typer, words: Sequence[str]) -> int:
    """Run one command; its exit code.

    Raises:
        OperatorError: One sentence.
    """
    from typer._click.exceptions import ClickException, NoArgsIsHelpError

    command = typer.main.get_command(app)
    name = command.name or ""
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
