"""Many processes want the same ticket: exactly one gets it, every time."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from tests.support.depth import DEEP
from tests.support.store import column_of

RACERS = 32
ROUNDS = int(os.environ.get("OPERATOR_RACE_ROUNDS") or (300 if DEEP else 50))

# One process imports everything and forks the racers, which then live through all rounds. They start together: one
# write of so many bytes, one for each racer. Two pipes take turns, so that a fast racer cannot eat a slow one's byte.
RACE = """
import asyncio, json, os, sys
import aiosqlite, alembic.command, asyncpg
from operator_core.db.engine import Database
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB

url, racers, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start, answers = [os.pipe(), os.pipe()], os.pipe()

async def racer(number):
    async with Database.open(url) as database:
        queue = WorkQueue(database)
        await queue.register(f"racer-{number}", 600)
        os.write(answers[1], bytes([0]))
        for round in range(rounds):
            os.read(start[round % 2][0], 1)
            os.write(answers[1], bytes([len(await queue.claim(f"racer-{number}"))]))

async def referee():
    async with Database.open(url) as database:
        tickets = TicketDB(database)
        collect()
        results = []
        for round in range(rounds):
            await tickets.open_ticket("disk", "full")
            os.write(start[round % 2][1], b"g" * racers)
            results.append(sum(collect()))
        print(json.dumps(results))

def collect():
    got = b""
    while len(got) < racers:
        piece = os.read(answers[0], racers - len(got))
        assert piece, "a racer is gone"
        got += piece
    return got

children = []
for number in range(racers):
    child = os.fork()
    if child == 0:
        for pipe in start:
            os.close(pipe[1])
        try:
            asyncio.run(racer(number))
        finally:
            os._exit(0)
    children.append(child)
os.close(answers[1])
asyncio.run(referee())
for child in children:
    os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)  # as long as it has to; a racer that is gone ends it at once
async def test_of_32_processes_exactly_one_gets_the_ticket(store_url: str) -> None:
    async with Database.open(store_url):
        pass
    pipe = asyncio.subprocess.PIPE
    race = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RACE, store_url, str(RACERS), str(ROUNDS), stdout=pipe, stderr=pipe
    )
    out, errors = await race.communicate()
    assert race.returncode == 0, errors.decode()
    assert json.loads(out) == [1] * ROUNDS
    assert await column_of(store_url, "SELECT count(*) FROM tickets WHERE status = 'running' AND fence = 1") == [ROUNDS]
    owners = await column_of(store_url, "SELECT count(DISTINCT owner) FROM tickets")
    assert owners[0] > RACERS // 4, "there was no race: always the same few won"
    async with Database.open(store_url) as database:
        assert (await verify(database)).ok
