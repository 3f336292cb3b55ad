"""How a person signs the agent of a dev box in: on the box itself, over its remote desktop (row B-038).

The seed's other way, to start the sign-in of the CLI, scrape its address and pass a code through a chat, is left out: a
code in a chat is a secret in a place where others read, and whoever can write into that chat could sign in his account.
"""

from __future__ import annotations

from operator_dataverse.teams.text import flat, link

__all__ = ["STEPS", "authentication_instructions"]

STEPS = (
    "Open the dev box in its browser window (remote desktop).",
    "Run `operator-dataverse authenticate` in a terminal there.",
    "Follow the sign-in that opens. Never send a code or a password into this chat.",
)
"""What to do, in our words; Markdown."""


def authentication_instructions(*, box: str, rdp_url: str | None = None) -> str:
    """The same steps as plain text, for a chat.

    Args:
        box: Name of the dev box.
        rdp_url: Its address in the web client; without a usable one the person is told where to find it.
    """
    where = link(rdp_url) or "https://devbox.microsoft.com (choose this dev box there)"
    steps = [
        f"Open the dev box {flat(box, 200)}: {where}",
        *(step.replace("`", "") for step in STEPS[1:]),
    ]
    return "\n".join(
        ["To let tasks run on your dev box, sign in there once:", *(f"{n}. {s}" for n, s in enumerate(steps, 1))]
    )
