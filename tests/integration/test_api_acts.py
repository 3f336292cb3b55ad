"""Acts: each says who did it, has its effect once, and is refused with a sentence where it makes no sense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operator_core.api.local import LocalApi
from operator_core.api.protocol import Api
from operator_core.config import Settings
from operator_core.db.queue import WorkQueue
from operator_core.errors import ConfigError, NotFound, TransitionRefused
from operator_core.model.invariant import Invariant, Subject
from operator_core.model.person import Actor, Role
from tests.support.api import ANN, open_api
from tests.support.store import column_of, start_work

BOB = Actor("bob", Role.OPERATOR, "console", "t2")
SETTINGS = Settings(
    subject=(Subject(name="shop", context="a shop", invariant=(Invariant(name="up", severity="critical"),)),)
)


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[LocalApi]:
    async with open_api(store_url, SETTINGS) as found:
        yield found


def what_everybody_uses(api: LocalApi) -> Api:
    """Looked at by the type checker alone: it is all that the interface asks for."""
    return api


async def test_the_ledger_is_told_who_did_it_and_how_they_came(api: LocalApi) -> None:
    await api.open_incident("disk", "full")
    bob = api.as_(BOB)
    await bob.hold(1, True)
    await bob.hold(1, False)
    await bob.cancel(1)
    await api.as_(Actor("person", Role.ADMIN, "cli")).reopen(1)
    await bob.resolve(1, "I did it")
    await api.submit("Do it.")
    actors: dict[int, list[str | None]] = {1: [], 2: []}
    for number, found in actors.items():
        found += [event.actor for event in (await api.ticket(number)).history]
    assert actors == {
        1: ["ann (api)", "bob (console)", "bob (console)", "bob (console)", "person", "bob (console)"],
        2: ["ann (api)"],
    }
    ended = await api.ticket(1)
    assert (ended.status, ended.reason, ended.diagnosis) == ("resolved", "by_hand", "I did it")


async def test_the_same_key_has_one_effect_and_the_same_answer(api: LocalApi) -> None:
    many = await asyncio.gather(*(api.submit("Do it.", key="k") for _ in range(8)))
    assert {ticket.id for ticket in many} == {1}
    many = await asyncio.gather(*(api.open_incident("disk", "full", key="i") for _ in range(8)))
    assert {ticket.id for ticket in many} == {2}
    # Another one's key is another key.
    assert (await api.as_(BOB).submit("Do it.", key="k")).id == 3
    assert (await api.submit("Do it.")).id == 4
    work = await start_work(api.database)
    await work.queue.park(work.claim, work.claim.wake)
    waiting = work.claim.ticket_id
    answers = await asyncio.gather(*(api.reply(waiting, "yes", key="r") for _ in range(4)))
    assert {answer.status for answer in answers} == {"open"}
    await asyncio.gather(*(api.steer(waiting, "and slowly", key="s") for _ in range(4)))
    assert await column_of(api.settings.store.url, "SELECT count(*) FROM inbox") == [2]
    # A key that was used before, for something else: what is said there must not be lost.
    await api.hold(waiting, True)
    other = await start_work(api.database)
    await other.queue.park(other.claim, other.claim.wake)
    assert (await api.reply(other.claim.ticket_id, "yes", key="r")).status == "open"
    await api.steer(other.claim.ticket_id, "and slowly", key="r")
    assert await column_of(api.settings.store.url, "SELECT count(*) FROM inbox") == [4]


async def test_a_key_that_is_none_is_refused(api: LocalApi) -> None:
    for key in ("", "x" * 256, "a\nb", "\N{SNOWMAN}", "\0"):
        with pytest.raises(ConfigError, match="idempotency key"):
            await api.submit("Do it.", key=key)
    assert (await api.tickets()).items == []


async def test_an_incident_of_an_invariant_can_be_proved(api: LocalApi) -> None:
    found = await api.open_incident(
        "shop", "down", invariant="up", labels={"team": "a"}, priority=3, severity="critical"
    )
    assert found.check_spec is not None
    assert found.check_spec["invariant"]["name"] == "up"
    assert (found.subject_context, found.labels, found.priority) == ("a shop", {"team": "a"}, 3)
    with pytest.raises(TransitionRefused, match="open already"):
        await api.open_incident("shop", "down", invariant="up")
    lights = await api.invariants()
    assert [(i.key, i.subject, i.severity, i.light) for i in lights] == [("up", "shop", "critical", "unknown")]


async def test_an_incident_that_makes_no_sense_is_refused(api: LocalApi) -> None:
    strange: list[dict[str, Any]] = [
        {"name": " "},
        {"message": ""},
        {"severity": "huge"},
        {"priority": 2**40},
        {"invariant": "gone"},
        {"subject": "shop"},
        {"invariant": "up", "subject": "other"},
    ]
    for wanted in strange:
        with pytest.raises(ConfigError):
            await api.open_incident(**{"name": "disk", "message": "full", **wanted})
    assert (await api.tickets()).items == []


async def test_a_caller_cannot_speak_for_somebody_else(api: LocalApi) -> None:
    for options in ({"actor": "root"}, {"link": ("api:t2", "k")}, {"database": None}):
        with pytest.raises(ConfigError, match="no option"):
            await api.submit("Do it.", **options)
    assert (await api.tickets()).items == []


async def test_a_worker_is_drained_and_takes_again(api: LocalApi) -> None:
    await WorkQueue(api.database).register("w" * 32, 60)
    (worker,) = await api.drain("w" * 32, True)
    assert worker.draining
    (worker,) = await api.drain("w" * 32, False)
    assert not worker.draining
    with pytest.raises(NotFound):
        await api.drain("x", True)
    assert await column_of(api.settings.store.url, "SELECT kind FROM ledger ORDER BY seq") == ["drained", "undrained"]


async def test_acts_in_the_wrong_state_are_refused(api: LocalApi) -> None:
    await api.open_incident("disk", "full")
    for act in (api.reply(1, "yes"), api.steer(1, "slowly"), api.reopen(1)):
        with pytest.raises(TransitionRefused):
            await act
    with pytest.raises(NotFound):
        await api.decide("0" * 32, True)
    assert api.as_(BOB).actor == BOB
    assert api.actor == ANN
