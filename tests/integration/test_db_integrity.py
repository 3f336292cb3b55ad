"""``verify`` finds whatever an attacker with full access to the tables changes, and names the first wrong row."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, create_engine, event, text

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import AuditReport, Problem, audit, verify
from operator_core.db.ledger import ledger_row_hash
from operator_core.db.retention import prune
from operator_core.errors import NotFound
from operator_core.model.entry import Draft, entry_hash
from operator_core.model.ticket import TicketStatus
from tests.support.store import APPEND_ONLY_TRIGGERS, finish, start_work

MUTATIONS = 10_000
# Outside the chain on purpose: a better summary may replace `content`, and row numbers are only handles.
UNCOVERED = {"id", "content"}


class Expected(NamedTuple):
    """What must be named: where, which number (None: any) and what (one of)."""

    where: str
    seq: int | None
    what: set[str]


class Victim:
    """A store whose triggers and foreign keys the attacker has switched off; every attack is rolled back."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        for trigger in APPEND_ONLY_TRIGGERS:
            self.run(f"DROP TRIGGER {trigger}")
        self.entries = self._rows("SELECT * FROM agent_log_entries ORDER BY session_id, seq")
        self.ledger = self._rows("SELECT * FROM ledger ORDER BY seq")
        self.sessions = self._rows("SELECT * FROM agent_sessions ORDER BY id")
        self.chunks = self._rows("SELECT * FROM blob_chunks ORDER BY digest, n")
        self.closed = {s["session_id"] for s in self.sessions if s["status"] != "running"}

    def _rows(self, statement: str) -> list[dict[str, Any]]:
        return [dict(r._mapping) for r in self.connection.exec_driver_sql(statement)]

    def run(self, statement: str, *values: Any) -> None:
        self.connection.exec_driver_sql(statement, values)

    def set(self, table: str, key: tuple[str, Any], column: str, value: Any) -> None:
        self.run(f'UPDATE {table} SET "{column}" = ? WHERE {key[0]} = ?', value, key[1])

    @contextmanager
    def attack(self) -> Iterator[None]:
        self.run("BEGIN")
        try:
            yield
        finally:
            self.run("ROLLBACK")

    def length(self, session_id: str) -> int:
        return sum(e["session_id"] == session_id for e in self.entries)

    def journal(self, rng: random.Random, at_least: int = 1) -> list[dict[str, Any]]:
        while True:
            name = rng.choice(self.sessions)["session_id"]
            rows = [e for e in self.entries if e["session_id"] == name]
            if len(rows) >= at_least:
                return rows


async def build(path: Path) -> None:
    async with Database.open(path) as database:
        for n, end in enumerate((TicketStatus.RESOLVED, TicketStatus.ESCALATED, None, TicketStatus.RESOLVED)):
            work = await start_work(database, entries=6 + n)
            if n == 1:
                output = path.with_suffix(".out")
                output.write_bytes(b"x" * 700_000 + b"end")
                digest = await work.audit.store_blob(output)
                await work.journal.append(Draft("tool_result", "long", meta={"stdout_blob": digest}))
            if end is not None:
                await finish(work, end)
        alone = AuditLogDB(database)
        session_id = await alone.create_session(None)
        await alone.log_entry(session_id, "reasoning", "by hand", "by hand, in full", None, None, None)
        await alone.complete_session(session_id, "failed", "it was only a try")


@pytest.fixture
async def victim(tmp_path: Path) -> Victim:
    await build(tmp_path / "operator.db")
    engine = create_engine(f"sqlite:///{tmp_path / 'operator.db'}")

    @event.listens_for(engine, "connect")
    def _manual(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    with engine.connect() as connection:
        victim = Victim(connection)
        yield victim
    engine.dispose()


def flipped(rng: random.Random, value: Any) -> Any:
    if value is None:
        return rng.choice(["x", "0", "None"])
    if isinstance(value, int):
        return value + rng.choice([-1, 1, 1000])
    if isinstance(value, bytes):
        at = rng.randrange(len(value))
        return value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1 :]
    if not value:
        return "x"
    at = rng.randrange(len(value))
    other = rng.choice([c for c in "0a}Z é" if c != value[at]])
    return rng.choice([value[:at] + other + value[at + 1 :], value[:at] + value[at + 1 :], None])


