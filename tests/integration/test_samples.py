"""The looks that the monitor's charts are drawn from: one for each cycle, as many as are wanted, and no more."""

from __future__ import annotations

import asyncio
import itertools
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
from operator_core.db.spans import Span, read_spans
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


async def spans(database: Database, key: str = "disk", *, back_s: float = 86_400.0, single: int = 0) -> list[Span]:
    since = round((NOW.timestamp() - back_s) * 1000)
    return (await read_spans(database, [key], since, single=single))[key]


async def test_each_look_is_counted_once_in_its_span(tickets: TicketDB) -> None:
    begin = int(NOW.timestamp()) // 300 * 300 - 3600
    seen: list[tuple[int, Light, str]] = [(0, "green", "5"), (30, "red", "9"), (299, "unknown", "9"), (300, "red", "7")]
    for after, light, value in seen:
        back = NOW.timestamp() - begin - after
        for _ in range(2):
            await tickets.save_monitor_states([state(light, value, back_s=back), state("green", "word", key="x")])
    # A clock that was set back: a look older than the newest counts all the same.
    await tickets.save_monitor_states([state("red", "1e400", back_s=NOW.timestamp() - begin - 10)])
    ms = begin * 1000
    assert await spans(tickets.database) == [
        Span(ms, ms + 299_000, 1, 2, 1, 5.0, 9.0),
        Span(ms + 300_000, ms + 300_000, 0, 1, 0, 7.0, 7.0),
    ]
    assert [span.looks for span in await spans(tickets.database, "x")] == [1]
    assert await spans(tickets.database, "nothing") == []
    assert await read_spans(tickets.database, [], 0) == {}


async def test_spans_are_added_up_where_they_are_wanted_wider(tickets: TicketDB) -> None:
    begin = int(NOW.timestamp()) // 600 * 600 - 3600
    seen: list[tuple[int, Light, str]] = [
        (0, "green", "5"),
        (310, "red", "9"),
        (599, "unknown", "9"),
        (600, "green", "2"),
    ]
    for after, light, value in seen:
        await tickets.save_monitor_states([state(light, value, back_s=NOW.timestamp() - begin - after)])
    ms = begin * 1000
    found = await read_spans(tickets.database, ["disk", "x"], ms - 3_600_000, width=600_000)
    assert found["disk"] == [
        Span(ms, ms + 599_000, 1, 1, 1, 5.0, 9.0),
        Span(ms + 600_000, ms + 600_000, 1, 0, 0, 2.0, 2.0),
    ]
    assert found["x"] == []


async def test_a_value_joins_a_span_that_has_none(tickets: TicketDB) -> None:
    begin = NOW.timestamp() // 300 * 300 - 3600
    for after, light, value in ((0, "unknown", None), (30, "green", "4"), (60, "green", "word"), (90, "green", "-2")):
        await tickets.save_monitor_states([state(light, value, back_s=NOW.timestamp() - begin - after)])  # type: ignore[arg-type]
    (span,) = await spans(tickets.database)
    assert (span.low, span.high, span.looks) == (-2.0, 4.0, 4)


async def test_every_look_is_in_one_span_however_many_stand_alone(tickets: TicketDB) -> None:
    lights: tuple[Light, ...] = ("green", "green", "red", "unknown", "green", "green", "green")
    for i in range(40):
        await tickets.save_monitor_states([state(lights[i % 7], str(i), back_s=50 * (40 - i))])
    database = tickets.database
    whole = await spans(database)
    for single in (1, 2, 5, 6, 7, 20, 39, 40, 100):
        parts = await spans(database, single=single)
        assert sum(span.looks == 1 for span in parts) >= min(single, 40)
        assert len(parts) <= single + len(whole), "more looks stand alone than were wanted"
        for name in ("greens", "reds", "unknowns", "looks"):
            assert sum(getattr(s, name) for s in parts) == sum(getattr(s, name) for s in whole), (single, name)
        assert all(a.last < b.first for a, b in itertools.pairwise(parts))
        assert parts[-1].last == whole[-1].last
    assert len(await spans(database, back_s=99, single=40)) <= 3
    assert all(span.last >= round((NOW.timestamp() - 99) * 1000) for span in await spans(database, back_s=99))


async def test_spans_reach_back_as_far_as_looks_may_and_no_further(tickets: TicketDB) -> None:
    for key in ("disk", "gone"):
        await tickets.save_monitor_states([state("red", back_s=samples.KEPT_S + 700, key=key)])
    await tickets.save_monitor_states([state(back_s=samples.KEPT_S - 10)])
    await tickets.save_monitor_states([state()])
    everything = samples.KEPT_S + 10_000
    assert [span.reds for span in await spans(tickets.database, back_s=everything)] == [0, 0]
    assert [span.reds for span in await spans(tickets.database, "gone", back_s=everything)] == [1]
    await drop_forgotten(tickets.database)
    assert await spans(tickets.database, "gone", back_s=everything) == []


async def test_spans_outlive_looks_that_are_too_many(tickets: TicketDB, monkeypatch: pytest.MonkeyPatch) -> None:
    await tickets.save_monitor_states([state("unknown", back_s=7200)])
    rows = [{"violation_key": "disk", "at": i, "light": "green", "value": None} for i in range(samples.KEPT)]
    ms = round((NOW - timedelta(minutes=30)).timestamp() * 1000)
    async with tickets.database.begin() as c:
        await c.execute(monitor_samples.insert(), [{**row, "at": ms + row["at"]} for row in rows])
    await tickets.save_monitor_states([state()])
    assert (await newest_looks(tickets.database, 10_000))["disk"][0].light == "green"
    assert (await spans(tickets.database, single=10_000))[0].unknowns == 1


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
