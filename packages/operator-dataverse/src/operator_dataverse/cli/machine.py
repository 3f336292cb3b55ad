"""``operator-dataverse setup | authenticate | verify | service | auth-window``: the dev box itself (row B-053)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, invocation
from operator_core.cli.output import Output
from operator_dataverse.cli.connection import DryRun

if TYPE_CHECKING:
    from operator_dataverse.machine.service import Service
    from operator_dataverse.machine.window import Window

__all__ = ["auth_window_app", "authenticate", "service", "setup", "verify"]

auth_window_app = typer.Typer(
    help="One browser window for signing in, on a box without a desktop.", no_args_is_help=True
)

_NO_WINDOW = 3


def setup(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Run the commands that bring what is missing.")] = False,
    manager: Annotated[
        str | None, typer.Option("--manager", metavar="NAME", help="apt, brew, winget or choco; default: the one here.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Say what this machine lacks, and the exact command that brings it.

    Nothing is changed without --yes, and what is there already is left alone. The exit code is 1 if something that is
    needed is missing afterwards.
    """
    from operator_core.cli.doctor import conclude
    from operator_dataverse.machine.setup import Setup

    given = invocation(context)
    parts = Setup(
        given.load, os.environ, config=given.config, manager=manager, say=_tell_person, stdout_free=not as_json
    )
    findings = parts.apply() if yes and not dry_run else parts.look()
    code = conclude(Output(), findings, as_json)
    if not as_json and not yes and any((finding.facts or {}).get("commands") for finding in findings):
        Output().line("`operator-dataverse setup --yes` runs these commands.")
    return code


def authenticate(context: typer.Context, dry_run: DryRun = False, as_json: AsJson = False) -> int:
    """Sign in to Azure and Claude Code on this terminal, and try it on Dataverse.

    Whoever is signed in already is not asked again. Nothing secret passes through this command, and it keeps nothing.
    """
    from operator_core.cli.doctor import conclude
    from operator_dataverse.machine.setup import command_line
    from operator_dataverse.machine.signin import SignIn, open_points
    from operator_dataverse.settings import settings_of

    given = invocation(context)
    settings = given.settings
    sign_in = SignIn(settings, os.environ, say=_tell_person, stdout_free=not as_json)
    out = Output()
    points = list(open_points(settings, os.environ))
    if dry_run:
        commands = sign_in.plan()
        if as_json:
            url = settings_of(settings).url
            out.json({"dry_run": True, "commands": [list(one) for one in commands], "dataverse": url, "to_set": points})
            return 0
        for command in commands:
            out.line(f"Would run `{command_line(command)}`, if nobody is signed in there.")
        for point in points:
            out.line(point)
        return 0
    findings = sign_in.run()
    code = conclude(out, findings, as_json)
    if not as_json:
        for point in points:
            out.line(point)
        out.line(f"Then start the worker: {_how_to_start(given.config)}.")
    return code


def verify(context: typer.Context, as_json: AsJson = False) -> int:
    """Try everything that a worker on this machine uses, and say what is wrong.

    Programs, sandbox, sign-ins, OneDrive, folders, service. The exit code is 1 if something is wrong.
    """
    from operator_core.cli.doctor import look_and_conclude
    from operator_core.cli.finding import Finding
    from operator_core.errors import OperatorError
    from operator_dataverse.machine.verify import verify as look

    def tried() -> list[Finding]:
        try:
            given = invocation(context)
            return look(given.settings, os.environ, _service_here(given.config))
        except OperatorError as error:
            return [Finding("configuration", "wrong", str(error))]

    return look_and_conclude(tried, as_json)


