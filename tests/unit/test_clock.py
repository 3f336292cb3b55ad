"""Time is aware of its zone, and can be made to run."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta, timezone

import hypothesis.strategies as st
from hypothesis import given

from operator_core import clock
from operator_core.clock import Clock, iso, new_id, new_session_id, parse_iso

EAST = timezone(timedelta(hours=5, minutes=30))


def test_now_is_utc() -> None:
    assert clock.now().utcoffset() == timedelta()
    assert abs(clock.now().timestamp() - time.time()) < 1


@given(st.integers(86_400_000_000, 7_258_118_400_000_000), st.sampled_from([UTC, EAST]))
def test_iso_and_back_is_the_same_moment(micros: int, zone: timezone) -> None:
    moment = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).astimezone(zone)
    text = iso(moment)
    assert parse_iso(text) == moment
    assert (len(text), text[-6:]) == (32, "+00:00"), "texts of one length sort as the moments do"


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_iso("2026-01-28 10:30:45") == datetime(2026, 1, 28, 10, 30, 45, tzinfo=UTC)
    assert iso(datetime(2026, 1, 28, 10, tzinfo=EAST)) == "2026-01-28T04:30:00.000000+00:00"


def test_session_ids_are_the_seeds_and_never_collide() -> None:
    moment = datetime(2026, 1, 28, 16, 0, 45, tzinfo=EAST)
    ids = {new_session_id(moment) for _ in range(1000)}
    assert len(ids) == 1000, "in one second (row A-024)"
    assert all(re.fullmatch(r"2026-01-28T10-30-45-[0-9a-f]{8}", i) for i in ids)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-[0-9a-f]{8}", new_session_id())
    assert re.fullmatch(r"[0-9a-f]{32}", new_id())
    assert new_id() != new_id()


async def test_an_hour_passes_in_a_moment() -> None:
    fast = Clock(rate=100_000)
    wall, mono, real = fast.now(), fast.monotonic(), time.monotonic()
    await fast.sleep(3600)
    assert fast.monotonic() - mono >= 3600
    assert fast.now() - wall >= timedelta(hours=1)
    assert time.monotonic() - real < 5


async def test_waiting_ends_with_the_event_or_with_the_time() -> None:
    fast, event = Clock(rate=1000), asyncio.Event()
    assert await fast.wait(event, 10) is False
    assert await fast.wait(event, -1) is False
    asyncio.get_running_loop().call_soon(event.set)
    start = time.monotonic()
    assert await fast.wait(event, 60_000) is True
    assert time.monotonic() - start < 5


def test_the_real_clock_is_not_sped_up() -> None:
    start, real = Clock().monotonic(), time.monotonic()
    assert abs((Clock().monotonic() - start) - (time.monotonic() - real)) < 0.5
