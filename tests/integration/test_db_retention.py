"""Retention deletes by rule only, leaves signed tombstones, and never touches work that may go on."""

from __future__ import annotations

import hashlib
import sqlite3
import stat
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from operator_core import clock
from operator_core.db import retention
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.ledger import recent_rows
from operator_core.db.retention import KEY_NAME, create_key, load_key, prune
from operator_core.errors import ConfigError
from operator_core.model.entry import Draft
from operator_core.model.ticket import TicketStatus
from tests.support.store import Work, column_of, finish, start_work

ALL = timedelta()


async def with_blob(work: Work, folder: Path, text: bytes) -> str:
    file = folder / "output"
    file.write_bytes(text)
    digest = await work.audit.store_blob(file)
    await work.journal.append(Draft("tool_result", "long", meta={"stdout_blob": digest, "size": len(text)}))
    return digest


async def test_what_is_closed_goes_and_what_is_not_stays(store_url: str, tmp_path: Path) -> None:
    async with Database.open(store_url) as database:
        works = [await start_work(database, entries=2) for _ in range(6)]
        resolved, watched, escalated, reopened, waiting, running = works
        await finish(resolved)
        await finish(watched, watch_s=3600)
        await finish(escalated, TicketStatus.ESCALATED)
        await finish(reopened)
        await reopened.tickets.reopen_ticket(reopened.claim.ticket_id)
        assert await waiting.queue.park(waiting.claim, 0)
        # A session that is closed while its ticket is still being worked on.
        alone = AuditLogDB(database)
        second = await alone.create_session(running.claim.ticket_id)
        await alone.complete_session(second, "failed", "a try")
        standalone = await alone.create_session(None)
        await alone.log_entry(standalone, "note", "x", None, None, None, None)
        await alone.complete_session(standalone, "completed", "done")

        planned = await prune(database, older_than=ALL, keep=None, state_dir=tmp_path / "state", dry_run=True)
        assert planned == ((resolved.session_id, standalone), 3, 0)
        assert not (tmp_path / "state").exists()
        done = await prune(database, older_than=ALL, keep=None, state_dir=tmp_path / "state", actor="ann (cli)")
        assert done == planned
        assert [row.body["actor"] for row in await recent_rows(database, before=2**62, limit=2)] == ["ann (cli)"] * 2
        assert await alone.entries(resolved.session_id) == []
        assert [len(await alone.entries(w.session_id)) for w in works] == [0, 2, 2, 2, 2, 2]
        assert (await alone.session(resolved.session_id)).entries == 2, "the head stays"
        report = await verify(database, key=load_key(tmp_path / "state"))
        assert (report.ok, report.pruned, report.signatures_checked) == (True, 2, True)
        again = await prune(database, older_than=ALL, keep=None, state_dir=tmp_path / "state")
        assert again == ((), 0, 0)


async def test_age_and_number_must_both_allow_it(tmp_path: Path) -> None:
    store = str(tmp_path / "operator.db")
    async with Database.open(store) as database:
        names = []
        for _ in range(4):
            work = await start_work(database, entries=1)
            await finish(work)
            names.append(work.session_id)
        for days, name in enumerate(reversed(names)):
            ended = clock.iso(clock.now() - timedelta(days=days, minutes=1))
            await column_of(store, "UPDATE agent_sessions SET ended_at = $1 WHERE session_id = $2", ended, name)

        async def planned(older_than: timedelta | None, keep: int | None) -> list[str]:
            answer = await prune(database, older_than=older_than, keep=keep, state_dir=tmp_path, dry_run=True)
            return list(answer.sessions)

        assert await planned(None, 1) == names[:3]
        assert await planned(timedelta(days=2), None) == names[:2]
        assert await planned(timedelta(days=2), 1) == names[:2]
        assert await planned(ALL, 3) == names[:1]
        assert await planned(None, 9) == []
        assert await planned(timedelta(days=4), None) == []
        with pytest.raises(ConfigError, match="needs a rule"):
            await planned(None, None)
        with pytest.raises(ConfigError, match="cannot be negative"):
            await planned(None, -1)


