"""``kill -9`` of a courier at every instruction that matters: nothing is lost, nothing overtakes, nothing is silent."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from operator_core.db.engine import Database
from operator_core.notify.outbox import put
from tests.support.store import column_of

LETTERS = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]

# Its effect is a line in a file: what happened, and in which attempt.
COURIER = """
import asyncio, json, os, sys
from operator_core.db.engine import Database
from operator_core.failpoints import reach
from operator_core.notify.courier import Courier
from operator_core.notify.outbox import Delivered

async def deliver(letter):
    reach("effect.before")
    with open(sys.argv[2], "a") as file:
        file.write(json.dumps([letter.channel, letter.body["n"], letter.attempt]) + "\\n")
    reach("effect.after")
    return Delivered()

async def main():
    async with Database.open(sys.argv[1]) as database:
        sys.exit(await Courier(database, deliver, lease_s=0.6, poll_s=0.02).drain(20))

asyncio.run(main())
"""


@pytest.mark.deep
async def test_every_letter_goes_out_in_order_however_often_its_courier_dies(store_url: str, tmp_path: Path) -> None:
    effects, log = tmp_path / "effects", tmp_path / "crashes"
    async with Database.open(store_url) as database:
        for channel, n in LETTERS:
            async with database.begin() as c:
                await put(c, channel, "test", {"n": n}, dedupe_key=str(n))
    deaths = 0
    for place in range(1, 100):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", COURIER, store_url, str(effects)),
            env={**os.environ, "OPERATOR_CRASH_AT": str(place), "OPERATOR_CRASH_LOG": str(log)},
            stderr=subprocess.PIPE,
        )
        _, errors = await process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -9, errors.decode()
        deaths += 1
    crashes = log.read_text().split()
    print(f"{deaths} deaths at {crashes}")
    seen = [json.loads(line) for line in effects.read_text().splitlines()]
    print(seen)
    assert deaths >= 5
    # Channels are carried at the same time, so that not every name has its turn here; the next test has each of them.
    assert {"outbox.taken", "effect.before", "effect.after"} <= set(crashes)
    assert {(c, n) for c, n, _ in seen} == set(LETTERS)
    for channel in "ab":
        numbers = [n for c, n, _ in seen if c == channel]
        assert numbers == sorted(numbers), "nothing goes out behind a letter that had its effect"
    for _, n, attempt in seen:
        first = next(a for _, m, a in seen if m == n)
        assert attempt == first or attempt > 1, "a repetition knows that it may be one"
    left = await column_of(store_url, "SELECT count(*) FROM outbox WHERE ended_at IS NULL")
    assert left == [0]


@pytest.mark.parametrize("place", ["outbox.taken", "effect.before", "effect.after", "outbox.ended:test"])
async def test_the_next_courier_goes_on_wherever_one_died(store_url: str, tmp_path: Path, place: str) -> None:
    effects = tmp_path / "effects"
    async with Database.open(store_url) as database:
        for channel, n in LETTERS:
            async with database.begin() as c:
                await put(c, channel, "test", {"n": n}, dedupe_key=str(n))
    for crash_at, code in ((f"{place}:2", -9), ("", 0)):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", COURIER, store_url, str(effects)),
            env={**os.environ, "OPERATOR_CRASH_AT": crash_at},
            stderr=subprocess.PIPE,
        )
        _, errors = await process.communicate()
        assert process.returncode == code, errors.decode()
    seen = [json.loads(line) for line in effects.read_text().splitlines()]
    for channel in "ab":
        numbers = [n for c, n, _ in seen if c == channel]
        assert numbers == sorted(numbers)
    twice = len(seen) - len({n for _, n, _ in seen})
    assert ({n for _, n, _ in seen}, twice <= 2) == ({n for _, n in LETTERS}, True)
