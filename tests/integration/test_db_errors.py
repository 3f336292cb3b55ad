"""What goes wrong with a store is said in one sentence that says what to do, and nothing that was stored is lost."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database, parse_url, safe_url
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.errors import (
    ConfigError,
    NotFound,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TransitionRefused,
)
from operator_core.model.entry import Draft
from tests.support import PostgresCluster, free_port
from tests.support.disks import small_disk
from tests.support.store import column_of, start_work

__all__ = ["small_disk"]

NOBODY = 65534

# Becomes another user (root may do everything), does one thing in a store and says how it ended. It does it once
# before, where it may, because what it has to import may not be readable for that user.
CHILD = """
import asyncio, os, sys
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.errors import OperatorError

async def main(path):
    async with Database.open(path) as database:
        await TicketDB(database).open_ticket("disk", "full")

asyncio.run(main(sys.argv[2]))
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
try:
    asyncio.run(main(sys.argv[1]))
except OperatorError as error:
    print(f"{type(error).__name__}: {error}")
else:
    print("fine")
"""


async def opened(where: str | Path, *, create: bool = True) -> None:
    async with Database.open(where, create=create) as database:
        await TicketDB(database).list_tickets()


async def said(where: str | Path, kind: type[StoreError | ConfigError], *, create: bool = True) -> str:
    with pytest.raises(kind) as caught:
        await opened(where, create=create)
    assert type(caught.value) is kind
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


async def test_a_missing_database_is_not_made_by_looking(tmp_path: Path) -> None:
    path = tmp_path / "no" / "operator.db"
    text = await said(path, StoreUnavailable, create=False)
    assert text == f"There is no database at {path}; check --db, or create one with `operator init`."
    assert not path.parent.exists()
    await opened(path)
    assert path.stat().st_mode & 0o777 == 0o600, "the journal is for its owner's eyes only"
    await opened(path, create=False)


async def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n" * 1000)
    text = await said(path, StoreUnavailable)
    assert text == f"{path} is not an Operator database or is damaged; choose another with --db."
    assert path.read_text() == "my notes\n" * 1000
    folder = await said(tmp_path, StoreUnavailable)
    assert folder == f"{tmp_path} is a folder; `--db` takes the path of a file."


async def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "operator.db"
    async with Database.open(path) as database:
        work = await start_work(database)
        await work.journal.append(*[Draft("note", "x", "y" * 1000) for _ in range(200)])
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 2, len(content)):
        content[at] = 0xA5
    path.write_bytes(content)
    async with Database.open(path) as database:
        with pytest.raises(StoreUnavailable, match="is not an Operator database or is damaged"):
            await verify(database)


async def test_an_address_that_is_none() -> None:
    text = await said("mysql://root:hunter22@host/x", ConfigError)
    assert text == "mysql is not supported; `--db` takes an SQLite file or a postgresql:// URL."
    text = await said("postgresql://user:hunter22@host:port/x", ConfigError)
    assert "hunter22" not in text
    assert "neither a file nor a database URL; check `--db`." in text


def as_nobody(path: Path) -> str:
    """What :data:`CHILD` says when it is run by a user without rights."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(path.parents[1] / "warm.db"), str(NOBODY)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can enter; pytest closes its own ones to others whenever a session starts."""
    with tempfile.TemporaryDirectory(prefix="operator-public-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_what_lies_behind_a_closed_folder_cannot_be_reached(public: Path) -> None:
    closed = public / "closed"
    closed.mkdir(mode=0o700)
    path = closed / "inner" / "operator.db"
    path.parent.mkdir()
    text = as_nobody(path)
    assert text == f"StoreUnavailable: The database {path} cannot be reached (Permission denied); check --db."


@pytest.mark.parametrize("case", ["file", "folder", "new"])
async def test_what_may_not_be_written_is_read_only(public: Path, case: str) -> None:
    folder = public / "place"
    folder.mkdir()
    path = folder / "operator.db"
    if case != "new":
        await opened(path)
    if case == "folder":  # the file could be written, but not its log beside it
        os.chown(path, NOBODY, NOBODY)
    elif case == "file":
        path.chmod(0o444)
        folder.chmod(0o777)
    text = as_nobody(path)
    wanted = {
        "file": f"The database {path} is read-only; give it write permission or choose another with --db.",
        "folder": f"The database {path} is read-only; give it write permission or choose another with --db.",
        "new": f"The database {path} cannot be created (Permission denied); choose another place with --db.",
    }
    assert text == f"StoreReadOnly: {wanted[case]}"


async def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "operator.db"
    sentence = f"The disk under {path} is full; free some space and start again, nothing stored is lost."
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 200_000)
    written = 0
    async with Database.open(path) as database:
        work = await start_work(database)
        with pytest.raises(StoreFull) as caught:  # noqa: PT012 - how many fit is not known
            while written < 1000:
                await work.journal.append(Draft("note", str(written), "z" * 10_000))
                written += 1
        assert str(caught.value) == sentence
        assert written > 5
        # Reading still works, and everything that was acknowledged is there.
        assert [e.content for e in await work.audit.entries(work.session_id)] == [str(n) for n in range(written)]
        with pytest.raises(StoreFull):
            await work.journal.append(Draft("note", "still full", "z" * 100_000))
        filler.unlink()
        await work.journal.append(Draft("note", str(written), "after"))
        assert (await verify(database)).ok
    async with Database.open(path) as database:
        entries = await AuditLogDB(database).entries(work.session_id)
        assert [e.content for e in entries] == [str(n) for n in range(written + 1)]
        assert (await verify(database)).ok