def flip_entry(v: Victim, rng: random.Random) -> Expected:
    row = rng.choice(v.entries)
    column = rng.choice([c for c in row if c not in UNCOVERED])
    value = flipped(rng, row[column])
    if value is None and column in ("entry_type", "timestamp", "created_at", "prev_hash", "hash", "session_id", "v"):
        value = ""
    if column == "seq":
        value = row["seq"] + 1000
    v.set("agent_log_entries", ("id", row["id"]), column, value)
    what = {"missing", "truncated"} if column in ("seq", "session_id") else {"altered"}
    return Expected(row["session_id"], row["seq"], what)


def rewrite_entry(v: Victim, rng: random.Random) -> Expected:
    """Change an entry and give it the hash that fits: only its neighbour can tell."""
    rows = v.journal(rng)
    at = rng.randrange(len(rows))
    row = {**rows[at], "raw_content": "all is well"}
    v.set("agent_log_entries", ("id", row["id"]), "raw_content", "all is well")
    v.set("agent_log_entries", ("id", row["id"]), "hash", entry_hash(row))
    only_head_knows = at == len(rows) - 1 and row["session_id"] not in v.closed
    return Expected(row["session_id"], at, {"head mismatch"} if only_head_knows else {"altered"})


def relink_entry(v: Victim, rng: random.Random) -> Expected:
    """Put an entry's link elsewhere and give it the hash that fits."""
    rows = v.journal(rng)
    at = rng.randrange(len(rows))
    row = {**rows[at], "prev_hash": "f" * 64}
    v.set("agent_log_entries", ("id", row["id"]), "prev_hash", row["prev_hash"])
    v.set("agent_log_entries", ("id", row["id"]), "hash", entry_hash(row))
    return Expected(row["session_id"], at, {"altered"})


def drop_entry(v: Victim, rng: random.Random) -> Expected:
    row = rng.choice(v.entries)
    v.run("DELETE FROM agent_log_entries WHERE id = ?", row["id"])
    last = row["seq"] == v.length(row["session_id"]) - 1
    return Expected(row["session_id"], row["seq"], {"truncated" if last else "missing"})


def drop_and_renumber(v: Victim, rng: random.Random) -> Expected:
    rows = v.journal(rng, 2)
    at = rng.randrange(len(rows) - 1)
    v.run("DELETE FROM agent_log_entries WHERE id = ?", rows[at]["id"])
    for row in rows[at + 1 :]:
        v.set("agent_log_entries", ("id", row["id"]), "seq", row["seq"] - 1)
    return Expected(rows[at]["session_id"], at, {"reordered"})


def swap_entries(v: Victim, rng: random.Random) -> Expected:
    rows = v.journal(rng, 2)
    first, second = sorted(rng.sample(range(len(rows)), 2))
    for row, seq in ((rows[first], -9), (rows[second], first), (rows[first], second)):
        v.set("agent_log_entries", ("id", row["id"]), "seq", seq)
    return Expected(rows[0]["session_id"], first, {"reordered"})


def swap_texts(v: Victim, rng: random.Random) -> Expected:
    rows = v.journal(rng, 3)
    first, second = sorted(rng.sample(range(len(rows)), 2))
    v.set("agent_log_entries", ("id", rows[first]["id"]), "raw_content", rows[second]["raw_content"])
    v.set("agent_log_entries", ("id", rows[second]["id"]), "raw_content", rows[first]["raw_content"])
    if rows[first]["raw_content"] == rows[second]["raw_content"]:
        return swap_entries(v, rng)
    return Expected(rows[0]["session_id"], first, {"altered"})


def truncate_journal(v: Victim, rng: random.Random) -> Expected:
    """Cut the end off; for a closed session also put its head back, so that only the ledger knows."""
    rows = v.journal(rng)
    at = rng.randrange(len(rows))
    name = rows[0]["session_id"]
    v.run("DELETE FROM agent_log_entries WHERE session_id = ? AND seq >= ?", name, at)
    if name in v.closed and rng.random() < 0.5:
        v.set("agent_sessions", ("session_id", name), "head_seq", at - 1)
        v.set("agent_sessions", ("session_id", name), "head_hash", rows[at]["prev_hash"])
    return Expected(name, at, {"truncated"})


