"""A day of looks in few rows: what the monitor's chart of 24 hours is drawn from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "monitor_spans",
        sa.Column("violation_key", sa.Text, primary_key=True),
        sa.Column("at", sa.BigInteger, primary_key=True),
        sa.Column("first_at", sa.BigInteger, nullable=False),
        sa.Column("last_at", sa.BigInteger, nullable=False),
        sa.Column("greens", sa.Integer, nullable=False),
        sa.Column("reds", sa.Integer, nullable=False),
        sa.Column("unknowns", sa.Integer, nullable=False),
        sa.Column("low", sa.Float),
        sa.Column("high", sa.Float),
    )
    op.execute(
        "INSERT INTO monitor_spans (violation_key, at, first_at, last_at, greens, reds, unknowns, low, high) "
        "SELECT violation_key, at / 300000 * 300000, min(at), max(at), "
        "sum(CASE WHEN light = 'green' THEN 1 ELSE 0 END), sum(CASE WHEN light = 'red' THEN 1 ELSE 0 END), "
        "sum(CASE WHEN light = 'unknown' THEN 1 ELSE 0 END), "
        "min(CASE WHEN light <> 'unknown' THEN value END), max(CASE WHEN light <> 'unknown' THEN value END) "
        "FROM monitor_samples GROUP BY violation_key, at / 300000 * 300000"
    )
