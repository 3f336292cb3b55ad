"""The server's clock is set back by an hour, or forward: nobody is locked out, let in or told twice because of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from operator_core import clock
from operator_core.announce.announcer import Announcer
from operator_core.config import Settings
from operator_core.db.approvals import Approvals, Question
from operator_core.db.engine import Database
from operator_core.db.idempotency import Keys
from operator_core.db.incidents import Incidents
from operator_core.db.integrity import verify
from operator_core.db.logins import Logins
from operator_core.db.samples import newest_looks
from operator_core.db.schema import outbox
from operator_core.db.tokens import Tokens
from operator_core.errors import TransitionRefused
from operator_core.model.monitor import Light, MonitorState
from operator_core.model.person import Role
from operator_core.model.ticket import TicketStatus
from tests.support.store import start_work, violation
from tests.support.web import open_web

HOUR = 3600.0


class Wall(clock.Clock):
    """The wall clock of a machine that somebody sets; durations stay true."""

    def __init__(self) -> None:
        super().__init__()
        self.off = timedelta()

    def now(self) -> datetime:
        """The time of day, as the machine believes."""
        return datetime.now(UTC) + self.off

    def set(self, seconds: float) -> None:
        """Set it to that many seconds beside the right time."""
        self.off = timedelta(seconds=seconds)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    made = Wall()
    monkeypatch.setattr(clock, "_REAL", made)
    return made


@pytest.fixture
async def database(store_url: str, wall: Wall) -> AsyncIterator[Database]:
    async with Database.open(store_url) as found:
        yield found


async def test_who_is_signed_in_stays_so_and_an_end_stays_an_end(database: Database, wall: Wall) -> None:
    tokens, logins = Tokens(database), Logins(database)
    lasting, short, revoked = [
        await tokens.create(name, Role.VIEWER, by="t", expires_s=ends)
        for name, ends in (("lasting", None), ("short", 600.0), ("revoked", None))
    ]
    opened = await logins.open(lasting.info, 2.0, by="t")
    await tokens.revoke("revoked", by="t")
    wall.set(-HOUR)
    assert await tokens.check(lasting.text)
    assert await tokens.check(short.text)
    assert await tokens.check(revoked.text) is None, "what was revoked in the future is revoked"
    assert await logins.find(opened.cookie)
    again = await logins.open(lasting.info, 2.0, by="t")
    await logins.close(opened.cookie, by="t")
    assert await logins.find(opened.cookie) is None
    wall.set(+HOUR)
    assert await tokens.check(short.text) is None
    assert await logins.find(again.cookie) is None, "it was opened for two hours an hour ago, on a clock that is past"
    assert await tokens.check(lasting.text)


async def test_when_a_token_was_used_is_true_again_at_once(store_url: str, wall: Wall) -> None:
    async with open_web(store_url) as web:
        client = web.client(Role.VIEWER)
        for off in (0.0, -HOUR):
            wall.set(off)
            before = clock.now()
            assert (await client.get("/api/v1/me")).status_code == 200
            await web.site.close()
            (used,) = [t.last_used_at for t in await web.site.tokens.list() if t.role is Role.VIEWER]
            assert used is not None
            assert used >= before.replace(microsecond=0)
            assert used <= clock.now()


@pytest.mark.parametrize("off", [-HOUR, HOUR])
async def test_a_question_is_answered_and_used_once(database: Database, wall: Wall, off: float) -> None:
    work = await start_work(database)
    approvals = Approvals(database)
    question = Question("c1", "shell", {"command": "reboot"}, "why")
    await approvals.ask(work.journal, [question], ["c1"], 4 * HOUR)
    (asked,) = await approvals.listed()
    assert await approvals.park(work.claim, asked.id)
    wall.set(off)
    assert (await approvals.listed())[0].id == asked.id
    await approvals.decide(asked.id, True, actor="ann")
    with pytest.raises(TransitionRefused):
        await approvals.decide(asked.id, False, actor="bob")
    (claim,) = await work.queue.claim(work.claim.worker)
    journal = await work.audit.journal(work.session_id, claim)
    states = [
        (await approvals.take(journal, asked.id, "c1", "shell", {"command": "reboot"}, "here")).state for _ in range(2)
    ]
    assert states == ["used", "spent"]
    assert (await verify(database)).ok


async def test_nobody_answers_when_the_time_is_over_on_the_new_clock(database: Database, wall: Wall) -> None:
    work = await start_work(database)
    approvals = Approvals(database)
    await approvals.ask(work.journal, [Question("c1", "shell", {"command": "x"}, "why")], ["c1"], 600.0)
    (asked,) = await approvals.listed()
    wall.set(HOUR)
    assert await approvals.listed() == []
    with pytest.raises(TransitionRefused):
        await approvals.decide(asked.id, True)
    assert not await approvals.park(work.claim, asked.id)


async def test_the_same_request_has_one_effect(database: Database, wall: Wall) -> None:
    keys = Keys(database)
    await keys.open("api:t", "k", "hash")
    await keys.answer("api:t", "k", 201, '{"id":1}')
    for off in (-HOUR, HOUR, -24 * HOUR, 6 * 24 * HOUR):
        wall.set(off)
        await keys.forget()
        known = await keys.open("api:t", "k", "hash")
        assert (known.status, known.body) == (201, '{"id":1}'), off


def state(light: Light, value: str) -> MonitorState:
    now = clock.now()
    return MonitorState("disk", "disk", light, now, now if light == "red" else None, (), 0, value, now)


async def test_what_the_monitor_sees_is_what_is_shown(database: Database, wall: Wall) -> None:
    incidents = Incidents(database)
    for n in range(5):
        wall.set(-300 + 60 * n)
        await incidents.save_monitor_states([state("green", str(n))])
    wall.set(-HOUR)
    await incidents.save_monitor_states([state("red", "99")])
    found = (await incidents.monitor_states())["disk"]
    assert (found.light, found.last_value) == ("red", "99")
    (looks,) = (await newest_looks(database, 3)).values()
    assert (looks[-1].light, looks[-1].value) == ("red", 99.0), "the newest look is the one that was made last"
    assert all(look.at <= clock.now() for look in looks)
    # When the clock has come to where it was, nothing is missing.
    wall.set(0)
    (looks,) = (await newest_looks(database, 10)).values()
    assert [look.value for look in looks] == [99.0, 0.0, 1.0, 2.0, 3.0, 4.0]


async def test_an_episode_that_is_due_is_a_ticket_once(database: Database, wall: Wall) -> None:
    incidents = Incidents(database)
    first = await incidents.create_or_update_ticket(violation("disk"))
    for off in (-HOUR, HOUR, 0.0):
        wall.set(off)
        again = await incidents.create_or_update_ticket(violation("disk"))
        assert again.id == first.id
        assert again.status is TicketStatus.OPEN


async def test_a_digest_goes_out_once(database: Database, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "a-secret-for-webhooks")
    channel = {"name": "desk", "kind": "webhook", "url": "http://127.0.0.1:9/desk", "secret_env": "HOOK_SECRET"}
    at = (datetime.now(UTC) - timedelta(minutes=20)).strftime("%H:%M")
    notify = {"channel": [channel], "digest": {"channels": ["desk"], "at": at}}
    settings = Settings.model_validate({"notify": notify})
    for off in (0.0, -HOUR, 0.0, -HOUR / 2, 600.0):
        wall.set(off)
        # A server that was just started, and one that remembers.
        announcer = Announcer(settings, database)
        await announcer.step()
        await announcer.step()
    rows = await database.fetch(select(outbox.c.dedupe_key).where(outbox.c.kind == "digest"))
    assert len(rows) == 1, "that of today; on the clock of an hour before, that of yesterday was too late"
