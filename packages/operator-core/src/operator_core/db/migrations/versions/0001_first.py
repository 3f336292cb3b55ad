"""The first schema. Its statements are frozen in ``first_sqlite.sql`` and ``first_postgresql.sql``."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SEPARATOR = "\n-- next\n"


def upgrade() -> None:
    connection = op.get_bind()
    script = Path(__file__).with_name(f"first_{connection.dialect.name}.sql")
    for statement in script.read_text(encoding="utf-8").split(SEPARATOR):
        connection.exec_driver_sql(statement)
