"""The looks that the monitor's charts are drawn from: one for each cycle, as many as are wanted, and no more."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text

from operator_core import clock
from operator_core.api.local import LocalApi
from operator_core.config import Settings
from operator_core.db import samples
from operator_core.db.engine import Database
from operator_core.db.samples import drop_forgotten, newest_looks, number_in
from operator_core.db.schema import monitor_samples
from operator_core.db.tickets import TicketDB
from operator_core.errors import StoreError
from operator_core.model.invariant import Subject
from operator_core.model.monitor import MONITOR_BLIND, Light, MonitorState
from operator_core.model.ticket import InvariantViolation, Reason, TicketStatus
from operator_core.monitor.configured import ConfiguredChecker, ConfiguredSubject
from operator_core.monitor.loop import MonitorLoop
from tests.support.api import ANN, statements
from tests.support.scene import attempt, judged

NOW = clock.now().replace(microsecond=0)


def state(light: Light = "green", value: str | None = "1", *, back_s: float = 0, key: str = "disk") -> MonitorState:
    at = NOW - timedelta(seconds=back_s)
    return MonitorState(key, key, light, at, at if light == "red" else None, (), 0, value, at)


@pytest.fixture
async def tickets(store_url: str) -> AsyncIterator[TicketDB]:
    async with Database.open(store_url) as database:
        yield TicketDB(database)


async def count(database: Database) -> int:
    return int((await database.fetch(select(func.count()).select_from(monitor_samples)))[0][0])


async def test_each_save_is_one_look_and_the_same_look_is_noted_once(tickets: TicketDB) -> None:
    await tickets.save_monitor_states([state(back_s=60, value="0.5"), state(back_s=60, key="load", value="ok")])
    await tickets.save_monitor_states([state("unknown", back_s=30, value="0.5")])
    await tickets.save_monitor_states([state("red", value="97")])
    await tickets.save_monitor_states([state("red", value="97")])
    looks = await newest_looks(tickets.database, 10)
    assert [(look.light, look.value) for look in looks["disk"]] == [("green", 0.5), ("unknown", None), ("red", 97.0)]
    assert [look.at for look in looks["disk"]] == [NOW - timedelta(seconds=s) for s in (60, 30, 0)]
    assert [(look.light, look.value) for look in looks["load"]] == [("green", None)]
    assert [look.light for look in (await newest_looks(tickets.database, 2))["disk"]] == ["unknown", "red"]


async def test_a_look_is_written_with_its_state_or_not_at_all(
    tickets: TicketDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "_PRUNE", text("DELETE FROM nothing_like_that"))
    with pytest.raises(StoreError):
        await tickets.save_monitor_states([state()])
    assert await tickets.monitor_states() == {}
    assert await count(tickets.database) == 0


async def test_old_looks_and_too_many_are_dropped(tickets: TicketDB) -> None:
    await tickets.save_monitor_states(
        [state(back_s=samples.KEPT_S + 3600), state(back_s=samples.KEPT_S + 3600, key="gone")]
    )
    await tickets.save_monitor_states([state(back_s=samples.KEPT_S - 3600)])
    await tickets.save_monitor_states([state()])
    looks = await newest_looks(tickets.database, 10)
    assert [round((NOW - look.at).total_seconds()) for look in looks["disk"]] == [82_800, 0]
    assert len(looks["gone"]) == 1, "another key's looks are for its own monitor"
    assert await drop_forgotten(tickets.database) == 1
    assert "gone" not in await newest_looks(tickets.database, 10)

    rows = [{"violation_key": "disk", "at": i, "light": "green", "value": None} for i in range(10, 4010)]
    ms = round((NOW - timedelta(minutes=30)).timestamp() * 1000)
    async with tickets.database.begin() as c:
        await c.execute(monitor_samples.insert(), [{**row, "at": ms + row["at"]} for row in rows])
    await tickets.save_monitor_states([state(back_s=-1)])
    kept = (await newest_looks(tickets.database, 10_000))["disk"]
    assert len(kept) == samples.KEPT
    assert kept[-1].at == NOW + timedelta(seconds=1)


async def test_only_the_wanted_looks_are_read(tickets: TicketDB) -> None:
    ms = round(NOW.timestamp() * 1000)
    for key in ("a", "b"):
        await tickets.save_monitor_states([state(key=key, back_s=10_000)])
        rows: list[dict[str, Any]] = [
            {"violation_key": key, "at": ms + i, "light": "red", "value": i} for i in range(500)
        ]
        async with tickets.database.begin() as c:
            await c.execute(monitor_samples.insert(), rows)
    looks = await newest_looks(tickets.database, 3)
    assert {key: [look.value for look in own] for key, own in looks.items()} == {
        key_0: [497, 498, 499] for key_0 in "ab"
    }
    if tickets.database.sqlite:
        with statements(tickets.database) as asked:
            await newest_looks(tickets.database, 3)
        ((asking, parameters),) = asked
        async with tickets.database.read() as c:
            plan = (await c.exec_driver_sql(f"EXPLAIN QUERY PLAN {asking}", parameters)).all()
        assert not [row for row in plan if "SCAN monitor_samples" in str(row)], plan


async def test_two_monitors_of_one_subject_do_not_wait_for_each_other(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as two:

        async def watch(database: Database, first: int) -> None:
            for i in range(first, 40, 2):
                keys = [f"k{n}" for n in range(8)]
                states = [state(key=key, back_s=2 * samples.KEPT_S * (i % 4) - i) for key in keys]
                await TicketDB(database).save_monitor_states(states)

        async with asyncio.timeout(60):
            await asyncio.gather(watch(one, 0), watch(two, 1))
        assert await count(one) > 0


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("42", 42.0),
        (" -1.5e3 ", -1500.0),
        (".5", 0.5),
        ("True", None),
        ("nan", None),
        ("Infinity", None),
        ("1e999", None),
        ("9" * 500, None),
        ("1_000", None),
        ("0x10", None),
        ("٣", None),
        ("12 messages", None),
        ("", None),
        (None, None),
    ],
)
def test_what_counts_as_a_number(value: str | None, number: float | None) -> None:
    found = number_in(state("red", value))
    assert found == number
    assert found is None or math.isfinite(found)
    assert number_in(state("unknown", value)) is None


async def test_the_monitor_notes_every_cycle(tickets: TicketDB, tmp_path: Any) -> None:
    depth = tmp_path / "depth"
    depth.write_text("3")
    spec = Subject.model_validate(
        {
            "name": "queue",
            "workspace": str(tmp_path),
            "invariant": [
                {
                    "name": "depth",
                    "probe": {"type": "command", "command": 'cat "$WORKSPACE/depth"', "value": "stdout"},
                    "expect": "< 10",
                }
            ],
        }
    )
    loop = MonitorLoop(ConfiguredSubject(spec), ConfiguredChecker(spec), tickets, spec=spec)
    await loop.cycle()
    depth.write_text("12")
    await loop.cycle()
    depth.unlink()
    await loop.cycle()
    looks = (await newest_looks(tickets.database, 10))["depth"]
    assert [(look.light, look.value) for look in looks] == [("green", 3.0), ("red", 12.0), ("unknown", None)]


async def test_what_happened_to_its_tickets_is_told_with_the_looks(tickets: TicketDB) -> None:
    api = LocalApi(tickets.database, Settings(), ANN)
    await tickets.save_monitor_states([state(back_s=60)])
    other = await tickets.create_or_update_ticket(InvariantViolation("other", "no", NOW, NOW))
    ticket = await tickets.create_or_update_ticket(InvariantViolation("disk", "full", clock.now(), clock.now()))
    assert ticket.id
    assert other.id
    await tickets.cancel_ticket(other.id)
    work = await attempt(tickets.database, ticket.id)
    await work.judge(judged())
    await work.end(TicketStatus.RESOLVED, Reason.VERIFIED)
    (view,) = await api.invariants()
    assert [(mark.what, mark.ticket_id) for mark in view.marks] == [
        ("opened", ticket.id),
        ("claimed", ticket.id),
        ("verified", ticket.id),
    ]
    assert [sample.light for sample in view.samples] == ["green"]
    assert (await api.invariants(samples=0))[0].marks == []


async def test_that_the_monitor_can_look_is_told_only_where_it_cannot(tickets: TicketDB) -> None:
    api = LocalApi(tickets.database, Settings(), ANN)
    blind = state("red", "refused", key="monitor-blind:disk")._replace(invariant_name=MONITOR_BLIND)
    await tickets.save_monitor_states([state("unknown"), blind])
    assert [(i.light, i.key) for i in await api.invariants()] == [("red", "monitor-blind:disk"), ("unknown", "disk")]
    await tickets.save_monitor_states([blind._replace(light="green")])
    assert [i.key for i in await api.invariants()] == ["disk"]
