"""The tables, once, for SQLite and PostgreSQL.

The seed's columns come first in each table, exactly as the seed names them; what the product adds follows. Times of the
seed's tables are ISO 8601 text in UTC; leases are milliseconds of the database's own clock, which is one clock for all
machines.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.expression import FunctionElement

__all__ = [
    "SCHEMA_REVISION",
    "SCHEMA_SQL",
    "agent_log_entries",
    "agent_sessions",
    "approvals",
    "blob_chunks",
    "cursors",
    "db_now_ms",
    "idempotency_keys",
    "inbox",
    "ledger",
    "ledger_head",
    "live_output",
    "logins",
    "metadata",
    "monitor_samples",
    "monitor_spans",
    "monitor_states",
    "outbox",
    "second_looks",
    "tickets",
    "tokens",
    "triggers",
    "usage_totals",
    "work_links",
    "workers",
]

SCHEMA_REVISION = "0007"
"""Newest migration; a database at another revision is upgraded or refused."""


class db_now_ms(FunctionElement[int]):
    """Milliseconds since 1970 on the database's clock."""

    type = BigInteger()
    inherit_cache = True
    name = "db_now_ms"


@compiles(db_now_ms, "sqlite")
def _sqlite_ms(element: Any, compiler: Any, **kw: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@compiles(db_now_ms, "postgresql")
def _postgresql_ms(element: Any, compiler: Any, **kw: Any) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000)::bigint"


class _created_default(FunctionElement[str]):
    type = Text()
    inherit_cache = True
    name = "created_default"


@compiles(_created_default, "sqlite")
def _sqlite_created(element: Any, compiler: Any, **kw: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(_created_default, "postgresql")
def _postgresql_created(element: Any, compiler: Any, **kw: Any) -> str:
    return "(CURRENT_TIMESTAMP AT TIME ZONE 'UTC')::text"


metadata = MetaData()


def _created(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=_created_default())


workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("name", Text, nullable=False, server_default=text("''")),
    Column("concurrency", Integer, nullable=False, server_default=text("0")),
    Column("draining", Boolean, nullable=False, server_default=text("false")),
)

tickets = Table(
    "tickets",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("violation_key", Text, nullable=False),
    Column("invariant_name", Text, nullable=False),
    Column("store_id", Text),
    Column("status", Text, nullable=False, server_default=text("'open'")),
    Column("held", Boolean, nullable=False, server_default=text("false")),
    Column("batch_key", Text),
    Column("occurrence_count", Integer, nullable=False, server_default=text("1")),
    Column("first_seen_at", Text, nullable=False),
    Column("last_seen_at", Text, nullable=False),
    Column("resolved_at", Text),
    Column("message", Text, nullable=False),
    Column("severity", Text, nullable=False, server_default=text("'warning'")),
    Column("diagnosis", Text),
    Column("metric_snapshot", Text),
    Column("subject_context", Text),
    Column("variant_model", Text),
    Column("variant_system_prompt", Text),
    Column("variant_tools_config", Text),
    _created("created_at"),
    _created("updated_at"),
    Column("kind", Text, nullable=False, server_default=text("'incident'")),
    Column("reason", Text),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("run_at", BigInteger, nullable=False, server_default=text("0")),
    Column("fence", Integer, nullable=False, server_default=text("0")),
    Column("wake", Integer, nullable=False, server_default=text("0")),
    Column("owner", Text, ForeignKey("workers.id")),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("session_id", Text),
    Column("fingerprint", Text),
    Column("check_spec", Text),
    Column("check_hash", Text),
    Column("reopen_count", Integer, nullable=False, server_default=text("0")),
    Column("reopened_from", Text),
    Column("watch_until", Text),
    Column("flapping", Boolean, nullable=False, server_default=text("false")),
    Column("pinned_to", Text),
    Column("cancel_now", Boolean, nullable=False, server_default=text("false")),
    Column("labels", Text),
    sqlite_autoincrement=True,
)
_NOT_CLOSED = tickets.c.status.not_in(["resolved", "canceled"])
Index(
    "ux_tickets_open_key",
    tickets.c.violation_key,
    unique=True,
    sqlite_where=_NOT_CLOSED,
    postgresql_where=_NOT_CLOSED,
)
Index("idx_tickets_key_resolved", tickets.c.violation_key, tickets.c.resolved_at)
Index("idx_tickets_status", tickets.c.status, tickets.c.id)
for _name, _state, _columns in (
    ("idx_tickets_ready", "open", (tickets.c.priority.desc(), tickets.c.id)),
    ("idx_tickets_running", "running", (tickets.c.owner,)),
    ("idx_tickets_waiting", "waiting_for_input", (tickets.c.run_at,)),
    ("idx_tickets_queued", "queued", (tickets.c.pinned_to, tickets.c.id)),
):
    Index(_name, *_columns, sqlite_where=tickets.c.status == _state, postgresql_where=tickets.c.status == _state)

