"""The face: who may come in, what waits for a person's word, what was spent, and what the console draws."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("concurrency", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("workers", sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.add_column("tickets", sa.Column("labels", sa.Text))
    op.create_index("idx_tickets_status", "tickets", ["status", "id"])
    op.add_column("agent_sessions", sa.Column("counted_seq", sa.Integer, nullable=False, server_default=sa.text("-1")))
    behind = sa.text("head_seq > counted_seq")
    op.create_index(
        "idx_agent_sessions_not_counted", "agent_sessions", ["id"], sqlite_where=behind, postgresql_where=behind
    )
    op.create_index("idx_agent_log_entries_kind", "agent_log_entries", ["session_id", "entry_type", "seq"])
    failed = sa.text("exit_code != 0")
    op.create_index(
        "idx_agent_log_entries_failed",
        "agent_log_entries",
        ["session_id", "seq"],
        sqlite_where=failed,
        postgresql_where=failed,
    )
    op.create_table(
        "monitor_samples",
        sa.Column("violation_key", sa.Text, primary_key=True),
        sa.Column("at", sa.BigInteger, primary_key=True),
        sa.Column("light", sa.Text, nullable=False),
        sa.Column("value", sa.Float),
    )
    op.create_table(
        "usage_totals",
        sa.Column("session_id", sa.Text, sa.ForeignKey("agent_sessions.session_id"), primary_key=True),
        sa.Column("phase", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("day", sa.Text, primary_key=True),
        sa.Column("ticket_id", sa.Integer),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cache_read_tokens", sa.BigInteger, nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", sa.Float, nullable=False),
        sa.Column("unpriced", sa.Integer, nullable=False),
    )
    op.create_index("ix_usage_totals_ticket_id", "usage_totals", ["ticket_id"])
    op.create_index("idx_usage_totals_day", "usage_totals", ["day"])
    op.create_table(
        "live_output",
        sa.Column("session_id", sa.Text, sa.ForeignKey("agent_sessions.session_id"), primary_key=True),
        sa.Column("tool_use_id", sa.Text, nullable=False),
        sa.Column("tail", sa.Text, nullable=False),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
    )
    op.create_table(
        "cursors",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text),
        sa.Column("revoked_at", sa.Text),
        sa.Column("last_used_at", sa.Text),
    )
    op.create_table(
        "logins",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("token_id", sa.Text, sa.ForeignKey("tokens.id"), nullable=False),
        sa.Column("csrf", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text, nullable=False),
    )
    op.create_index("ix_logins_token_id", "logins", ["token_id"])
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("ticket_id", sa.Integer, sa.ForeignKey("tickets.id"), nullable=False),
        sa.Column("session_id", sa.Text, sa.ForeignKey("agent_sessions.session_id"), nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("arguments_hash", sa.Text, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("asked_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text, nullable=False),
        sa.Column("answered_at", sa.Text),
        sa.Column("answered_by", sa.Text),
        sa.Column("note", sa.Text),
        sa.Column("used_at", sa.Text),
        sa.UniqueConstraint("session_id", "call_id", name="ux_approvals_call"),
    )
    op.create_index("ix_approvals_ticket_id", "approvals", ["ticket_id"])
    pending = sa.text("state = 'pending'")
    op.create_index(
        "idx_approvals_pending", "approvals", ["expires_at"], sqlite_where=pending, postgresql_where=pending
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("principal", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("request_hash", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