def add_entry(v: Victim, rng: random.Random) -> Expected:
    """Add a well-linked entry behind the end of a closed session, with or without its head."""
    rows = v.journal(rng)
    name = rows[0]["session_id"]
    if name not in v.closed:
        return add_entry(v, rng)
    row = {**rows[-1], "id": 10_000, "seq": len(rows), "prev_hash": rows[-1]["hash"], "raw_content": "I did it"}
    row["hash"] = entry_hash(row)
    columns = ", ".join(f'"{c}"' for c in row)
    v.run(f"INSERT INTO agent_log_entries ({columns}) VALUES ({', '.join('?' * len(row))})", *row.values())
    if rng.random() < 0.5:
        v.set("agent_sessions", ("session_id", name), "head_seq", row["seq"])
        v.set("agent_sessions", ("session_id", name), "head_hash", row["hash"])
    return Expected(name, len(rows), {"added"})


def forge_journal(v: Victim, rng: random.Random) -> Expected:
    """Write a whole new chain with a fitting head: the ledger still has the old head."""
    rows = v.journal(rng)
    name, head = rows[0]["session_id"], "0" * 64
    if name not in v.closed:
        return forge_journal(v, rng)
    for row in rows:
        forged = {**row, "raw_content": "forged", "prev_hash": head}
        head = entry_hash(forged)
        for column, value in (("raw_content", "forged"), ("prev_hash", forged["prev_hash"]), ("hash", head)):
            v.set("agent_log_entries", ("id", row["id"]), column, value)
    v.set("agent_sessions", ("session_id", name), "head_hash", head)
    return Expected(name, len(rows) - 1, {"altered"})


def flip_session(v: Victim, rng: random.Random) -> Expected:
    row = rng.choice(v.sessions)
    name = row["session_id"]
    columns = [
        "ticket_id",
        "status",
        "started_at",
        "ended_at",
        "outcome_summary",
        "created_at",
        "head_seq",
        "head_hash",
    ]
    column = rng.choice(columns)
    value = flipped(rng, row[column])
    if value is None and column not in ("ended_at", "outcome_summary", "ticket_id"):
        value = ""
    v.set("agent_sessions", ("id", row["id"]), column, value)
    if column not in ("head_seq", "head_hash"):
        return Expected(name, None, {"session altered"})
    grown = column == "head_seq" and value > row["head_seq"] and name not in v.closed
    return Expected(name, row["head_seq"] + 1 if grown else None, {"truncated"} if grown else {"head mismatch"})


def drop_session(v: Victim, rng: random.Random) -> Expected:
    name = rng.choice(v.sessions)["session_id"]
    v.run("DELETE FROM agent_sessions WHERE session_id = ?", name)
    if rng.random() < 0.5:
        v.run("DELETE FROM agent_log_entries WHERE session_id = ?", name)
    return Expected(name, None, {"session missing"})


def rename_session(v: Victim, rng: random.Random) -> Expected:
    name = rng.choice(v.sessions)["session_id"]
    for table in ("agent_sessions", "agent_log_entries"):
        v.run(f"UPDATE {table} SET session_id = 'another' WHERE session_id = ?", name)
    return Expected(name, None, {"session missing"})


def add_session(v: Victim, rng: random.Random) -> Expected:
    v.run("INSERT INTO agent_sessions (session_id, started_at) VALUES ('ghost', 'x')")
    return Expected("ghost", None, {"session unknown"})


def flip_ledger(v: Victim, rng: random.Random) -> Expected:
    row = rng.choice(v.ledger)
    column = rng.choice(list(row))
    value = flipped(rng, row[column])
    if value is None and column in ("kind", "body", "at", "prev_hash", "hash"):
        value = ""
    if column == "seq":
        value = row["seq"] + 1000
    v.set("ledger", ("seq", row["seq"]), column, value)
    return Expected("ledger", row["seq"], {"missing", "truncated"} if column == "seq" else {"altered"})


def rewrite_ledger(v: Victim, rng: random.Random) -> Expected:
    row = rng.choice(v.ledger)
    forged = {**row, "body": json.dumps({"forged": True})}
    v.set("ledger", ("seq", row["seq"]), "body", forged["body"])
    v.set("ledger", ("seq", row["seq"]), "hash", ledger_row_hash(forged))
    return Expected("ledger", row["seq"], {"head mismatch" if row is v.ledger[-1] else "altered"})


