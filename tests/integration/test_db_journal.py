"""The journal keeps exactly what was written, in order, and lets nobody change it (rows A-036, A-041 to A-044)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from operator_core import clock
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.errors import Fenced, NotFound, StoreError, TransitionRefused
from operator_core.model.entry import Draft
from operator_core.model.ticket import TicketStatus
from tests.support.store import column_of, finish, start_work

# Everything a model or a tool can put into JSON, also what is no valid Unicode.
TEXT = st.text(st.characters(exclude_categories=[]) | st.sampled_from('\0\ud800\udfff\u2028𝕏é"\\\n\r\t'), max_size=20)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    async with Database.open(store_url) as database:
        yield database


async def test_a_session_as_the_seed_writes_it(database: Database) -> None:
    async with AuditLogDB(database) as audit:
        ticket = (await start_work(database)).claim.ticket_id
        session_id = await audit.create_session(ticket)
        info = await audit.session(session_id)
        assert (info.status, info.ticket_id, info.ended_at) == ("running", ticket, None)
        ids = [
            await audit.log_entry(session_id, "reasoning", "I look at the disk", "full text", None, None, None),
            await audit.log_entry(session_id, "tool_call", "df", None, "shell", {"command": "df -h", "é": [1]}, None),
            await audit.log_entry(session_id, "tool_result", "full", "100 %", "shell", None, 0),
        ]
        assert all(isinstance(i, int) for i in ids)
        assert ids == sorted(set(ids))
        rows = await audit.get_session_entries(session_id)
        assert [r["id"] for r in rows] == ids
        assert [r["entry_type"] for r in rows] == ["reasoning", "tool_call", "tool_result"]
        assert [r["tool_params"] for r in rows] == [None, {"command": "df -h", "é": [1]}, None]
        assert [r["exit_code"] for r in rows] == [None, None, 0]
        assert [r["raw_content"] for r in rows] == ["full text", None, "100 %"]
        assert clock.parse_iso(rows[0]["timestamp"]).utcoffset() == timedelta()
        await audit.complete_session(session_id, "resolved", "It was the log file.")
        info = await audit.session(session_id)
        assert (info.status, info.outcome_summary) == ("completed", "It was the log file.")
        assert info.ended_at is not None
        assert clock.now() - clock.parse_iso(info.ended_at) < timedelta(minutes=1)


async def test_the_stored_parameters_are_json_text(tmp_path: Path) -> None:
    store = str(tmp_path / "operator.db")
    async with AuditLogDB(store) as audit:
        session_id = await audit.create_session(None)
        await audit.log_entry(session_id, "tool_call", "x", None, "shell", {"command": "ls é"}, None)
    (text,) = await column_of(store, "SELECT tool_params FROM agent_log_entries")
    assert json.loads(text) == {"command": "ls é"}


async def test_a_closed_session_stays_closed(database: Database) -> None:
    audit = AuditLogDB(database)
    session_id = await audit.create_session(None)
    journal = await audit.journal(session_id)
    await journal.append(Draft("note", "x"))
    await audit.complete_session(session_id, "failed", "first")
    await audit.complete_session(session_id, "completed", "second")
    info = await audit.session(session_id)
    assert (info.status, info.outcome_summary) == ("failed", "first")
    with pytest.raises(TransitionRefused, match=f"Session {session_id} is failed"):
        await audit.log_entry(session_id, "note", "late", None, None, None, None)
    with pytest.raises(TransitionRefused):
        await journal.append(Draft("note", "late"))
    assert (await verify(database)).ok


async def test_what_does_not_exist_is_said_so(database: Database) -> None:
    audit = AuditLogDB(database)
    for call in (
        audit.log_entry("nobody", "note", "x"),
        audit.complete_session("nobody", "failed", "x"),
        audit.journal("nobody"),
        audit.session("nobody"),
    ):
        with pytest.raises(NotFound, match="There is no session nobody"):
            await call
    session_id = await audit.create_session(None)
    with pytest.raises(StoreError, match="'done' is no session status; use one of running, completed"):
        await audit.complete_session(session_id, "done", "x")


async def test_order_is_that_of_writing_also_with_equal_times(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = datetime(2026, 1, 28, 10, 30, 45, 123456, UTC)
    monkeypatch.setattr(clock, "now", lambda: moment)
    work = await start_work(database)
    await asyncio.gather(*(work.journal.append(Draft("a", str(n)), Draft("b", str(n))) for n in range(30)))
    monkeypatch.undo()
    rows = await work.audit.get_session_entries(work.session_id)
    assert {r["timestamp"] for r in rows} == {"2026-01-28T10:30:45.123456+00:00"}
    assert [r["seq"] for r in rows] == list(range(60))
    assert [(r["entry_type"], r["content"]) for r in rows] == [(k, str(n)) for n in range(30) for k in "ab"]
    assert [r["id"] for r in rows] == sorted(r["id"] for r in rows)
    ranged = await work.audit.get_entries_by_timerange(moment, moment + timedelta(seconds=1))
    assert [r["seq"] for r in ranged] == list(range(60))
    assert await work.audit.get_entries_by_timerange(moment + timedelta(seconds=1), moment + timedelta(days=1)) == []
    assert (await verify(database)).ok


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=JSON, params=st.dictionaries(TEXT, JSON, max_size=3), raw=TEXT, summary=TEXT)
@example({"a": "\ud83d", "b": ["\0", 1e300, -0.0, 10**40, "ü"], "": None}, {}, "a\0b\ud800c", "\0")
def test_every_json_value_comes_back_exactly(
    loop_store: tuple[Any, Database], body: Any, params: dict[str, Any], raw: str, summary: str
) -> None:
    run, database = loop_store

    async def round_trip() -> None:
        audit = AuditLogDB(database)
        session_id = await audit.create_session(None)
        journal = await audit.journal(session_id)
        await journal.append(Draft("message", summary, raw, tool_params=params, body=body, meta={"m": body}))
        (entry,) = await audit.entries(session_id)
        if body is not None:
            assert json.dumps(entry.body) == json.dumps(body), "also the order of keys and the kind of number"
        assert entry.meta == {"m": body}
        assert entry.tool_params == params
        # Text columns hold what UTF-8 and PostgreSQL can: the rest is marked, not lost silently and not an error.
        cannot = {"\0", *map(chr, range(0xD800, 0xE000))}
        assert entry.raw_content == "".join("\ufffd" if c in cannot else c for c in raw)
        assert entry.content == "".join("\ufffd" if c in cannot else c for c in summary)
        report = await verify(database, session_id=session_id)
        assert report.ok, report.problem

    run(round_trip())


@pytest.fixture
def loop_store(store_url: str):  # type: ignore[no-untyped-def]
    """An open store and a way to run coroutines on its loop, for hypothesis, which knows no coroutines."""
    with asyncio.Runner() as runner:
        stack = Database.open(store_url)
        database = runner.run(stack.__aenter__())
        yield runner.run, database
        runner.run(stack.__aexit__(None, None, None))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE agent_log_entries SET raw_content = 'x'",
        "UPDATE agent_log_entries SET hash = 'x'",
        "UPDATE agent_log_entries SET body = NULL WHERE seq = 1",
        "UPDATE agent_log_entries SET id = id + 100",
        "DELETE FROM agent_log_entries",
        "DELETE FROM agent_log_entries WHERE seq = 1",
        "UPDATE ledger SET body = '{}'",
        "DELETE FROM ledger WHERE seq = 0",
    ],
)
async def test_the_database_itself_refuses_to_change_the_past(
    database: Database, store_url: str, statement: str
) -> None:
    await start_work(database, entries=3)
    with pytest.raises(Exception, match="the journal is append-only"):
        await column_of(store_url, statement)
    assert (await verify(database)).ok


async def test_only_the_summary_may_be_replaced(database: Database) -> None:
    work = await start_work(database, entries=2)
    first = (await work.audit.entries(work.session_id))[0]
    await work.audit.update_summary(first.id, "better")
    entries = await work.audit.entries(work.session_id)
    assert [e.content for e in entries] == ["better", "step 1"]
    assert entries[0].hash == first.hash
    assert (await verify(database)).ok


async def test_every_column_with_meaning_is_under_the_hash(database: Database) -> None:
    """A new column must be put under the hash, or be named here as one that is not."""
    work = await start_work(database, entries=1)
    row = (await work.audit.get_session_entries(work.session_id))[0]
    row["tool_params"] = json.dumps(row["tool_params"], separators=(",", ":"))
    from operator_core.model.entry import entry_hash

    assert entry_hash(row) == row["hash"]
    free = {name for name in row if entry_hash({**row, name: "changed"}) == row["hash"]}
    assert free == {"id", "content", "created_at", "hash"}


async def test_entries_are_written_all_or_none(database: Database) -> None:
    work = await start_work(database, entries=1)
    with pytest.raises(TypeError):
        await work.journal.append(Draft("note", "fine"), Draft("note", "not JSON", body={"x": object()}))
    await work.journal.append(*[Draft("note", str(n)) for n in range(40)])
    entries = await work.audit.entries(work.session_id)
    assert [e.content for e in entries] == ["step 0", *map(str, range(40))]
    assert [e.seq for e in await work.audit.entries(work.session_id, after=38)] == [39, 40]


async def test_a_second_writer_of_one_session_is_stopped(database: Database) -> None:
    work = await start_work(database, entries=1)
    other = await work.audit.journal(work.session_id, work.claim)
    await work.journal.append(Draft("note", "mine"))
    with pytest.raises(Fenced):
        await other.append(Draft("note", "theirs"))
    assert (await verify(database)).ok


async def test_an_append_whose_answer_was_lost_is_not_written_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await start_work(database, entries=1)
    real = Database.one
    calls = 0

    async def answer_lost(self: Database, *args: Any, **values: Any) -> Any:
        nonlocal calls
        done = await real(self, *args, **values)
        calls += 1
        if calls == 1:
            from operator_core.errors import StoreUnavailable

            raise StoreUnavailable
        return done

    monkeypatch.setattr(Database, "one", answer_lost)
    ids = await work.journal.append(Draft("note", "once"), Draft("note", "more"))
    monkeypatch.undo()
    await work.journal.append(Draft("note", "after"))
    entries = await work.audit.entries(work.session_id)
    assert [e.content for e in entries] == ["step 0", "once", "more", "after"]
    assert ids == [entries[1].id, entries[2].id]


async def test_a_canceled_writer_leaves_no_doubt(database: Database) -> None:
    work = await start_work(database, entries=1)
    for _ in range(10):
        task = asyncio.create_task(work.journal.append(Draft("note", "x"), Draft("note", "y")))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await work.journal.append(Draft("note", "next"))
    report = await verify(database)
    assert report.ok, report.problem
    assert await finish(work) is TicketStatus.RESOLVED


async def test_outputs_are_kept_by_content(database: Database, tmp_path: Path) -> None:
    audit = AuditLogDB(database)
    file = tmp_path / "output"
    file.write_bytes(bytes(range(256)) * 6000)
    digests = {await audit.store_blob(file) for _ in range(2)}
    digests |= set(await asyncio.gather(*(audit.store_blob(file) for _ in range(3))))
    (digest,) = digests
    assert b"".join([c async for c in audit.read_blob(digest)]) == file.read_bytes()
    assert [c async for c in audit.read_blob("0" * 64)] == []
    empty = tmp_path / "empty"
    empty.touch()
    assert [c async for c in audit.read_blob(await audit.store_blob(empty))] in ([], [b""])
