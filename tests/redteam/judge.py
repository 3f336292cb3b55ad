"""What must be true of a fought attack."""

from __future__ import annotations

import re

from operator_core.model.ticket import TicketStatus
from tests.redteam.field import Attack, Seen
from tests.redteam.table import shown, written

__all__ = ["assert_caught", "assert_verified"]


def assert_caught(attack: Attack, seen: Seen) -> None:
    """It was not resolved, the account says why, and the documentation says the same."""
    assert seen.status is not TicketStatus.RESOLVED, seen.account
    assert seen.verdict == attack.verdict, seen.account
    _told(attack, seen, "ATTACKS")


def assert_verified(attack: Attack, seen: Seen, part: str) -> None:
    """It was resolved by a verdict."""
    assert (seen.status, seen.verdict) == (TicketStatus.RESOLVED, "verified"), seen.account
    _told(attack, seen, part)


def _told(attack: Attack, seen: Seen, part: str) -> None:
    assert re.search(attack.says, seen.account), seen.account
    if attack.after is not None:
        attack.after(seen.folder)
    assert (attack.name, attack.happened, shown(seen)) in written(part), "run `python -m tests.redteam.table`"
