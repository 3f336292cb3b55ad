"""The folder of session files beside the store: call directories, sandbox homes, and the folder's own identity."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from operator_core import clock
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.errors import ConfigError, StoreFull, StoreReadOnly
from operator_core.sandbox.removal import remove_tree

__all__ = ["StateFolder"]


class StateFolder:
    """Where sessions keep files that must survive a crash of their worker.

    Args:
        settings: ``[worker] state_dir``.
        database: Names the default place, ``<database>.d`` beside an SQLite file.

    Raises:
        StoreReadOnly: It cannot be written.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self.root = self.locate(settings, database)
        self._store = [Path(database.name).resolve()] if database.sqlite else []
        try:
            (self.root / "sessions").mkdir(mode=0o700, parents=True, exist_ok=True)
            self.place = self._identity()
        except OSError as error:
            if error.errno == 28:
                raise StoreFull(f"The disk under {self.root} is full; free some space and start again.") from None
            raise StoreReadOnly(
                f"The state folder {self.root} cannot be written ({error.strerror}); set [worker] state_dir."
            ) from None

    @staticmethod
    def locate(settings: Settings, database: Database) -> Path:
        """Where the folder is, or would be."""
        if settings.worker.state_dir is not None:
            return settings.worker.state_dir.expanduser().resolve()
        return Path(f"{database.name}.d" if database.sqlite else "~/.operator/state").expanduser().resolve()

    def session(self, session_id: str) -> Path:
        """The folder of one session, created if it is missing."""
        path = self.root / "sessions" / session_id
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def names(self) -> list[str]:
        """Ids of the sessions that have a folder here."""
        return sorted(path.name for path in (self.root / "sessions").iterdir())

    def drop(self, session_id: str) -> None:
        """Remove the files of a session that has ended; its results are in the journal."""
        remove_tree(self.root / "sessions" / session_id)

    def keep_from(self, folders: Iterable[Path]) -> None:
        """Make sure that an agent with these folders sees neither the store nor the files of other sessions.

        Raises:
            ConfigError: It would; in its workspace it could even resolve its own ticket.
        """
        for folder in folders:
            for path in (*self._store, self.root):
                if path.is_relative_to(folder.resolve()):
                    raise ConfigError(
                        f"{path} lies in {folder}, where the agent could reach it; choose another place with --db or "
                        "[worker] state_dir, or give the agent a narrower folder."
                    )

    def _identity(self) -> str:
        """A name for this folder, so that a worker elsewhere does not take its absence for a proof."""
        path = self.root / "place"
        draft = self.root / f"place.{os.getpid()}"
        if not path.exists():
            draft.write_text(clock.new_id(), encoding="ascii")
            try:
                os.link(draft, path)  # the first one wins, and nobody reads a half-written name
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return path.read_text(encoding="ascii")
