"""Where the session folders go: into OneDrive where there is one, else into a folder of this machine (row B-008)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from operator_core import clock
from operator_core.config import Settings
from operator_core.errors import ConfigError
from operator_dataverse.errors import OneDriveNotFound
from operator_dataverse.onedrive.discovery import find_onedrive
from operator_dataverse.settings import settings_of

__all__ = ["SessionRoot", "find_session_root", "session_root", "unwritable", "with_session_root"]


class SessionRoot(NamedTuple):
    """Where the folder of all session folders is.

    Attributes:
        path: The folder; None: as the product itself decides (beside an SQLite store, else ``~/.operator``).
        onedrive: Whether it is a OneDrive.
        why: Why this one, for people; one sentence.
    """

    path: Path | None
    onedrive: bool
    why: str


def find_session_root(settings: Settings) -> SessionRoot:
    """Where they go, and why.

    Raises:
        ConfigError: ``[dataverse] onedrive_dir`` is no folder, or a folder that is configured cannot be written.
    """
    mine = settings_of(settings)
    reason = "OneDrive is switched off by `[dataverse] onedrive`."
    if mine.onedrive:
        try:
            found = find_onedrive(mine.onedrive_dir)
        except OneDriveNotFound as error:
            reason = str(error)
        else:
            problem = unwritable(found.path)
            if problem is None:
                return SessionRoot(found.path, True, f"This OneDrive was found by {found.source}.")
            if mine.onedrive_dir is not None:
                raise ConfigError(
                    f"`[dataverse] onedrive_dir` ({found.path}) cannot be written ({problem}); change that."
                )
            reason = f"The OneDrive folder {found.path} cannot be written ({problem})."
    for name, folder in (("[dataverse] work_dir", mine.work_dir), ("[tasks] root", settings.tasks.root)):
        if folder is not None:
            path = folder.expanduser().absolute()
            with contextlib.suppress(OSError):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if (problem := unwritable(path)) is not None:
                raise ConfigError(
                    f"`{name}` ({path}) cannot be written ({problem}); change that, or name another folder."
                )
            return SessionRoot(path, False, f"{reason} So it is `{name}`.")
    return SessionRoot(None, False, f"{reason} So they are where the product keeps them.")


def session_root(settings: Settings) -> Path | None:
    """The path of :func:`find_session_root`."""
    return find_session_root(settings).path


def with_session_root(settings: Settings) -> Settings:
    """These settings, with ``[tasks] root`` where the session folders go.

    Raises:
        ConfigError: See :func:`find_session_root`.
    """
    root = session_root(settings)
    if root is None:
        return settings
    return settings.model_copy(update={"tasks": settings.tasks.model_copy(update={"root": root})})


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written into a folder, tried by doing it; None: it can."""
    probe = folder / f".operator-{clock.new_id()}.tmp"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None
