"""``operator-dataverse cards``: how the cards look that people get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output
from operator_dataverse.cli.connection import dataverse_settings

if TYPE_CHECKING:
    from operator_dataverse.teams import Card

__all__ = ["app"]

app = typer.Typer(help="The cards of Teams.", no_args_is_help=True)


@app.command("show")
def show(
    name: Annotated[str | None, typer.Argument(help="One of them; default: all.")] = None, as_json: AsJson = False
) -> None:
    """Show the cards with made-up content."""
    chosen = _chosen(name)
    out = Output()
    if as_json:
        out.json(chosen)
        return
    from operator_dataverse.teams.plain import card_text

    for title, card in chosen.items():
        out.line(f"== {title}")
        out.line(card_text(card))


@app.command("post")
def post(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Which card.")], as_json: AsJson = False
) -> None:
    """Post one card with made-up content to the configured webhook, to try it."""
    from operator_core.errors import ConfigError, OperatorError
    from operator_core.notify.outbox import Delivered
    from operator_dataverse.teams.webhook import webhook_of

    settings = dataverse_settings(context)
    webhook = webhook_of(settings)
    if webhook is None:
        raise ConfigError(f"Put the address of the Teams webhook into ${settings.teams_webhook_env}.")
    outcome = run(webhook.post(_chosen(name)[name]))
    if not isinstance(outcome, Delivered):
        raise OperatorError(outcome.why)
    out = Output()
    if as_json:
        out.json({"card": name, "delivered": True})
    else:
        out.line("The webhook took the card; look into Teams.")


def _chosen(name: str | None) -> dict[str, Card]:
    from operator_core.errors import ConfigError

    cards = _samples()
    if name is not None and name not in cards:
        raise ConfigError(f"There is no card {name!r}; the cards are {', '.join(cards)}.")
    return cards if name is None else {name: cards[name]}


def _samples() -> dict[str, Card]:
    from operator_dataverse import teams

    folder, box = (
        "https://example.sharepoint.com/personal/alice/Documents/Operator%20Sessions/Example_0b1c6c5e",
        "box-1",
    )
    task = teams.TaskFacts("0b1c6c5e-0000-4000-8000-000000000000", "Example task", box=box, folder_url=folder)
    return {
        "running": teams.running_card(task, progress=["Reads the code", "Runs the tests"], attempt="iteration 1 of 10"),
        "completed": teams.completed_card(task, summary="- It works.\n- It was tried.", facts=[("Cost", "$0.42")]),
        "failed": teams.failed_card(task, reason="The tests fail."),
        "canceled": teams.canceled_card(task, reason="Task canceled by user"),
        "waiting": teams.waiting_card(task, question="Which port is meant?"),
        "authentication-required": teams.authentication_required_card(box=box, rdp_url="https://example.com/rdp"),
        "authentication-complete": teams.authentication_complete_card(box=box),
        "devbox-provisioned": teams.devbox_provisioned_card(box=box, rdp_url="https://example.com/rdp"),
    }
