"""Couriers in many processes, killed at any time, with deliveries longer than a lease: a channel never has two."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operator_core.db.engine import Database
from operator_core.errors import TransitionRefused
from operator_core.notify.outbox import again, put, slips
from tests.support.depth import DEEP
from tests.support.store import column_of

LEASE_S = 1.0
CHANNELS, LETTERS = ("a", "b", "c", "d"), 12
ROUNDS = 12 if DEEP else 4

# Two couriers of one store in one process; each delivery leaves a line when it begins and when it ends.
COURIERS = """
import asyncio, json, os, random, sys, time
from operator_core.db.engine import Database
from operator_core.notify.courier import Courier
from operator_core.notify.outbox import Delivered, Later, Never

store, log, seed, lease = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), sys.argv[3], float(sys.argv[4])
chance = random.Random(seed)
lag = 0.0

def note(what, letter, carry):
    line = [what, f"{os.getpid()}/{carry}", letter.channel, letter.body["n"], letter.attempt, time.monotonic(), lag]
    os.write(log, (json.dumps(line) + "\\n").encode())

async def deliver(letter):
    carry = chance.random()
    note("begin", letter, carry)
    end = "dropped"
    try:
        await asyncio.sleep(chance.choice([0, 0.01, 0.1, 0.3, 2.5 * lease if chance.random() < 0.2 else 0.05]))
        end = "later" if chance.random() < 0.1 else "never" if chance.random() < 0.15 else "delivered"
    finally:
        note(end, letter, carry)
    return {"later": Later("busy", 0.05), "never": Never("no")}.get(end) or Delivered()

async def watch():
    global lag
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.05)
        lag = max(lag, time.monotonic() - before - 0.05)

async def main():
    watching = asyncio.create_task(watch())
    async with Database.open(store) as database:
        one, two = (Courier(database, deliver, lease_s=lease, poll_s=0.02, at_once=3) for _ in "12")
        stop = asyncio.Event()
        running = asyncio.create_task(one.run(stop))
        left = await two.drain(60)
        stop.set()
        await running
    sys.exit(min(left, 1))

asyncio.run(main())
"""


class Carry(NamedTuple):
    """One delivery; ``lag`` is the longest time (s) for which its process stood still until then."""

    n: int
    attempt: int
    began: float
    ended: float
    how: str
    lag: float


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_channel_never_has_two_letters_under_way(store_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    deaths: dict[str, float] = {}
    chance = random.Random(5)
    async with Database.open(store_url) as database:
        for n in range(LETTERS):
            for channel in CHANNELS:
                async with database.begin() as c:
                    await put(c, channel, "test", {"n": n}, dedupe_key=f"{channel}{n}")
        processes: list[asyncio.subprocess.Process] = []

        async def start() -> None:
            words = (COURIERS, store_url, str(log), str(chance.random()), str(LEASE_S))
            processes.append(await asyncio.create_subprocess_exec(sys.executable, "-c", *words, stderr=subprocess.PIPE))

        try:
            for _ in range(3):
                await start()
            for _ in range(ROUNDS):
                await asyncio.sleep(chance.uniform(0.8, 2.0))
                await _revive(database, chance)
                victim = processes.pop(0)
                if victim.returncode is None:
                    victim.kill()
                    await victim.wait()
                    deaths[str(victim.pid)] = time.monotonic()
                await start()
            for process in processes:
                _, errors = await process.communicate()
                assert process.returncode == 0, errors.decode()
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    _check(log, deaths)
    assert await column_of(store_url, "SELECT count(*) FROM outbox WHERE ended_at IS NULL") == [0]


async def _revive(database: Database, chance: random.Random) -> None:
    for slip in await slips(database):
        if slip.ended_at is not None and chance.random() < 0.7:
            try:
                await again(database, slip.id)
            except TransitionRefused:
                continue


def _check(log: Path, deaths: dict[str, float]) -> None:
    begun: dict[str, list[Any]] = {}
    carries: defaultdict[str, list[Carry]] = defaultdict(list)
    for what, carry, channel, n, attempt, at, lag in map(json.loads, log.read_text().splitlines()):
        if what == "begin":
            begun[carry] = [channel, n, attempt, at, lag]
        else:
            channel, n, attempt, began, _ = begun.pop(carry)
            carries[channel].append(Carry(n, attempt, began, at, what, lag))
    for carry, (channel, n, attempt, began, lag) in begun.items():
        carries[channel].append(Carry(n, attempt, began, deaths[carry.split("/")[0]], "killed", lag))
    overlaps, order = [], []
    for channel, found in carries.items():
        found.sort(key=lambda one: one.began)
        ended: set[int] = set()
        for before, after in zip([None, *found], found, strict=False):
            # A process that stood still for longer than its lease has lost it; nobody can help that.
            if before and after.began < before.ended and max(before.lag, after.lag) < LEASE_S / 2:
                overlaps.append((channel, before, after))
            if missing := set(range(after.n)) - ended:
                order.append((channel, after, missing))
            if after.how in ("delivered", "never"):
                ended.add(after.n)
    every = [one for found in carries.values() for one in found]
    killed, lag = sum(one.how == "killed" for one in every), max(one.lag for one in every)
    print(f"{len(every)} deliveries, {len(deaths)} deaths, {killed} on the way, longest lag {lag:.2f} s")
    assert not order, f"out of order: {order}"
    assert not overlaps, f"{len(overlaps)} at once: {overlaps}"
