"""The addresses in the web that this configuration leads to."""

from __future__ import annotations

from pathlib import Path

from operator_core.config import Settings
from operator_core.errors import ConfigError
from operator_dataverse.onedrive.discovery import find_onedrive
from operator_dataverse.onedrive.web_urls import Mount, local_path_to_web_url, mount_at, mounts
from operator_dataverse.settings import settings_of

__all__ = ["folder_url", "known_mounts"]


def known_mounts(settings: Settings) -> list[Mount]:
    """What OneDrive has noted, and before that what ``[dataverse] onedrive_url`` says about its folder.

    Raises:
        ConfigError: ``onedrive_url`` is no ``https`` address.
    """
    mine = settings_of(settings)
    if mine.onedrive_url is None:
        return mounts()
    try:
        folder = find_onedrive(mine.onedrive_dir).path
    except ConfigError:
        return mounts()
    told = mount_at(folder, mine.onedrive_url)
    if told is None:
        raise ConfigError("`[dataverse] onedrive_url` is no https address of a folder; copy it from the browser.")
    return [told, *mounts()]


def folder_url(settings: Settings, path: Path) -> str | None:
    """The address of a session folder, for people; None when it is in no OneDrive, or its address cannot be known."""
    return local_path_to_web_url(path, known_mounts(settings))
