"""A database is created or upgraded when it is opened, by one process at a time, and never downgraded."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from operator_core.db.engine import Database, parse_url
from operator_core.db.integrity import verify
from operator_core.db.migrations import alembic_config
from operator_core.db.migrations.versions import __file__ as versions
from operator_core.db.queue import WorkQueue
from operator_core.db.schema import SCHEMA_REVISION, SCHEMA_SQL, metadata
from operator_core.db.spans import Span, read_spans
from operator_core.db.tickets import TicketDB
from operator_core.errors import SchemaMismatch
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import TicketStatus
from operator_core.redaction import Redactor
from tests.support.store import APPEND_ONLY_TRIGGERS, column_of, finish, start_work

RELEASED = ["0001", "0002", "0003", "0004", "0005", "0006", "0007"]
"""Every schema that a release has brought; each must upgrade to the newest. Never take one out."""

FROZEN = {
    "first_sqlite.sql": "8e3c24aa7ea23e822d3f2bcaacde90e9c92f40b10292414977c30e0db21d2d83",
    "first_postgresql.sql": "ab96c91cd4e2ae76cbfd0f7253a0844274b979eadf10ddc5a23fc9308236e601",
}
"""SHA-256 (hex) of statements that databases out there were made with."""

WORK_OF_0001 = """
INSERT INTO workers (id, host, pid, started_at, lease_until) VALUES ('w1', 'h', 7, '2026-01-28T00:00:00+00:00', 1);
INSERT INTO tickets (violation_key, invariant_name, first_seen_at, last_seen_at, message, status, owner, fence, held)
VALUES ('disk', 'disk', '2026-01-28T00:00:00+00:00', '2026-01-28T00:00:00+00:00', 'full', 'running', 'w1', 3, false);
INSERT INTO tickets (violation_key, invariant_name, first_seen_at, last_seen_at, message, status)
VALUES ('cpu', 'cpu', '2026-01-28T00:00:00+00:00', '2026-01-28T00:00:00+00:00', 'hot', 'escalated')
"""

FRESH_PROCESS = """
import asyncio, sys
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with Database.open(sys.argv[1]) as database:
        await TicketDB(database).open_ticket("disk", "full")