def service(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--print", help="Only print its description (this is the default).")] = False,
    install: Annotated[bool, typer.Option("--install", help="Write it and make the system know it.")] = False,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="systemd or task-scheduler; default: this platform's.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where the worker starts; default: that of the configuration.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Describe the worker as a service that starts when you sign in to this machine, and again after each update."""
    from operator_core.errors import ConfigError, OperatorError
    from operator_dataverse.machine.programs import attend, find, small_environment
    from operator_dataverse.machine.service import service_of
    from operator_dataverse.machine.setup import command_line

    if show and install:
        raise ConfigError("Choose --print or --install.")
    found = service_of(kind, folder=folder, config=invocation(context).load().path)
    out = Output()
    commands = found.register_commands()
    done = install and not dry_run
    if done:
        found.write()
        for command in commands:
            program = find(command[0]) or command[0]
            if code := attend((program, *command[1:]), small_environment(), stdout_free=not as_json):
                raise OperatorError(
                    f"{found.file} is written, but `{command_line(command)}` failed (exit code {code}); run it again."
                )
    if as_json:
        described: dict[str, Any] = {"kind": found.kind, "file": str(found.file), "text": found.text()}
        out.json({**described, "commands": [list(command) for command in commands], "installed": done})
    elif not install:
        # Not a line of ours: exactly the file, for `operator-dataverse service --print > …`.
        sys.stdout.write(found.text())
    elif dry_run:
        out.line(f"Would write {found.file} and run " + ", ".join(f"`{command_line(c)}`" for c in commands) + ".")
    else:
        out.line(f"{found.file} is written, and known to the system. To start it now: `{found.start_command}`.")


@auth_window_app.command("start")
def start(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="The page that a sign-in printed, https://….")],
    browser: Annotated[
        str | None, typer.Option("--browser", metavar="PROGRAM", help="Default: the first browser found.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Open a page in a window that fills the screen, with a profile of its own.

    There is one window at a time. Its profile is removed when it is stopped.
    """
    from operator_dataverse.machine.window import AuthWindow, checked_address

    site = checked_address(address)
    out = Output()
    if dry_run:
        if as_json:
            out.json({"dry_run": True, "site": site})
        else:
            out.line(f"Would open {site} in a window of its own.")
        return
    _show(out, AuthWindow().start(address, browser), as_json)


@auth_window_app.command("stop")
def stop(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Close the window, with everything that it started, and remove its profile."""
    from operator_dataverse.machine.window import AuthWindow

    window = AuthWindow()
    ended = window.stop() if not dry_run else 0
    out = Output()
    if as_json:
        out.json({"dry_run": dry_run, "ended": ended})
    elif dry_run:
        out.line("Would close the window." if window.status() else "There is no window.")
    else:
        out.line(f"The window is closed ({ended} processes ended)." if ended else "There was no window.")


@auth_window_app.command("status")
def status(as_json: AsJson = False) -> None:
    """Say whether there is a window. Exit code 0: there is; 3: there is none."""
    from operator_dataverse.machine.window import AuthWindow

    found = AuthWindow().status()
    _show(Output(), found, as_json)
    if found is None:
        raise typer.Exit(_NO_WINDOW)


def _show(out: Output, window: Window | None, as_json: bool) -> None:
    if as_json:
        known = window and {
            "process": window.pid,
            "program": window.program,
            "site": window.site,
            "opened_at": window.opened_at,
        }
        out.json({"open": window is not None, "window": known})
    elif window is None:
        out.line("There is no window.")
    else:
        out.line(f"{window.site} is open in {window.program} (process {window.pid}, since {window.opened_at}).")


def _tell_person(line: str) -> None:
    """To standard error: standard output may be a document."""
    Output(sys.stderr).line(line)


def _service_here(config: Path | None) -> Service | None:
    from operator_core.errors import ConfigError
    from operator_dataverse.machine.service import service_of

    try:
        return service_of(config=config)
    except ConfigError:
        return None


def _how_to_start(config: Path | None) -> str:
    service = _service_here(config)
    if service is not None and service.state().installed:
        return f"`{service.start_command}`"
    return "`operator worker run`, or `operator-dataverse service --install` for one that always runs"
