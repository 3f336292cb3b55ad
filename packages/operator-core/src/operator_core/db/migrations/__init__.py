"""Alembic migrations; :func:`upgrade` brings a database to the newest revision inside the caller's transaction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from operator_core.errors import SchemaMismatch

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

__all__ = ["alembic_config", "upgrade"]

# Any number; all processes of one database must use the same one.
_ADVISORY_LOCK = 6_021_023
_PATIENCE_MS = 600_000


def alembic_config() -> Config:
    """Alembic's configuration, without an ini file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def upgrade(connection: Connection) -> None:
    """Upgrade to the newest revision; several processes may try at once, one does it.

    Raises:
        SchemaMismatch: The database is at a revision that this version does not know.
    """
    from alembic import command
    from alembic.util.exc import CommandError

    if connection.dialect.name == "postgresql":
        # Another process that does it needs its time; what holds the tables afterwards is waited for as always.
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_PATIENCE_MS}")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        connection.exec_driver_sql("SET LOCAL lock_timeout TO DEFAULT")
    config = alembic_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SchemaMismatch(
            "The database was written by a newer version of Operator; upgrade Operator, or choose another with --db."
        ) from error
