"""The tree of commands."""

from __future__ import annotations

from operator_core.cli.program import program
from operator_dataverse import __version__
from operator_dataverse.cli import devbox, fleet, outbox, rows, schema, tasks, update, users
from operator_dataverse.cli.cards import app as cards_app
from operator_dataverse.cli.chat import chat_app
from operator_dataverse.cli.demo import demo
from operator_dataverse.cli.doctor import doctor
from operator_dataverse.cli.double import double
from operator_dataverse.cli.flows import bot_app, flows_app, relay_app
from operator_dataverse.cli.machine import auth_window_app, authenticate, service, setup, verify
from operator_dataverse.cli.onedrive import app as onedrive_app

__all__ = ["app"]

app = program(
    "operator-dataverse",
    "Operator's work from Dataverse, Teams and OneDrive, and the dev boxes it is done on.",
    __version__,
)

app.add_typer(chat_app, name="chat")
app.command()(demo)
app.command()(double)
app.command("doctor")(doctor)
app.add_typer(schema.app, name="schema")
app.add_typer(rows.app, name="rows")
app.add_typer(update.app, name="update")
app.add_typer(tasks.app, name="tasks")
app.add_typer(users.app, name="users")
app.add_typer(fleet.app, name="fleet")
app.command("cleanup")(fleet.cleanup)
app.add_typer(devbox.app, name="devbox")
app.add_typer(onedrive_app, name="onedrive")
app.add_typer(cards_app, name="cards")
app.add_typer(flows_app, name="flows")
app.add_typer(relay_app, name="relay")
app.add_typer(bot_app, name="bot")
app.add_typer(outbox.app, name="outbox")
app.command()(setup)
app.command()(authenticate)
app.command()(verify)
app.command()(service)
app.add_typer(auth_window_app, name="auth-window")
