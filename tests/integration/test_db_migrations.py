"""A database is created or upgraded when it is opened, by one process at a time, and never downgraded."""

from __future__ import annotations

import asyncio
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
from operator_core.db.schema import SCHEMA_REVISION, metadata
from operator_core.errors import SchemaMismatch
from operator_core.model.ticket import TicketStatus
from operator_core.redaction import Redactor
from tests.support.store import APPEND_ONLY_TRIGGERS, column_of, finish, start_work

RELEASED = ["0001"]
"""Every schema that a release has brought; each must upgrade to the newest. Never take one out."""

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