agent_sessions = Table(
    "agent_sessions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("session_id", Text, nullable=False, unique=True),
    Column("ticket_id", Integer, ForeignKey("tickets.id")),
    Column("status", Text, nullable=False, server_default=text("'running'")),
    Column("started_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("outcome_summary", Text),
    _created("created_at"),
    Column("head_seq", Integer, nullable=False, server_default=text("-1")),
    Column("head_hash", Text, nullable=False, server_default=text("'" + "0" * 64 + "'")),
    Column("wanted", Text),
    Column("counted_seq", Integer, nullable=False, server_default=text("-1")),
    sqlite_autoincrement=True,
)
Index("idx_agent_sessions_ticket", agent_sessions.c.ticket_id)
Index("idx_agent_sessions_status", agent_sessions.c.status)
_NOT_COUNTED = agent_sessions.c.head_seq > agent_sessions.c.counted_seq
Index("idx_agent_sessions_not_counted", agent_sessions.c.id, sqlite_where=_NOT_COUNTED, postgresql_where=_NOT_COUNTED)

agent_log_entries = Table(
    "agent_log_entries",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("session_id", Text, ForeignKey("agent_sessions.session_id"), nullable=False),
    Column("entry_type", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("raw_content", Text),
    Column("tool_name", Text),
    Column("tool_params", Text),
    Column("exit_code", Integer),
    Column("timestamp", Text, nullable=False),
    _created("created_at"),
    Column("v", Integer, nullable=False, server_default=text("1")),
    Column("seq", Integer, nullable=False),
    Column("phase", Text),
    Column("tool_use_id", Text),
    Column("fence", Integer),
    Column("body", Text),
    Column("meta", Text),
    Column("prev_hash", Text, nullable=False),
    Column("hash", Text, nullable=False),
    UniqueConstraint("session_id", "seq", name="ux_agent_log_entries_seq"),
    sqlite_autoincrement=True,
)
Index("idx_agent_log_entries_session", agent_log_entries.c.session_id)
Index(
    "idx_agent_log_entries_kind",
    agent_log_entries.c.session_id,
    agent_log_entries.c.entry_type,
    agent_log_entries.c.seq,
)
_FAILED = agent_log_entries.c.exit_code != 0
Index(
    "idx_agent_log_entries_failed",
    agent_log_entries.c.session_id,
    agent_log_entries.c.seq,
    sqlite_where=_FAILED,
    postgresql_where=_FAILED,
)

blob_chunks = Table(
    "blob_chunks",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

ledger = Table(
    "ledger",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("ticket_id", Integer),
    Column("session_id", Text),
    Column("body", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("prev_hash", Text, nullable=False),
    Column("hash", Text, nullable=False),
)
Index("idx_ledger_ticket", ledger.c.ticket_id)
Index("idx_ledger_session", ledger.c.session_id)

ledger_head = Table(
    "ledger_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, nullable=False),
    Column("hash", Text, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("ticket_id", Integer, ForeignKey("tickets.id"), nullable=False, index=True),
    Column("body", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    sqlite_autoincrement=True,
)

monitor_states = Table(
    "monitor_states",
    metadata,
    Column("violation_key", Text, primary_key=True),
    Column("invariant_name", Text, nullable=False),
    Column("light", Text, nullable=False),
    Column("since", Text, nullable=False),
    Column("first_seen", Text),
    Column("changes", Text, nullable=False),
    Column("greens", Integer, nullable=False),
    Column("last_value", Text),
    Column("updated_at", Text, nullable=False),
)

work_links = Table(
    "work_links",
    metadata,
    Column("source", Text, primary_key=True),
    Column("external_id", Text, primary_key=True),
    Column("ticket_id", Integer, ForeignKey("tickets.id"), index=True),
    Column("owner", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("settled", Boolean, nullable=False, server_default=text("false")),
)
Index(
    "idx_work_links_unsettled",
    work_links.c.source,
    work_links.c.owner,
    sqlite_where=work_links.c.settled.is_(False),
    postgresql_where=work_links.c.settled.is_(False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("channel", Text, nullable=False),
    Column("dedupe_key", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("due_at", BigInteger, nullable=False, server_default=text("0")),
    Column("taken_by", Text),
    Column("taken_until", BigInteger, nullable=False, server_default=text("0")),
    Column("error", Text),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
    sqlite_autoincrement=True,
)
Index(
    "idx_outbox_left",
    outbox.c.channel,
    outbox.c.id,
    sqlite_where=outbox.c.ended_at.is_(None),
    postgresql_where=outbox.c.ended_at.is_(None),
)

monitor_samples = Table(
    "monitor_samples",
    metadata,
    Column("violation_key", Text, primary_key=True),
    Column("at", BigInteger, primary_key=True),
    Column("light", Text, nullable=False),
    Column("value", Float),
)

monitor_spans = Table(
    "monitor_spans",
    metadata,
    Column("violation_key", Text, primary_key=True),
    Column("at", BigInteger, primary_key=True),
    Column("first_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("greens", Integer, nullable=False),
    Column("reds", Integer, nullable=False),
    Column("unknowns", Integer, nullable=False),
    Column("low", Float),
    Column("high", Float),
)

usage_totals = Table(
    "usage_totals",
    metadata,
    Column("session_id", Text, ForeignKey("agent_sessions.session_id"), primary_key=True),
    Column("phase", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("day", Text, primary_key=True),
    Column("ticket_id", Integer, index=True),
    Column("calls", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cache_read_tokens", BigInteger, nullable=False),
    Column("cache_write_tokens", BigInteger, nullable=False),
    Column("cost_usd", Float, nullable=False),
    Column("unpriced", Integer, nullable=False),
)
Index("idx_usage_totals_day", usage_totals.c.day)

live_output = Table(
    "live_output",
    metadata,
    Column("session_id", Text, ForeignKey("agent_sessions.session_id"), primary_key=True),
    Column("tool_use_id", Text, nullable=False),
    Column("tail", Text, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("updated_at", Text, nullable=False),
)

cursors = Table(
    "cursors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("position", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("created_at", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Text),
    Column("revoked_at", Text),
    Column("last_used_at", Text),
)

logins = Table(
    "logins",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("token_id", Text, ForeignKey("tokens.id"), nullable=False, index=True),
    Column("csrf", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True),
    Column("ticket_id", Integer, ForeignKey("tickets.id"), nullable=False, index=True),
    Column("session_id", Text, ForeignKey("agent_sessions.session_id"), nullable=False),
    Column("phase", Text, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("arguments_hash", Text, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("why", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("asked_at", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
    Column("answered_at", Text),
    Column("answered_by", Text),
    Column("note", Text),
    Column("used_at", Text),
    UniqueConstraint("session_id", "call_id", name="ux_approvals_call"),
)
_PENDING = approvals.c.state == "pending"
Index("idx_approvals_pending", approvals.c.expires_at, sqlite_where=_PENDING, postgresql_where=_PENDING)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("principal", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("request_hash", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", Text, nullable=False, index=True),
)

second_looks = Table(
    "second_looks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("ticket_id", Integer, ForeignKey("tickets.id"), nullable=False),
    Column("checks_only", Boolean, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("asked_at", Text, nullable=False),
    Column("owner", Text, ForeignKey("workers.id")),
    Column("fence", Integer, nullable=False, server_default=text("0")),
    Column("lost", Integer, nullable=False, server_default=text("0")),
    Column("passed_by", Text, nullable=False, server_default=text("''")),
    Column("session_id", Text, ForeignKey("agent_sessions.session_id")),
    Column("begun_at", Text),
    Column("ended_at", Text),
    Column("verdict", Text),
    Column("why", Text),
    Column("unchanged", Boolean),
)
_LOOK_IS_OPEN = second_looks.c.ended_at.is_(None)
Index(
    "ux_second_looks_open",
    second_looks.c.ticket_id,
    unique=True,
    sqlite_where=_LOOK_IS_OPEN,
    postgresql_where=_LOOK_IS_OPEN,
)
Index("idx_second_looks_ticket", second_looks.c.ticket_id, second_looks.c.asked_at)

# Columns of a journal row that nothing may change; `content` is the summary, which a better one may replace.
_FROZEN = [c.name for c in agent_log_entries.columns if c.name != "content"]
_APPEND_ONLY = "the journal is append-only"
# A session's rows may be deleted only after retention has left its tombstone in the ledger.
_BURIED = "EXISTS (SELECT 1 FROM ledger WHERE kind = 'tombstone' AND session_id = OLD.session_id)"
_ANCHOR = (
    "UPDATE agent_sessions SET head_seq = NEW.seq, head_hash = NEW.hash "
    "WHERE session_id = NEW.session_id AND head_seq < NEW.seq"
)
_LEDGER_ANCHOR = "UPDATE ledger_head SET seq = NEW.seq, hash = NEW.hash WHERE id = 1"


def triggers(dialect: str) -> list[str]:
    """The statements that make the journal append-only and anchor its heads.

    Args:
        dialect: ``sqlite`` or ``postgresql``.
    """
    if dialect == "sqlite":
        refuse = f"BEGIN SELECT RAISE(ABORT, '{_APPEND_ONLY}'); END"
        return [
            f"CREATE TRIGGER agent_log_entries_frozen BEFORE UPDATE OF {', '.join(_FROZEN)} ON agent_log_entries "
            + refuse,
            f"CREATE TRIGGER agent_log_entries_kept BEFORE DELETE ON agent_log_entries WHEN NOT {_BURIED} {refuse}",
            f"CREATE TRIGGER agent_log_entries_anchor AFTER INSERT ON agent_log_entries BEGIN {_ANCHOR}; END",
            f"CREATE TRIGGER ledger_frozen BEFORE UPDATE ON ledger {refuse}",
            f"CREATE TRIGGER ledger_kept BEFORE DELETE ON ledger {refuse}",
            f"CREATE TRIGGER ledger_anchor AFTER INSERT ON ledger BEGIN {_LEDGER_ANCHOR}; END",
        ]

    def function(name: str, body: str) -> str:
        return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"

    refuse = f"RAISE EXCEPTION '{_APPEND_ONLY}';"
    return [
        function("operator_refuse", refuse),
        function("operator_keep", f"IF NOT {_BURIED} THEN {refuse} END IF; RETURN OLD;"),
        function("operator_anchor", f"{_ANCHOR}; RETURN NULL;"),
        function("operator_ledger_anchor", f"{_LEDGER_ANCHOR}; RETURN NULL;"),
        f"CREATE TRIGGER agent_log_entries_frozen BEFORE UPDATE OF {', '.join(_FROZEN)} ON agent_log_entries "
        "FOR EACH ROW EXECUTE FUNCTION operator_refuse()",
        "CREATE TRIGGER agent_log_entries_kept BEFORE DELETE ON agent_log_entries "
        "FOR EACH ROW EXECUTE FUNCTION operator_keep()",
        "CREATE TRIGGER agent_log_entries_anchor AFTER INSERT ON agent_log_entries "
        "FOR EACH ROW EXECUTE FUNCTION operator_anchor()",
        "CREATE TRIGGER ledger_frozen BEFORE UPDATE ON ledger FOR EACH ROW EXECUTE FUNCTION operator_refuse()",
        "CREATE TRIGGER ledger_kept BEFORE DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION operator_refuse()",
        "CREATE TRIGGER ledger_anchor AFTER INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION operator_ledger_anchor()",
    ]


def ddl(dialect: Any) -> list[str]:
    """Every statement that creates the schema in an empty database of this SQLAlchemy dialect."""
    out: list[str] = []
    for table in metadata.sorted_tables:
        out.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        out.extend(
            str(CreateIndex(index).compile(dialect=dialect)).strip()
            for index in sorted(table.indexes, key=lambda index: str(index.name))
        )
    out.append(f"INSERT INTO ledger_head (id, seq, hash) VALUES (1, -1, '{'0' * 64}')")
    return out + triggers(dialect.name)


SCHEMA_SQL = ";\n\n".join(ddl(sqlite.dialect())) + ";\n"
"""The SQLite DDL of the metadata above (row A-038)."""