def drop_ledger(v: Victim, rng: random.Random) -> Expected:
    row = rng.choice(v.ledger)
    v.run("DELETE FROM ledger WHERE seq = ?", row["seq"])
    return Expected("ledger", row["seq"], {"truncated" if row is v.ledger[-1] else "missing"})


def swap_ledger(v: Victim, rng: random.Random) -> Expected:
    first, second = sorted(rng.sample(range(len(v.ledger)), 2))
    for old, new in ((first, -9), (second, first), (-9, second)):
        v.set("ledger", ("seq", old), "seq", new)
    return Expected("ledger", first, {"reordered"})


def truncate_ledger(v: Victim, rng: random.Random) -> Expected:
    at = rng.randrange(len(v.ledger))
    v.run("DELETE FROM ledger WHERE seq >= ?", at)
    return Expected("ledger", at, {"truncated"})


def flip_ledger_head(v: Victim, rng: random.Random) -> Expected:
    if rng.random() < 0.3:
        v.run("DELETE FROM ledger_head")
        return Expected("ledger", None, {"head mismatch"})
    if rng.random() < 0.5:
        v.run("UPDATE ledger_head SET hash = ?", "e" * 64)
        return Expected("ledger", len(v.ledger) - 1, {"head mismatch"})
    v.run("UPDATE ledger_head SET seq = seq - 1")
    return Expected("ledger", len(v.ledger) - 1, {"head mismatch"})


def flip_blob(v: Victim, rng: random.Random) -> Expected:
    chunk = rng.choice(v.chunks)
    key = "blob " + chunk["digest"]
    if rng.random() < 0.5:
        v.run(
            "UPDATE blob_chunks SET data = ? WHERE digest = ? AND n = ?",
            flipped(rng, chunk["data"][:64]) + chunk["data"][64:],
            chunk["digest"],
            chunk["n"],
        )
        return Expected(key, None, {"blob altered"})
    if rng.random() < 0.5:
        v.run("DELETE FROM blob_chunks WHERE digest = ? AND n = 1", chunk["digest"])
        return Expected(key, None, {"blob altered"})
    v.run("DELETE FROM blob_chunks WHERE digest = ?", chunk["digest"])
    return Expected(v.sessions[1]["session_id"], 7, {"blob missing"})


def flip_ticket(v: Victim, rng: random.Random) -> Expected:
    ticket = rng.choice([s["ticket_id"] for s in v.sessions if s["ticket_id"]])
    if rng.random() < 0.5:
        v.run("DELETE FROM tickets WHERE id = ?", ticket)
        return Expected(f"ticket #{ticket}", None, {"ticket missing"})
    v.run("UPDATE tickets SET status = 'canceled' WHERE id = ?", ticket)
    return Expected(f"ticket #{ticket}", None, {"ticket altered"})


ATTACKS: list[Callable[[Victim, random.Random], Expected]] = [
    *[flip_entry] * 8,
    rewrite_entry,
    relink_entry,
    *[drop_entry] * 2,
    drop_and_renumber,
    *[swap_entries] * 2,
    swap_texts,
    *[truncate_journal] * 2,
    add_entry,
    forge_journal,
    *[flip_session] * 2,
    drop_session,
    rename_session,
    add_session,
    *[flip_ledger] * 4,
    rewrite_ledger,
    drop_ledger,
    swap_ledger,
    truncate_ledger,
    flip_ledger_head,
    flip_blob,
    flip_ticket,
]


@pytest.mark.deep
def test_every_one_of_10_000_random_mutations_is_found_and_the_first_problem_is_named(victim: Victim) -> None:
    rng = random.Random(20_261_121)
    clean = audit(victim.connection)
    head = victim.ledger[-1]["hash"]
    assert clean == AuditReport(True, 5, 32, len(victim.ledger), 1, 0, False, head, None, append_only=False)
    victim.connection.rollback()
    for number in range(MUTATIONS):
        attack = rng.choice(ATTACKS)
        with victim.attack():
            expected = attack(victim, rng)
            problem = audit(victim.connection).problem
        context = f"mutation {number}, {attack.__name__}: expected {expected}, got {problem}"
        assert problem is not None, context
        assert problem.where == expected.where, context
        assert problem.what in expected.what, context
        assert expected.seq is None or problem.seq == expected.seq, context
        assert problem.sentence.endswith("."), context
        assert "\n" not in problem.sentence, context
    assert audit(victim.connection) == clean


