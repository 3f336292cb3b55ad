"""The seed's tables are as the seed says (rows A-033, A-035, A-037, A-038)."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from operator_core.db.schema import SCHEMA_SQL
from tests.support.store import APPEND_ONLY_TRIGGERS

# name, type, NOT NULL, default, primary key: what PRAGMA table_info gives.
SEED_COLUMNS = {
    "agent_sessions": [
        ("id", "INTEGER", 1, None, 1),
        ("session_id", "TEXT", 1, None, 0),
        ("ticket_id", "INTEGER", 0, None, 0),
        ("status", "TEXT", 1, "'running'", 0),
        ("started_at", "TEXT", 1, None, 0),
        ("ended_at", "TEXT", 0, None, 0),
        ("outcome_summary", "TEXT", 0, None, 0),
        ("created_at", "TEXT", 1, "CURRENT_TIMESTAMP", 0),
    ],
    "agent_log_entries": [
        ("id", "INTEGER", 1, None, 1),
        ("session_id", "TEXT", 1, None, 0),
        ("entry_type", "TEXT", 1, None, 0),
        ("content", "TEXT", 1, None, 0),
        ("raw_content", "TEXT", 0, None, 0),
        ("tool_name", "TEXT", 0, None, 0),
        ("tool_params", "TEXT", 0, None, 0),
        ("exit_code", "INTEGER", 0, None, 0),
        ("timestamp", "TEXT", 1, None, 0),
        ("created_at", "TEXT", 1, "CURRENT_TIMESTAMP", 0),
    ],
}
SEED_INDEXES = {
    "idx_agent_sessions_ticket": ("agent_sessions", ["ticket_id"]),
    "idx_agent_sessions_status": ("agent_sessions", ["status"]),
    "idx_agent_log_entries_session": ("agent_log_entries", ["session_id"]),
}


@pytest.fixture
def empty():  # type: ignore[no-untyped-def]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA_SQL)
        yield connection


@pytest.mark.parametrize("table", SEED_COLUMNS)
def test_the_first_columns_are_the_seeds(empty: sqlite3.Connection, table: str) -> None:
    assert f"CREATE TABLE {table} (" in SCHEMA_SQL
    columns = [tuple(row[1:]) for row in empty.execute(f"PRAGMA table_info({table})")]
    assert columns[: len(SEED_COLUMNS[table])] == SEED_COLUMNS[table]
    # A row written as the seed writes it must be accepted: every further column has a default, or belongs to the chain.
    further = [c for c in columns[len(SEED_COLUMNS[table]) :] if c[2] and c[3] is None]
    assert {c[0] for c in further} <= {"seq", "prev_hash", "hash"}


def test_the_seeds_indexes_and_keys_exist(empty: sqlite3.Connection) -> None:
    for name, (table, columns) in SEED_INDEXES.items():
        assert [row[2] for row in empty.execute(f"PRAGMA index_info({name})")] == columns
        assert name in [row[1] for row in empty.execute(f"PRAGMA index_list({table})")]
    foreign = {(row[3], row[2], row[4]) for row in empty.execute("PRAGMA foreign_key_list(agent_log_entries)")}
    assert foreign == {("session_id", "agent_sessions", "session_id")}
    assert [row[2:5] for row in empty.execute("PRAGMA foreign_key_list(agent_sessions)")] == [
        ("tickets", "ticket_id", "id")
    ]
    sequences = "SELECT name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%'"
    assert {"tickets", *SEED_COLUMNS} <= {row[0] for row in empty.execute(sequences)}
    insert = "INSERT INTO agent_sessions (session_id, started_at) VALUES ('s', 't')"
    empty.execute(insert)
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE.*agent_sessions.session_id"):
        empty.execute(insert)


def test_the_schema_brings_its_triggers(empty: sqlite3.Connection) -> None:
    names = [row[0] for row in empty.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' ORDER BY name")]
    assert names == sorted(APPEND_ONLY_TRIGGERS)
