"""People may ask a worker to judge finished work once more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "second_looks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("ticket_id", sa.Integer, sa.ForeignKey("tickets.id"), nullable=False),
        sa.Column("checks_only", sa.Boolean, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        sa.Column("asked_at", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, sa.ForeignKey("workers.id")),
        sa.Column("fence", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("lost", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("passed_by", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("session_id", sa.Text, sa.ForeignKey("agent_sessions.session_id")),
        sa.Column("begun_at", sa.Text),
        sa.Column("ended_at", sa.Text),
        sa.Column("verdict", sa.Text),
        sa.Column("why", sa.Text),
        sa.Column("unchanged", sa.Boolean),
    )
    still_open = sa.text("ended_at IS NULL")
    op.create_index(
        "ux_second_looks_open",
        "second_looks",
        ["ticket_id"],
        unique=True,
        sqlite_where=still_open,
        postgresql_where=still_open,
    )
    op.create_index("idx_second_looks_ticket", "second_looks", ["ticket_id", "asked_at"])
