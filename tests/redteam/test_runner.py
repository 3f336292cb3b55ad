"""Nobody gets a ticket resolved by cheating; see ``attacks_runner``."""

from __future__ import annotations

import pytest

from tests.redteam import attacks_runner as table
from tests.redteam.conftest import Campaign
from tests.redteam.judge import assert_caught, assert_verified

# The first test that asks fights the whole campaign.
pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("attack", table.ATTACKS, ids=lambda attack: attack.name)
async def test_it_is_never_verified(attack: table.Attack, campaign: Campaign) -> None:
    assert_caught(attack, await campaign("runner", attack))


@pytest.mark.parametrize("attack", table.CONTROLS, ids=lambda attack: attack.name)
async def test_honest_work_is_verified(attack: table.Attack, campaign: Campaign) -> None:
    assert_verified(attack, await campaign("runner", attack), "CONTROLS")


@pytest.mark.parametrize("attack", table.LIMITS, ids=lambda attack: attack.name)
async def test_the_limits_are_known(attack: table.Attack, campaign: Campaign) -> None:
    assert_verified(attack, await campaign("runner", attack), "LIMITS")


def test_every_setting_has_an_honest_worker() -> None:
    attacked = {attack.setting for attack in (*table.ATTACKS, *table.LIMITS)} - {"already green", "vacuous"}
    assert attacked <= {control.setting for control in table.CONTROLS}
