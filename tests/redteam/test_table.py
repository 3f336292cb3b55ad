"""The table in the documentation is the table of the suite."""

from __future__ import annotations

import pytest

from operator_core.errors import ConfigError
from operator_core.work.submit import usable_check
from tests.redteam.attacks_words import REFUSED
from tests.redteam.table import PARTS, attacks, refusal, written


@pytest.mark.parametrize("part", PARTS)
def test_it_lists_exactly_the_attacks(part: str) -> None:
    assert [row[:2] for row in written(part)] == [(attack.name, attack.happened) for attack in attacks(part)], (
        "run `python -m tests.redteam.table`"
    )


def test_names_are_unique() -> None:
    names = [attack.name for part in PARTS for attack in attacks(part)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("command", REFUSED)
def test_a_check_that_cannot_fail_is_refused(command: str) -> None:
    with pytest.raises(ConfigError):
        usable_check(command)


def test_the_refusals_are_documented() -> None:
    assert [row[:2] for row in written("REFUSED")] == [(f"`{command}`", refusal(command)) for command in REFUSED]
