"""Work from other systems: the link between a row of theirs and a ticket; and an outbox of effects on others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "work_links",
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("external_id", sa.Text, primary_key=True),
        sa.Column("ticket_id", sa.Integer, sa.ForeignKey("tickets.id")),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("settled", sa.Boolean, nullable=False, server_default=sa.text("false")),
    )
    op.create_index(
        "idx_work_links_unsettled",
        "work_links",
        ["source", "owner"],
        sqlite_where=sa.text("settled IS 0"),
        postgresql_where=sa.text("settled IS false"),
    )
    op.create_index("ix_work_links_ticket_id", "work_links", ["ticket_id"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("dedupe_key", sa.Text, nullable=False, unique=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("due_at", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("taken_by", sa.Text),
        sa.Column("taken_until", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("error", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sqlite_autoincrement=True,
    )
    left = sa.text("ended_at IS NULL")
    op.create_index("idx_outbox_left", "outbox", ["channel", "id"], sqlite_where=left, postgresql_where=left)
