"""A store with years of work in it is upgraded while others hold it: nothing is lost, and it does not take for ever."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url

from operator_core.api.local import LocalApi
from operator_core.config import Settings
from operator_core.db import engine
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.migrations import _ADVISORY_LOCK
from operator_core.db.schema import SCHEMA_REVISION
from operator_core.db.tickets import TicketDB
from operator_core.errors import StoreUnavailable
from operator_core.model.person import Actor, Role
from tests.support.crowd import Crowd, make_crowd, old_schema
from tests.support.depth import DEEP
from tests.support.store import column_of

FEW, MANY = (3_000, 3_000), (100_000, 100_000)
"""Tickets, and entries of one session."""
BOUND_S = 180.0
"""It takes about 10 s on two calm cores, with three starts of an interpreter; a machine may have more to do."""

# A process of the new version that comes at the same moment, and works.
WORKER = """
import asyncio, sys
from operator_core.db.engine import Database
from operator_core.db.queue import WorkQueue

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with Database.open(sys.argv[1]) as database:
        queue = WorkQueue(database)
        await queue.register(sys.argv[2], 600, sys.argv[2], 1)
        print(*(claim.ticket_id for claim in await queue.claim(sys.argv[2], 1, sys.argv[2])))

asyncio.run(main())
"""


@asynccontextmanager
async def old_reader(url: str) -> AsyncIterator[Any]:
    """A process of the old version in the middle of reading: it asks for the number of tickets, again and again."""
    if "://" not in url:
        with closing(sqlite3.connect(url, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            yield lambda: connection.execute("SELECT count(*) FROM tickets").fetchone()[0]
        return
    connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetchval("SELECT count(*) FROM tickets")
        yield transaction
    finally:
        await connection.close()


async def sums(url: str, columns: dict[str, list[str]]) -> dict[str, Any]:
    """Of each table how many rows it has, and something that every value of them is in."""
    found: dict[str, Any] = {}
    for table, names in columns.items():
        if "://" not in url:
            with closing(sqlite3.connect(url)) as connection:
                asked = f"SELECT {', '.join(names)} FROM {table}"
                rows = [hash(row) for row in connection.execute(asked)]
                found[table] = (len(rows), sum(rows))
        else:
            whole = f"hashtextextended(row({', '.join(names)})::text, 0)::numeric"
            found[table] = await column_of(url, f"SELECT count(*) || ' ' || coalesce(sum({whole}), 0) FROM {table}")
    return found


async def columns_of(url: str) -> dict[str, list[str]]:
    """The columns of all tables, as they are before the upgrade."""
    if "://" not in url:
        tables = await column_of(url, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        names = {t: await column_of(url, f"SELECT name FROM pragma_table_info('{t}')") for t in tables}
    else:
        tables = await column_of(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        asked = "SELECT column_name FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position"
        names = {t: await column_of(url, asked, t) for t in tables}
    names.pop("alembic_version")
    return names


async def upgraded_by_many(url: str) -> list[int]:
    """Several processes of the new version open it at once; the tickets that they claimed."""
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, url, f"new-{n}"), stdin=pipe, stdout=pipe, stderr=pipe
        )
        for n in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    answers = await asyncio.gather(*(p.communicate(b"\n") for p in processes))
    assert [p.returncode for p in processes] == [0] * 3, b"".join(a[1] for a in answers).decode()
    return [int(word) for out, _ in answers for word in out.split()]


async def pages(database: Database, crowd: Crowd) -> None:
    """What people look at first is there, and is what was there before."""
    api = LocalApi(database, Settings(), Actor("ann", Role.VIEWER, "api", "t1"))
    board = await api.board()
    assert board.counts["resolved"] == len(crowd.of("resolved"))
    session = await api.session(crowd.long_session)
    assert session.entries == crowd.entries
    assert (await api.entries(crowd.long_session, after=crowd.entries - 3)).items[-1].seq == crowd.entries - 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("revision", ["0004", "0005"])
async def test_nothing_is_lost(store_url: str, revision: str) -> None:
    # The oldest of them has the longest way.
    tickets, entries = MANY if DEEP and revision == "0004" else FEW
    crowd = await make_crowd(store_url, count=tickets, entries=entries, revision=revision)
    columns = await columns_of(store_url)
    before = await sums(store_url, columns)
    async with old_reader(store_url) as reader:
        began = time.monotonic()
        upgrading = asyncio.create_task(upgraded_by_many(store_url))
        if "://" in store_url and revision == "0004":
            # Its lock is in the way of new columns; what comes meanwhile waits, and is not refused. Since then there
            # are only new tables, for which nobody waits.
            await asyncio.sleep(1.0)
            assert not upgrading.done()
            await reader.commit()
        claimed = await upgrading
        took = time.monotonic() - began
        if "://" not in store_url:
            assert reader() == tickets, "it still sees what it saw"
    print(f"{revision}: {tickets} tickets, {entries} entries in one session: {took:.1f} s")
    assert took < BOUND_S
    assert await column_of(store_url, "SELECT version_num FROM alembic_version") == [SCHEMA_REVISION]
    assert len(set(claimed)) == 3
    opened = set(crowd.of("open"))
    assert set(claimed) <= opened
    # What three workers wrote is all that is new.
    for table in ("workers", "tickets", "ledger", "ledger_head"):
        columns.pop(table)
    after = await sums(store_url, columns)
    assert after == {table: before[table] for table in columns}
    assert await column_of(store_url, "SELECT count(*) FROM tickets") == [tickets]
    async with Database.open(store_url) as database:
        await pages(database, crowd)
        assert len(await TicketDB(database).list_tickets(limit=10)) == 10
        report = await verify(database)
        assert report.ok, report.problem


async def test_one_who_never_lets_go_is_one_sentence_and_nothing_changes(
    fresh_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine._PG_SETTINGS, "lock_timeout", "500")
    await make_crowd(fresh_postgres, count=20, entries=20, revision="0004")
    async with old_reader(fresh_postgres) as reader:
        with pytest.raises(StoreUnavailable) as caught:
            async with Database.open(fresh_postgres):
                raise AssertionError("it opened")
        text = str(caught.value)
        assert "\n" not in text
        assert text.endswith("end the older processes that use it, and start again; nothing was changed.")
        assert await column_of(fresh_postgres, "SELECT version_num FROM alembic_version") == ["0004"]
        await reader.commit()
    async with Database.open(fresh_postgres) as database:
        assert (await verify(database)).ok


async def test_whoever_comes_while_it_is_upgraded_waits_for_it(
    fresh_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than for anything else: the tables may be large."""
    monkeypatch.setitem(engine._PG_SETTINGS, "lock_timeout", "300")
    await old_schema(fresh_postgres, "0004")
    other = await asyncpg.connect(
        make_url(fresh_postgres).set(drivername="postgresql").render_as_string(hide_password=False)
    )

    async def opened() -> bool:
        async with Database.open(fresh_postgres) as database:
            return (await verify(database)).ok

    try:
        async with other.transaction():
            await other.execute(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            opening = asyncio.create_task(opened())
            await asyncio.sleep(1.0)
            assert not opening.done()
        assert await opening
    finally:
        await other.close()
