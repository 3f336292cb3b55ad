"""Tasks: tickets may be pinned to a worker by its name, and a cancellation may be one that does not wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tickets", sa.Column("pinned_to", sa.Text))
    op.add_column("tickets", sa.Column("cancel_now", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.add_column("workers", sa.Column("name", sa.Text, nullable=False, server_default=sa.text("''")))
    queued = sa.text("status = 'queued'")
    op.create_index("idx_tickets_queued", "tickets", ["pinned_to", "id"], sqlite_where=queued, postgresql_where=queued)