async def test_a_running_store_is_clean_on_both_engines(store_url: str) -> None:
    async with Database.open(store_url) as database:
        first = await start_work(database, entries=3)
        await finish(first)
        second = await start_work(database, entries=450)  # more than a page
        report = await verify(database)
        assert (report.ok, report.sessions, report.entries, report.problem) == (True, 2, 453, None)
        one = await verify(database, session_id=second.session_id)
        assert (one.ok, one.sessions, one.entries) == (True, 1, 450)
        with pytest.raises(NotFound, match="no session nobody"):
            await verify(database, session_id="nobody")


async def test_one_session_can_be_verified_alone_with_its_outputs(tmp_path: Path) -> None:
    await build(tmp_path / "operator.db")
    async with Database.open(tmp_path / "operator.db") as database:
        audit_log = AuditLogDB(database)
        names = [s.session_id for s in await audit_log.sessions()][::-1]
        reports = [await verify(database, session_id=name) for name in names]
        assert [(r.ok, r.sessions, r.blobs) for r in reports] == [(True, 1, int(n == 1)) for n in range(5)]
        async with database.begin() as c:
            await c.exec_driver_sql("UPDATE blob_chunks SET data = x'00' WHERE n = 1")
        problems = [(await verify(database, session_id=name)).problem for name in names]
        assert [p.what if p else None for p in problems] == [None, "blob altered", None, None, None]
        bad = problems[1]
        assert bad is not None
        assert (bad.seq, names[1] in bad.sentence) == (7, True)


async def test_memory_is_bounded_by_a_page_whatever_the_length(tmp_path: Path) -> None:
    import tracemalloc

    async with Database.open(tmp_path / "operator.db") as database:
        audit_log = AuditLogDB(database)
        session_id = await audit_log.create_session(None)
        journal = await audit_log.journal(session_id)
        for _ in range(20):
            await journal.append(*[Draft("note", "x", "y" * 10_000) for _ in range(100)])
        tracemalloc.start()
        report = await verify(database)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert report.entries == 2000
    assert peak < 8 << 20, f"{peak >> 20} MiB for a journal of 20 MiB"


async def test_the_problem_of_the_older_session_comes_first(tmp_path: Path) -> None:
    await build(tmp_path / "operator.db")
    async with Database.open(tmp_path / "operator.db") as database:
        names = [s.session_id for s in await AuditLogDB(database).sessions()][::-1]
        async with database.begin() as c:
            await c.exec_driver_sql("DROP TRIGGER agent_log_entries_frozen")
            for name, seq in ((names[3], 0), (names[0], 4), (names[0], 2)):
                await c.exec_driver_sql(
                    "UPDATE agent_log_entries SET exit_code = 77 WHERE session_id = ? AND seq = ?", (name, seq)
                )
        report = await verify(database)
    row_id = 3
    sentence = f"Session {names[0]}, entry 2 was altered: it does not match its hash."
    assert report.problem == Problem(names[0], 2, row_id, "altered", sentence)


async def test_an_entry_put_into_a_pruned_session_is_found(tmp_path: Path) -> None:
    await build(tmp_path / "operator.db")
    async with Database.open(tmp_path / "operator.db") as database:
        await prune(database, older_than=timedelta(), keep=None, state_dir=tmp_path / "state")
        assert (await verify(database)).pruned == 3
        pruned = next(s for s in (await AuditLogDB(database).sessions())[::-1] if s.status == "completed")
        async with database.begin() as c:
            await c.exec_driver_sql(
                "INSERT INTO agent_log_entries (session_id, entry_type, content, timestamp, seq, prev_hash, hash) "
                "VALUES (?, 'note', '', '', 3, '', '')",
                (pruned.session_id,),
            )
        problem = (await verify(database)).problem
    assert problem is not None
    assert (problem.where, problem.what) == (pruned.session_id, "added")


async def test_missing_triggers_are_mentioned_though_the_chain_holds(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await start_work(database)
        assert (await verify(database)).append_only
        on = "" if database.sqlite else " ON ledger"
        async with database.begin() as c:
            await c.execute(text(f"DROP TRIGGER ledger_frozen{on}"))
        report = await verify(database)
        assert (report.ok, report.append_only) == (True, False)
