"""Explorers: sessions without a ticket, which people may pause, resume and stop from anywhere."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agent_sessions", sa.Column("wanted", sa.Text))
