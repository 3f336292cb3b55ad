"""Cards that are not about a task but about the dev box of a person (row B-039)."""

from __future__ import annotations

from operator_dataverse.teams.authentication import STEPS
from operator_dataverse.teams.elements import Card, card, details, heading, open_url, ours, theirs

__all__ = ["authentication_complete_card", "authentication_required_card", "devbox_provisioned_card"]


def authentication_required_card(*, box: str, rdp_url: str | None = None, reason: str = "") -> Card:
    """The agent on a dev box has to be signed in by its person.

    Args:
        box: Name of the dev box.
        rdp_url: Its address in the web client; no button without it.
        reason: What was refused, in the words of whoever refused it.
    """
    body = [
        heading("Please sign in on your dev box", "warning"),
        *details([("Dev box", box)]),
        *theirs(reason, 500),
        *(ours(f"{number}. {step}") for number, step in enumerate(STEPS, 1)),
    ]
    return card(body, open_url("Open the dev box", rdp_url))


def authentication_complete_card(*, box: str) -> Card:
    """The agent on a dev box is signed in."""
    body = [heading("You are signed in", "good"), *details([("Dev box", box)]), ours("Tasks can run on it now.")]
    return card(body)


def devbox_provisioned_card(*, box: str, rdp_url: str | None = None) -> Card:
    """A dev box was made; its person has to sign in there once."""
    body = [
        heading("Your dev box is ready", "good"),
        *details([("Dev box", box)]),
        ours("Sign in there once, then tasks can run on it:"),
        *(ours(f"{number}. {step}") for number, step in enumerate(STEPS, 1)),
    ]
    return card(body, open_url("Open the dev box", rdp_url))
