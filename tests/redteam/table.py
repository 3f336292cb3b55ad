"""The tables of ``docs/verification.md``: every attack, what happened, and the verdict that was seen.

``python -m tests.redteam.table`` fights all of them and writes it; the tests compare.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from operator_core.errors import ConfigError
from operator_core.model.ticket import TicketStatus
from operator_core.work.submit import usable_check
from tests.redteam import attacks_runner, attacks_scripts, attacks_words, attacks_work
from tests.redteam.field import Attack, Seen, fight

__all__ = ["CAMPAIGNS", "PAGE", "PARTS", "attacks", "refusal", "shown", "written"]

PAGE = Path(__file__).parents[2] / "docs" / "verification.md"
CAMPAIGNS = {"runner": attacks_runner, "scripts": attacks_scripts, "work": attacks_work, "words": attacks_words}
PARTS = ("ATTACKS", "CONTROLS", "LIMITS")
_HEADS = {"ATTACKS": "attack", "CONTROLS": "honest work", "LIMITS": "what gets through"}


def attacks(part: str) -> list[Attack]:
    """All of one part, in the order of the page."""
    return [attack for campaign in CAMPAIGNS.values() for attack in getattr(campaign, part)]


def shown(seen: Seen) -> str:
    """The verdict, or what became of it, in a word or two."""
    if seen.status is TicketStatus.WAITING_FOR_INPUT:
        return "asked a person"
    if seen.verdict == "verified" and seen.status is not TicketStatus.RESOLVED:
        return "not delivered"
    return seen.verdict


def refusal(command: str) -> str:
    """What is said to who submits a check that cannot fail."""
    try:
        usable_check(command)
    except ConfigError as error:
        return str(error)
    return "accepted"


def written(part: str) -> list[tuple[str, str, str]]:
    """What the page says: name, what happened, verdict."""
    text = PAGE.read_text(encoding="utf-8").partition(f"<!-- {part} -->")[2].partition("<!-- end -->")[0]
    cells = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    return [(row[0].replace("\\|", "|"), row[1].replace("\\|", "|"), row[2]) for row in cells]


def _table(head: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join([f"| {head} | what happened | verdict |", "|---|---|---|", *(f"| {line} |" for line in lines), ""])


async def _fight_all() -> dict[str, Seen]:
    seen: dict[str, Seen] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, campaign in CAMPAIGNS.items():
            every = [attack for part in PARTS for attack in getattr(campaign, part)]
            seen |= await fight(Path(folder, name), campaign.SETTINGS, every)
    return seen


def _replace(text: str, part: str, table: str) -> str:
    before, mark, rest = text.partition(f"<!-- {part} -->\n")
    return f"{before}{mark}{table}<!-- end -->{rest.partition('<!-- end -->')[2]}"


def _write(seen: Mapping[str, Seen]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for part in PARTS:
        rows = [(a.name, a.happened, shown(seen[a.name])) for a in attacks(part)]
        text = _replace(text, part, _table(_HEADS[part], rows))
    rows = [(f"`{command}`", refusal(command), "refused") for command in attacks_words.REFUSED]
    PAGE.write_text(_replace(text, "REFUSED", _table("check", rows)), encoding="utf-8")


if __name__ == "__main__":
    for name in [n for n in os.environ if n.startswith(("ANTHROPIC_", "CLAUDE", "OPERATOR_"))]:
        del os.environ[name]
    _write(asyncio.run(_fight_all()))
