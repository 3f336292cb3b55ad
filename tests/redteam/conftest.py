"""Each campaign is fought once, by the first test that asks for it, with the attacks that this run tries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.redteam.field import Attack, Seen, fight
from tests.redteam.table import CAMPAIGNS
from tests.support.depth import asked_of

__all__ = ["Campaign"]

Campaign = Callable[[str, Attack], Awaitable[Seen]]
_FOUGHT = pytest.StashKey[dict[str, dict[str, Seen]]]()


@pytest.fixture
def campaign(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, require_bubblewrap: None
) -> Campaign:
    """How an attack of a campaign ended."""

    async def ended(name: str, attack: Attack) -> Seen:
        fought = request.config.stash.setdefault(_FOUGHT, {})
        if name not in fought:
            asked = asked_of(request.session, request.module.__name__, "attack")
            fought[name] = await fight(tmp_path_factory.mktemp(name), CAMPAIGNS[name].SETTINGS, asked)
        return fought[name][attack.name]

    return ended
