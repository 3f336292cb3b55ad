"""A store as it is after years: 100,000 tickets and a session of 300,000 entries, with valid chains, in seconds.

What the product itself would write one by one is written in bulk by the drivers alone; `operator audit verify` finds
nothing wrong with it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import asyncpg
from alembic import command
from sqlalchemy import Connection, Table, make_url

from operator_core import clock
from operator_core.db.engine import Database, parse_url
from operator_core.db.ledger import ledger_row_hash
from operator_core.db.migrations import alembic_config
from operator_core.db.schema import agent_log_entries, agent_sessions, ledger, tickets, triggers, usage_totals, workers
from operator_core.model.entry import GENESIS, canonical, entry_hash, stored_json
from operator_core.redaction import Redactor

__all__ = ["Crowd", "make_crowd", "old_schema"]

_WORKERS = 4
_USAGE = {"input_tokens": 900, "output_tokens": 120, "cache_read_tokens": 4000, "cache_write_tokens": 50}
_COST = 0.0125
_MODEL = "claude-opus-5-5"
_SECONDS = 20
_BATCH = 10_000
_ANCHORED = (agent_log_entries, ledger)
_FILLED = (workers, tickets, agent_sessions, agent_log_entries, ledger, usage_totals)
_REASONS = {
    "open": None,
    "queued": "queued",
    "running": "claimed",
    "waiting_for_input": "asked_a_person",
    "resolved": "verified",
    "escalated": "refuted",
    "canceled": "by_hand",
}
_SESSION_ENDS = {"resolved": "completed", "escalated": "escalated", "canceled": "canceled"}


@dataclass
class Crowd:
    """What is in the store.

    Attributes:
        statuses: Of the tickets, by number.
        long_session: Of the newest ticket, which runs; its entries are ``0`` to ``entries - 1``.
        failed: Sequence numbers of its results with an exit code other than 0.
        phases: Its phases, each with the sequence of its first entry.
        cost_usd: Of all sessions.
    """

    tickets: int
    entries: int
    statuses: dict[int, str] = field(default_factory=dict)
    long_session: str = ""
    failed: list[int] = field(default_factory=list)
    phases: dict[str, int] = field(default_factory=dict)
    cost_usd: float = 0.0

    def of(self, *statuses: str) -> list[int]:
        """Numbers of the tickets in these states, newest first."""
        return [number for number in sorted(self.statuses, reverse=True) if self.statuses[number] in statuses]


async def make_crowd(
    url: str, *, count: int = 100_000, entries: int = 300_000, counted: bool = True, revision: str | None = None
) -> Crowd:
    """Fill an empty store.

    Args:
        url: Path of an SQLite file that may not be there yet, or a PostgreSQL URL.
        count: Tickets.
        entries: Of the long session.
        counted: Whether the usage is added up already.
        revision: The schema of an earlier release; what it has no place for is left out. Default: the newest.
    """
    if revision is None:
        async with Database.open(url):
            pass  # the schema
    else:
        await old_schema(url, revision)
    crowd = Crowd(count, entries)
    rows = _Rows(crowd, clock.now() - timedelta(seconds=_SECONDS * (count + 1)), counted)
    if "://" in url:
        await _into_postgres(url, rows)
    else:
        _into_sqlite(url, rows)
    return crowd


async def old_schema(url: str, revision: str) -> None:
    """Make the tables of an earlier release in an empty store."""
    database = Database(parse_url(url), Redactor())

    def upgrade(connection: Connection) -> None:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    try:
        async with database.begin() as c:
            await c.run_sync(upgrade)
    finally:
        await database.close()


def status_of(number: int, count: int) -> str:
    """The state of a ticket: most are over, a few of each other kind are spread over all of them."""
    if number == count:
        return "running"
    spread = number % 500
    some = ("waiting_for_input", "escalated", "running", "open", "open", "queued", "escalated")
    if spread < len(some):
        return some[spread]
    return "canceled" if spread % 20 == 11 else "resolved"


class _Rows:
    def __init__(self, crowd: Crowd, start: datetime, counted: bool) -> None:
        self.crowd = crowd
        self.start = start
        self.counted = counted
        self.tickets: list[dict[str, Any]] = []
        self.sessions: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []
        self.ledger: list[dict[str, Any]] = []
        self.usage: list[dict[str, Any]] = []
        self.numbers = {"agent_sessions": 0, "agent_log_entries": 0, "ledger": 0}
        self.head = GENESIS
        self.workers = [
            {
                "id": f"{n:032x}",
                "host": "host",
                "pid": 1000 + n,
                "started_at": clock.iso(start),
                "lease_until": 2**53,
                "name": f"worker-{n}",
                "concurrency": 8,
                "draining": False,
            }
            for n in range(_WORKERS)
        ]

    def batches(self) -> Iterator[list[tuple[Table, list[dict[str, Any]]]]]:
        """All rows, in an order that the foreign keys allow; each batch is gone with the next."""
        yield [(workers, self.workers)]
        for number in range(1, self.crowd.tickets + 1):
            self._ticket(number)
            if number % _BATCH == 0 or number == self.crowd.tickets:
                filled = [
                    (tickets, self.tickets),
                    (agent_sessions, self.sessions),
                    (agent_log_entries, self.entries),
                    (ledger, self.ledger),
                    (usage_totals, self.usage if self.counted else []),
                ]
                yield [(table, rows) for table, rows in filled if rows]
                for rows in (self.tickets, self.sessions, self.entries, self.ledger, self.usage):
                    rows.clear()

    def _next(self, table: str) -> int:
        self.numbers[table] += 1
        return self.numbers[table]

    def _ticket(self, number: int) -> None:
        status = status_of(number, self.crowd.tickets)
        self.crowd.statuses[number] = status
        at = clock.iso(self.start + timedelta(seconds=_SECONDS * number))
        name = ("disk", "latency", "queue-depth", "replica-lag")[number % 4]
        session = None if status in ("open", "queued") else f"2026-01-01T00-00-00-{number:08x}"
        over = status in _SESSION_ENDS
        self.tickets.append(
            {
                "id": number,
                "violation_key": f"{name}:{number}",
                "invariant_name": name,
                "status": status,
                "first_seen_at": at,
                "last_seen_at": at,
                "resolved_at": at if status == "resolved" else None,
                "message": f"{name} of host-{number % 977} is at {number % 101} %, and has been since {at}",
                "severity": ("critical", "warning", "warning", "info")[number % 4],
                "diagnosis": f"ESCALATED: refuted: host-{number % 977} fell again" if status == "escalated" else None,
                "created_at": at,
                "updated_at": at,
                "kind": "task" if number % 10 == 9 else "incident",
                "reason": _REASONS[status],
                "fence": int(session is not None),
                "owner": self.workers[number % _WORKERS]["id"] if status == "running" else None,
                "session_id": session,
                "labels": stored_json({"team": f"team-{number % 7}", "env": "prod" if number % 3 else "stage"}),
            }
        )
        self._log("transition", at, number, None, {"old": None, "new": "open", "reason": "opened", "actor": "monitor"})
        if session is not None:
            self._log("session_opened", at, number, session, {"started_at": at, "fence": 1})
            is_long = number == self.crowd.tickets
            drafts = self._long(self.crowd.entries) if is_long else self._short(number, status)
            self.crowd.long_session = session if is_long else ""
            head_seq, head_hash = self._journal(session, number, at, drafts)
            ended = {"status": _SESSION_ENDS[status], "ended_at": at, "summary": f"{status}"} if over else None
            self.sessions.append(
                {
                    "id": self._next("agent_sessions"),
                    "session_id": session,
                    "ticket_id": number,
                    "status": ended["status"] if ended else "running",
                    "started_at": at,
                    "ended_at": at if ended else None,
                    "outcome_summary": ended["summary"] if ended else None,
                    "created_at": at,
                    "head_seq": head_seq,
                    "head_hash": head_hash,
                    "counted_seq": head_seq if self.counted else -1,
                }
            )
            if ended:
                self._log(
                    "session_closed", at, number, session, {**ended, "head_seq": head_seq, "head_hash": head_hash}
                )
        if status != "open":
            move = {"old": "open", "new": status, "reason": _REASONS[status], "actor": "worker"}
            self._log("transition", at, number, session, move)

    def _log(self, kind: str, at: str, ticket: int, session: str | None, body: dict[str, Any]) -> None:
        row = {
            "seq": self._next("ledger") - 1,
            "kind": kind,
            "ticket_id": ticket,
            "session_id": session,
            "body": canonical(body),
            "at": at,
            "prev_hash": self.head,
        }
        row["hash"] = self.head = ledger_row_hash(row)
        self.ledger.append(row)

    def _journal(self, session: str, ticket: int, at: str, drafts: Iterable[dict[str, Any]]) -> tuple[int, str]:
        head, seq, phase = GENESIS, -1, ""
        calls: dict[str, int] = {}
        for seq, draft in enumerate(drafts):
            row: dict[str, Any] = {
                "session_id": session,
                "raw_content": None,
                "tool_name": None,
                "tool_params": None,
                "exit_code": None,
                "timestamp": at,
                "created_at": at,
                "v": 1,
                "seq": seq,
                "phase": "worker_1",
                "tool_use_id": None,
                "fence": 1,
                "body": None,
                "meta": None,
                **draft,
                "prev_hash": head,
            }
            row["hash"] = head = entry_hash(row)
            row["id"] = self._next("agent_log_entries")
            phase = row["phase"]
            if row["meta"] is not None and '"usage"' in row["meta"]:
                calls[phase] = calls.get(phase, 0) + 1
            self.entries.append(row)
        for name, number in calls.items():
            self.crowd.cost_usd += number * _COST
            self.usage.append(
                {
                    "session_id": session,
                    "phase": name,
                    "model": _MODEL,
                    "day": at[:10],
                    "ticket_id": ticket,
                    "calls": number,
                    **{key: value * number for key, value in _USAGE.items()},
                    "cost_usd": number * _COST,
                    "unpriced": 0,
                }
            )
        return seq, head

    def _short(self, number: int, status: str) -> Iterator[dict[str, Any]]:
        yield _reply(number)
        if status == "waiting_for_input":
            text = f"May I restart host-{number}?"
            yield {
                "entry_type": "outcome",
                "content": f"blocked: {text}",
                "raw_content": text,
                "meta": '{"outcome":"blocked"}',
            }
        elif status == "running":
            yield _call(number)
        else:
            kind = "verified" if status == "resolved" else "refuted"
            yield _verdict(kind)

    def _long(self, entries: int) -> Iterator[dict[str, Any]]:
        """Rounds of a worker and a verifier, until there are so many entries."""
        seq, rounds = 0, 0
        each = max(40, entries // 3)
        while seq < entries:
            rounds += 1
            for draft in self._round(rounds, seq, min(each, entries - seq)):
                if draft.get("exit_code"):
                    self.crowd.failed.append(seq)
                self.crowd.phases.setdefault(draft["phase"], seq)
                yield draft
                seq += 1

    def _round(self, number: int, seq: int, most: int) -> Iterator[dict[str, Any]]:
        worker, verifier = f"worker_{number}", f"verifier_{number}"
        begin = {"entry_type": "phase_start", "content": "engine scripted", "phase": worker}
        yield {**begin, "body": stored_json({"engine": "scripted", "model": _MODEL, "system": "You work."})}
        n = 1
        while n + 6 <= most:
            for draft in (_reply(seq + n), _reasoning(seq + n), _call(seq + n), _result(seq + n)):
                yield {**draft, "phase": worker}
            n += 4
        if n < most:
            yield {"entry_type": "snapshot", "content": "copied", "phase": verifier, "body": '{"digest":"0"}'}
            n += 1
        if n < most:
            yield {**_verdict("refuted"), "phase": verifier}
            n += 1
        for _ in range(n, most):
            yield {"entry_type": "note", "content": "a note", "raw_content": "a note", "phase": verifier}


def _reply(n: int) -> dict[str, Any]:
    block = {"role": "assistant", "content": [{"type": "text", "text": f"Step {n}: I look at the service again."}]}
    meta = {"usage": {**_USAGE, "cost_usd": _COST}, "stop_reason": "tool_use", "model": _MODEL}
    return {
        "entry_type": "message",
        "content": "reply, tool_use",
        "body": stored_json(block),
        "meta": stored_json(meta),
    }


def _reasoning(n: int) -> dict[str, Any]:
    text = f"Step {n}: the limiter lets everything through, so I look at its configuration and at what it counts. " * 3
    return {"entry_type": "reasoning", "content": f"Step {n}: the limiter", "raw_content": text}


def _call(n: int) -> dict[str, Any]:
    command = f"curl -s http://127.0.0.1:8080/status | grep -c step-{n}"
    return {
        "entry_type": "tool_call",
        "content": f"shell: {command[:50]}",
        "tool_name": "shell",
        "tool_params": stored_json({"command": command, "reasoning": "to see whether it counts"}),
        "tool_use_id": f"toolu_{n:08}",
    }


def _result(n: int) -> dict[str, Any]:
    code = int(n // 4 % 50 == 10)
    output = json.dumps({"stdout": f"line of output {n}\n" * 8, "stderr": "", "exit_code": code})
    return {
        "entry_type": "tool_result",
        "content": f"exit {code}: line of output {n}",
        "raw_content": output,
        "tool_name": "shell",
        "tool_use_id": f"toolu_{n:08}",
        "exit_code": code,
        "body": stored_json({"type": "tool_result", "tool_use_id": f"toolu_{n:08}", "content": output}),
        "meta": '{"status":"ok"}',
    }


def _verdict(kind: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "kind": kind,
        "why": "seen by the platform",
        "clauses": [],
        "check_hash": None,
        "failed": [],
    }
    return {"entry_type": "verdict", "content": f"{kind}: seen by the platform", "body": stored_json(body)}


# ---- into the store


def _into_sqlite(path: str, rows: _Rows) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        names = [r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
        for name in names:
            connection.execute(f"DROP TRIGGER {name}")
        known = {
            table.name: {r[1] for r in connection.execute(f"PRAGMA table_info({table.name})")} for table in _FILLED
        }
        for batch in rows.batches():
            for table, values in batch:
                columns = [name for name in values[0] if name in known[table.name]]
                if not columns:
                    continue
                marks = ", ".join("?" * len(columns))
                connection.executemany(
                    f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})",
                    ([row[column] for column in columns] for row in values),
                )
        connection.execute("UPDATE ledger_head SET seq = ?, hash = ?", (rows.numbers["ledger"] - 1, rows.head))
        for statement in triggers("sqlite"):
            connection.execute(statement)
        connection.commit()


async def _into_postgres(url: str, rows: _Rows) -> None:
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(address)
    try:
        found = await connection.fetch(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
        )
        known = {(row[0], row[1]) for row in found}
        async with connection.transaction():
            for table in _ANCHORED:
                await connection.execute(f"ALTER TABLE {table.name} DISABLE TRIGGER USER")
            for batch in rows.batches():
                for table, values in batch:
                    columns = [name for name in values[0] if (table.name, name) in known]
                    if not columns:
                        continue
                    records = ([row[column] for column in columns] for row in values)
                    await connection.copy_records_to_table(table.name, records=records, columns=columns)
            await connection.execute(
                "UPDATE ledger_head SET seq = $1, hash = $2", rows.numbers["ledger"] - 1, rows.head
            )
            # Foreign keys are checked at the end; before that, no table with checks to come can be altered.
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for name in ("tickets", "agent_sessions", "agent_log_entries"):
                statement = f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), max(id)) FROM {name}"
                await connection.execute(statement)
            for table in _ANCHORED:
                await connection.execute(f"ALTER TABLE {table.name} ENABLE TRIGGER USER")
        # The server's own clean-up, which tests switch off, would do it within a minute.
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()
