"""A worker is woken by work, wherever it was made, and never misses it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest

from operator_core.db.engine import Database
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.db.wakeup import Wakeup
from tests.support import PostgresCluster, wait_until_async
from tests.support.store import column_of

LONG = 20.0

OTHER_PROCESS = """
import asyncio, sys
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB

async def main():
    async with Database.open(sys.argv[1]) as database:
        print("ready", flush=True)
        while sys.stdin.readline():
            await TicketDB(database).open_ticket("disk", "from another process")
            print("opened", flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def other_process(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", OTHER_PROCESS, url, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def quiet(wakeup: Wakeup) -> None:
    """Until nothing is left of what the test did itself, and the listener is connected."""
    await wait_until_async(lambda: _is_quiet(wakeup), timeout=LONG)


async def _is_quiet(wakeup: Wakeup) -> bool:
    return not await wakeup.wait(0.25)


async def test_work_made_in_this_process_wakes_at_once_and_is_there(store_url: str) -> None:
    async with Database.open(store_url) as database, Wakeup(database) as wakeup:
        queue, tickets = WorkQueue(database), TicketDB(database)
        await queue.register("w", 60)
        await quiet(wakeup)

        async def work() -> tuple[bool, float, int]:
            woken = await wakeup.wait(LONG)
            return woken, time.perf_counter(), len(await queue.claim("w"))

        latencies = []
        for _ in range(6):
            worker = asyncio.create_task(work())
            await asyncio.sleep(0)
            await tickets.open_ticket("disk", "full")
            opened = time.perf_counter()
            woken, at, claimed = await worker
            # Woken before the commit, it would find nothing and sleep on.
            assert (woken, claimed) == (True, 1)
            latencies.append(at - opened)
            await quiet(wakeup)
        assert max(latencies) < 0.5


async def test_work_made_in_another_process_wakes(store_url: str) -> None:
    async with Database.open(store_url) as database, Wakeup(database) as wakeup, other_process(store_url) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        await quiet(wakeup)
        for _ in range(3):
            waiting = asyncio.create_task(wakeup.wait(LONG))
            await asyncio.sleep(0)
            other.stdin.write(b"\n")
            assert await other.stdout.readline() == b"opened\n"
            committed = time.perf_counter()
            assert await waiting
            assert time.perf_counter() - committed < 1.0
            await quiet(wakeup)


async def test_what_happened_while_nobody_waited_ends_the_next_wait(store_url: str) -> None:
    async with Database.open(store_url) as database, Wakeup(database) as wakeup, other_process(store_url) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        await quiet(wakeup)
        other.stdin.write(b"\n")
        await other.stdout.readline()
        start = time.perf_counter()
        assert await wakeup.wait(LONG)
        assert time.perf_counter() - start < 1.0


async def test_the_time_out_is_kept(store_url: str) -> None:
    async with Database.open(store_url) as database, Wakeup(database) as wakeup:
        await quiet(wakeup)
        start = time.perf_counter()
        assert not await wakeup.wait(0.3)
        assert 0.29 < time.perf_counter() - start < 2.0
        assert not await wakeup.wait(0.0)


async def test_a_rolled_back_transaction_wakes_nobody(store_url: str) -> None:
    async with Database.open(store_url) as database, Wakeup(database) as wakeup:
        await quiet(wakeup)
        with suppress(ZeroDivisionError):
            async with database.begin() as c:
                await database.notify(c)
                raise ZeroDivisionError
        assert not await wakeup.wait(0.25)
        async with database.begin():
            pass  # on the same pooled connection: the flag must not have survived
        assert not database.ready.is_set()


async def test_a_lost_connection_is_made_again_and_counts_as_a_wake_up(fresh_postgres: str) -> None:
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'operator-wakeup'"
    async with Database.open(fresh_postgres) as database, Wakeup(database) as wakeup:
        await quiet(wakeup)
        assert await column_of(fresh_postgres, kill) == [True]
        assert await wakeup.wait(LONG), "what was missed meanwhile must be looked for"
        await quiet(wakeup)
        waiting = asyncio.create_task(wakeup.wait(LONG))
        await asyncio.sleep(0)
        await column_of(fresh_postgres, "SELECT pg_notify('operator_ready', '')")
        assert await waiting


@pytest.mark.xdist_group("postgres-crash")
async def test_a_server_that_comes_back_is_found_again(postgres_cluster: PostgresCluster, fresh_postgres: str) -> None:
    async with Database.open(fresh_postgres) as database, Wakeup(database) as wakeup:
        await quiet(wakeup)
        postgres_cluster.crash()
        assert not await wakeup.wait(0.5), "without a server the time-out remains"
        postgres_cluster.start()
        assert await wakeup.wait(LONG)


async def test_nothing_is_left_connected(fresh_postgres: str) -> None:
    async with Database.open(fresh_postgres) as database:
        async with Wakeup(database) as wakeup:
            await quiet(wakeup)
        address = fresh_postgres.replace("+asyncpg", "")
        other = await asyncpg.connect(address)
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'operator-wakeup'"

        async def none_left() -> bool:
            return bool(await other.fetchval(count) == 0)

        await wait_until_async(none_left)
        await other.close()