async def test_outputs_go_with_the_last_journal_that_names_them(store_url: str, tmp_path: Path) -> None:
    async with Database.open(store_url) as database:
        first, second, third = [await start_work(database) for _ in range(3)]
        own = await with_blob(first, tmp_path, b"only mine" * 100_000)
        shared = await with_blob(first, tmp_path, b"of both")
        assert await with_blob(third, tmp_path, b"of both") == shared
        other = await with_blob(second, tmp_path, b"of the second")
        await finish(first)
        done = await prune(database, older_than=ALL, keep=None, state_dir=tmp_path)
        assert (done.entries, done.blobs) == (2, 1)
        there = set(await column_of(store_url, "SELECT DISTINCT digest FROM blob_chunks"))
        assert there == {shared, other}
        assert own not in there
        await finish(third)
        await finish(second)
        assert (await prune(database, older_than=ALL, keep=None, state_dir=tmp_path)).blobs == 2
        assert await column_of(store_url, "SELECT digest FROM blob_chunks") == []
        assert (await verify(database, key=create_key(tmp_path))).ok


async def test_outputs_left_behind_by_an_interrupted_run_are_found_by_the_next(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "operator.db") as database:
        work = await start_work(database)
        await with_blob(work, tmp_path, b"output")
        await finish(work)
        chunks = await column_of(str(tmp_path / "operator.db"), "SELECT data FROM blob_chunks")
        await prune(database, older_than=ALL, keep=None, state_dir=tmp_path)
        async with database.begin() as c:  # as if it had been killed before it came to the outputs
            digest = hashlib.sha256(chunks[0]).hexdigest()
            await c.exec_driver_sql("INSERT INTO blob_chunks (digest, n, data) VALUES (?, 0, ?)", (digest, chunks[0]))
        assert (await prune(database, older_than=ALL, keep=None, state_dir=tmp_path)).blobs == 1


async def test_a_ticket_reopened_during_the_run_keeps_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Database.open(tmp_path / "operator.db") as database:
        works = [await start_work(database, entries=1) for _ in range(2)]
        for work in works:
            await finish(work)
        make = retention.create_key

        def make_key(folder: Path) -> bytes:
            # The key is made between the choice and the deletion: that is when a person reopens the second ticket.
            with closing(sqlite3.connect(tmp_path / "operator.db")) as other, other:
                other.execute("UPDATE tickets SET status = 'open' WHERE id = ?", (works[1].claim.ticket_id,))
            return make(folder)

        monkeypatch.setattr(retention, "create_key", make_key)
        done = await prune(database, older_than=ALL, keep=None, state_dir=tmp_path)
        assert done.sessions == (works[0].session_id,)
        assert len(await works[1].audit.entries(works[1].session_id)) == 1


async def test_a_tombstone_without_the_right_signature_is_a_forgery(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "operator.db") as database:
        work = await start_work(database, entries=3)
        await finish(work)
        await prune(database, older_than=ALL, keep=None, state_dir=tmp_path / "attacker")
        create_key(tmp_path / "ours")
        assert (await verify(database)).ok, "without the key nothing can be said about signatures"
        problem = (await verify(database, key=load_key(tmp_path / "ours"))).problem
        assert problem is not None
        assert (problem.what, problem.where) == ("tombstone forged", work.session_id)


async def test_the_journal_cannot_be_deleted_without_a_tombstone(store_url: str) -> None:
    async with Database.open(store_url) as database:
        work = await start_work(database, entries=1)
        await finish(work)
        with pytest.raises(Exception, match="append-only"):
            await column_of(store_url, "DELETE FROM agent_log_entries")
        assert (await verify(database)).ok


def test_the_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    assert load_key(tmp_path / "state") is None
    key = create_key(tmp_path / "state")
    path = tmp_path / "state" / KEY_NAME
    assert len(key) == 32
    assert create_key(tmp_path / "state") == key == load_key(tmp_path / "state")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == [KEY_NAME]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="is open to others; run `chmod 600"):
        load_key(tmp_path / "state")
    path.chmod(0o600)
    path.write_text("zz")
    with pytest.raises(ConfigError, match="is damaged"):
        load_key(tmp_path / "state")