async def test_a_database_cannot_be_made_on_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "operator.db"
    (small_disk / "filler").write_bytes(b"x" * (1 << 20))
    text = await said(path, StoreFull)
    assert text == f"The disk under {path} is full; free some space and start again, nothing stored is lost."


async def test_a_server_that_is_down() -> None:
    port = free_port()
    text = await said(f"postgresql://me:hunter22@127.0.0.1:{port}/x", StoreUnavailable)
    shown = f"postgresql+asyncpg://me:***@127.0.0.1:{port}/x"
    reason = f"Connect call failed ('127.0.0.1', {port})"
    assert text == f"The database {shown} cannot be reached ({reason}); start it or check --db."


def test_parameters_of_an_address_are_known_ones() -> None:
    url = parse_url("postgresql://ann@db/operator?sslmode=verify-full&target_session_attrs=read-write")
    assert dict(url.query) == {"ssl": "verify-full", "target_session_attrs": "read-write"}
    with pytest.raises(ConfigError, match="a parameter 'sslPassword' that is not known; it takes host, ") as caught:
        parse_url("postgresql://ann@db/operator?sslPassword=geheim")
    assert "geheim" not in str(caught.value)


async def test_the_servers_encryption_is_asked_for(postgres_cluster: PostgresCluster) -> None:
    assert "SSL" in await said(f"{postgres_cluster.url()}?sslmode=require", StoreUnavailable)


async def test_a_password_among_the_parameters_is_not_shown() -> None:
    port = free_port()
    text = await said(f"postgresql://me@127.0.0.1:{port}/x?password=hunter22", StoreUnavailable)
    assert f"//me@127.0.0.1:{port}/x cannot be reached" in text
    assert "hunter22" not in text
    assert safe_url("postgresql://h:port/x?password=hunter22") == "postgresql://h:port/x"


async def test_a_wrong_password_and_a_database_that_is_not_there(postgres_cluster: PostgresCluster) -> None:
    wrong = make_url(postgres_cluster.url()).set(password="hunter22").render_as_string(hide_password=False)
    text = await said(wrong, StoreUnavailable)
    assert text.startswith("The database postgresql+asyncpg://operator:***@127.0.0.1:")
    assert text.endswith(
        'cannot be reached (password authentication failed for user "operator"); start it or check --db.'
    )
    text = await said(postgres_cluster.url("nowhere"), StoreUnavailable)
    assert text.endswith('cannot be reached (database "nowhere" does not exist); start it or check --db.')


@pytest.mark.xdist_group("postgres-crash")
async def test_a_server_that_goes_away_in_the_middle_is_waited_for(
    postgres_cluster: PostgresCluster, fresh_postgres: str
) -> None:
    async with Database.open(fresh_postgres) as database:
        work = await start_work(database, entries=2)
        postgres_cluster.crash()
        append = asyncio.create_task(work.journal.append(Draft("note", "during")))
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await TicketDB(database).list_tickets()
        postgres_cluster.start()
        await append
        assert len(await work.audit.entries(work.session_id)) == 3
        assert (await verify(database)).ok


async def test_a_store_in_which_somebody_dropped_a_table(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await column_of(store_url, "DROP TABLE monitor_states")
        with pytest.raises(SchemaMismatch, match="has no Operator tables; choose another with --db"):
            await TicketDB(database).monitor_states()


async def test_another_program_holds_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operator_core.db.engine._BUSY_MS", 100)
    path = tmp_path / "operator.db"
    await opened(path)
    other = sqlite3.connect(path, isolation_level=None)
    try:
        async with Database.open(path) as database:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable) as caught:
                await TicketDB(database).open_ticket("disk", "full")
            assert str(caught.value) == (f"The database {path} cannot be used (database is locked); check it and --db.")
            assert await TicketDB(database).list_tickets() == [], "reading goes on"
    finally:
        other.close()


async def test_what_is_asked_of_a_ticket_that_does_not_allow_it(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "operator.db") as database:
        tickets = TicketDB(database)
        with pytest.raises(NotFound, match=r"^There is no ticket #7; list them with `operator tickets list`\.$"):
            await tickets.get_ticket(7)
        work = await start_work(database)
        with pytest.raises(TransitionRefused, match="stop it first with `operator tickets cancel 1`"):
            await tickets.resolve_ticket(work.claim.ticket_id)
        with pytest.raises(
            TransitionRefused, match="Ticket #1 is running; only a closed or escalated one can be reopened"
        ):
            await tickets.reopen_ticket(work.claim.ticket_id)
        await tickets.open_ticket("disk", "x", key="disk:a")
        with pytest.raises(TransitionRefused, match="A ticket for disk:a is open already"):
            await tickets.open_ticket("disk", "x", key="disk:a")


async def test_a_store_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="This TicketDB is not open; use `async with"):
        await TicketDB(tmp_path / "operator.db").list_tickets()
    with pytest.raises(StoreError, match="This AuditLogDB is not open; use `async with"):
        await AuditLogDB(tmp_path / "operator.db").sessions()


async def test_a_server_that_vanishes_without_a_word_is_noticed(fresh_postgres: str) -> None:
    """Its machine lost its power, say: nobody would ever answer, and nobody would ever say so."""
    async with Database.open(fresh_postgres) as database, database.read() as connection:
        raw = await connection.get_raw_connection()
        assert raw.driver_connection is not None
        line = raw.driver_connection._transport.get_extra_info("socket")
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 15
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