asyncio.run(main())
"""


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": False})
    return [d for d in compare_metadata(context, metadata) if "alembic_version" not in str(d)]


@pytest.mark.parametrize("revision", RELEASED)
async def test_every_released_schema_upgrades_to_the_metadata(store_url: str, revision: str) -> None:
    database = Database(parse_url(store_url), Redactor())
    async with database.begin() as c:
        config = alembic_config()

        def old(connection: Connection) -> None:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)

        await c.run_sync(old)
    await database.close()
    async with Database.open(store_url) as database:
        async with database.read() as c:
            assert await c.run_sync(differences) == []
            indexes = await c.run_sync(_indexes)
        assert indexes == {i.name for t in metadata.tables.values() for i in t.indexes}
        assert (await verify(database)).ok
        await finish(await start_work(database, entries=1))
        assert (await verify(database)).entries == 1
    assert await column_of(store_url, "SELECT version_num FROM alembic_version") == [SCHEMA_REVISION]
    catalog = "sqlite_master WHERE type = 'trigger'" if "://" not in store_url else "pg_trigger WHERE NOT tgisinternal"
    name = "name" if "://" not in store_url else "tgname"
    assert sorted(await column_of(store_url, f"SELECT {name} FROM {catalog}")) == sorted(APPEND_ONLY_TRIGGERS)


def _indexes(connection: Connection) -> set[str | None]:
    looker = inspect(connection)
    uniques = {u["name"] for t in metadata.tables for u in looker.get_unique_constraints(t)}
    return {i["name"] for t in metadata.tables for i in looker.get_indexes(t)} - uniques


def test_the_released_list_is_complete() -> None:
    script = ScriptDirectory.from_config(alembic_config())
    assert [r.revision for r in script.walk_revisions()][::-1] == RELEASED
    assert script.get_current_head() == SCHEMA_REVISION


async def test_work_in_progress_survives_the_upgrade(store_url: str) -> None:
    database = Database(parse_url(store_url), Redactor())
    config = alembic_config()

    def old(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for statement in WORK_OF_0001.split(";\n"):
            connection.exec_driver_sql(statement)

    async with database.begin() as c:
        await c.run_sync(old)
    await database.close()
    async with Database.open(store_url) as database:
        tickets, queue = TicketDB(database), WorkQueue(database)
        hot, full = await tickets.list_tickets()
        assert (hot.status, full.status, full.owner, full.fence) == ("escalated", "running", "w1", 3)
        assert {(t.pinned_to, t.cancel_now) for t in (hot, full)} == {(None, False)}
        # The worker of the old version is dead; one of the new version takes over, and all that is new works.
        assert await queue.reap() == 1
        await queue.register("w2", 60, "here")
        task = await tickets.submit_task(TaskSpec(name="n", prompt="p"), pinned_to="here")
        assert await queue.queue_busy("here") == 1
        assert await queue.promote("here") == 1
        assert {c.ticket_id for c in await queue.claim("w2", 5, "here")} == {full.id, task.id}
        assert (await tickets.cancel_ticket(full.id or 0, now=True)).cancel_now
        assert (await verify(database)).ok


async def test_the_looks_of_before_are_in_the_spans_of_the_monitor(store_url: str) -> None:
    database = Database(parse_url(store_url), Redactor())
    config = alembic_config()
    begin = 1_800_000_000_000
    looks = [("a", 0, "green", "2.5"), ("a", 30, "red", "9"), ("a", 299, "unknown", "50"), ("a", 300, "green", "NULL")]
    looks += [("a", 200, "unknown", "0.5"), ("b", 10, "unknown", "NULL")]

    def old(connection: Connection) -> None:
        config.attributes["connection"] = connection
        command.upgrade(config, "0005")
        for key, after_s, light, value in looks:
            at = begin + 1000 * after_s
            connection.exec_driver_sql(f"INSERT INTO monitor_samples VALUES ('{key}', {at}, '{light}', {value})")

    async with database.begin() as c:
        await c.run_sync(old)
    await database.close()
    async with Database.open(store_url) as database:
        assert await read_spans(database, ["a", "b"], begin) == {
            "a": [Span(begin, begin + 299_000, 1, 1, 2, 2.5, 9.0), Span(begin + 300_000, begin + 300_000, 1)],
            "b": [Span(begin + 10_000, begin + 10_000, 0, 0, 1)],
        }


def test_frozen_statements_stay_frozen() -> None:
    folder = Path(versions).parent
    assert {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in FROZEN} == FROZEN


async def test_the_sqlite_ddl_is_what_the_migrations_make(tmp_path: Path) -> None:
    path = tmp_path / "operator.db"
    async with Database.open(path):
        pass
    with closing(sqlite3.connect(path)) as made, closing(sqlite3.connect(":memory:")) as said:
        said.executescript(SCHEMA_SQL)
        for table in metadata.tables:
            look = f"PRAGMA table_info({table})"
            assert made.execute(look).fetchall() == said.execute(look).fetchall()
        partial = (
            "SELECT name, lower(substr(sql, instr(sql, 'WHERE'))) FROM sqlite_master WHERE type = 'index' ORDER BY 1"
        )
        where = [dict(c.execute(partial).fetchall()) for c in (made, said)]
        where[0].pop("sqlite_autoindex_alembic_version_1")
        assert where[0] == where[1]


async def test_a_database_of_a_newer_version_is_refused_and_untouched(store_url: str) -> None:
    async with Database.open(store_url):
        pass
    await column_of(store_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaMismatch) as caught:
        async with Database.open(store_url):
            raise AssertionError("it opened")
    assert str(caught.value) == (
        "The database was written by a newer version of Operator; upgrade Operator, or choose another with --db."
    )
    assert await column_of(store_url, "SELECT version_num FROM alembic_version") == ["9999"]


@pytest.mark.parametrize("round_", range(2))
async def test_processes_that_open_a_fresh_database_at_once_all_get_it(store_url: str, round_: int) -> None:
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", FRESH_PROCESS, store_url, stdin=pipe, stdout=pipe, stderr=pipe
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    answers = await asyncio.gather(*(p.communicate(b"\n") for p in processes))
    assert [p.returncode for p in processes] == [0] * 3, b"".join(a[1] for a in answers).decode()
    assert await column_of(store_url, "SELECT count(*) FROM tickets") == [3]


async def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "operator.db"
    async with Database.open(path) as database:
        await finish(await start_work(database, entries=1), TicketStatus.ESCALATED)
    with closing(sqlite3.connect(path)) as connection:
        before = list(connection.iterdump())
    async with Database.open(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert list(connection.iterdump()) == before
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    async with Database.open(copy) as database:
        assert (await verify(database)).ok, "a copied file is a whole database"


async def test_a_failed_migration_leaves_nothing_behind(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Operations.get_bind

    def failing(self: Operations) -> Any:
        connection = real(self)
        connection.execute(text("CREATE TABLE half_done (x INTEGER)"))
        raise ZeroDivisionError

    monkeypatch.setattr(Operations, "get_bind", failing)
    with pytest.raises(ZeroDivisionError):
        async with Database.open(store_url):
            pass
    monkeypatch.undo()
    catalog = "name FROM sqlite_master" if "://" not in store_url else "tablename FROM pg_tables"
    assert "half_done" not in await column_of(store_url, f"SELECT {catalog}")
    async with Database.open(store_url) as database:
        assert (await verify(database)).ok


async def test_several_new_stores_open_at_once_in_one_process(tmp_path: Path) -> None:
    async def open_one(number: int) -> bool:
        async with Database.open(tmp_path / f"{number}.db") as database:
            return (await verify(database)).ok

    assert await asyncio.gather(*(open_one(number) for number in range(6))) == [True] * 6
