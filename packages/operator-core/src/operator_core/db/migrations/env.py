"""Run by Alembic: applies the migrations on the connection that :func:`operator_core.db.migrations.upgrade` gives."""

from __future__ import annotations

from alembic import context

from operator_core.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=False,
)
# No transaction of its own: the caller's one also holds the lock that lets only one process migrate.
context.run_migrations()
