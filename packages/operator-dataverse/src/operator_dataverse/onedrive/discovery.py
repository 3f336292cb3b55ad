"""Where the OneDrive folder of this machine is (row B-037).

It is looked for in the order of requirements 2.2.9. A folder that is known to be somebody's private OneDrive is only
taken when that is asked for: what an organisation's task makes does not belong there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from operator_core.errors import ConfigError
from operator_dataverse.errors import OneDriveNotFound
from operator_dataverse.onedrive.registry import Hive, WindowsHive, accounts, syncs

__all__ = ["Found", "candidates", "find_onedrive"]


class Found(NamedTuple):
    """A OneDrive folder.

    Attributes:
        path: The folder; it exists.
        source: Who says so, e.g. ``OneDriveCommercial in the environment``.
        business: Whether it is an organisation's; None: it cannot be told.
    """

    path: Path
    source: str
    business: bool | None


def find_onedrive(
    override: Path | None = None,
    *,
    include_personal: bool = False,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    hive: Hive | None = None,
) -> Found:
    """The OneDrive folder to use.

    Args:
        override: ``[dataverse] onedrive_dir``; nothing is looked for then.
        include_personal: Also take one that is known to be private, if there is no other.
        environ: The environment (default: this process's).
        home: The person's folder (default: this process's).
        hive: The registry (default: this machine's).

    Raises:
        ConfigError: ``override`` is no folder.
        OneDriveNotFound: There is none.
    """
    if override is not None:
        path = override.expanduser()
        if not path.is_dir():
            raise ConfigError(f"`[dataverse] onedrive_dir` names {path}, which is no folder; make it or name another.")
        return Found(path.absolute(), "`[dataverse] onedrive_dir`", None)
    found = list(candidates(environ=environ, home=home, hive=hive))
    private = {_same(one.path) for one in found if one.business is False}
    good = [one for one in found if one.business or (one.business is None and _same(one.path) not in private)]
    if include_personal:
        good += [one for one in found if one.business is False]
    if not good:
        raise OneDriveNotFound
    return good[0]


def candidates(
    *, environ: Mapping[str, str] | None = None, home: Path | None = None, hive: Hive | None = None
) -> Iterator[Found]:
    """Every existing folder that somebody calls a OneDrive, best first; the same folder may come more than once."""
    env = os.environ if environ is None else environ
    house = _home() if home is None else home
    registry = WindowsHive() if hive is None else hive
    for path, source, business in _claims(env, house, registry):
        if path.is_absolute() and path.is_dir():
            yield Found(path, source, business)


def _claims(env: Mapping[str, str], home: Path | None, hive: Hive) -> Iterator[tuple[Path, str, bool | None]]:
    if named := env.get("OneDriveCommercial"):
        yield Path(named), "OneDriveCommercial in the environment", True
    if named := env.get("OneDriveConsumer"):
        yield Path(named), "OneDriveConsumer in the environment", False
    if named := env.get("OneDrive"):
        yield Path(named), "OneDrive in the environment", _by_name(Path(named))
    for account in accounts(hive):
        if account.folder:
            yield Path(account.folder), f"the registry, account {account.name}", account.business
    for sync in syncs(hive):
        # A team's library is a OneDrive by technique only: other people's things are in it.
        if sync.library in {"mysite", "personal"}:
            yield Path(sync.folder), "the registry, synchronised folders", sync.library == "mysite"
    if home is None:
        return
    for folder in _listed(home, "OneDrive - "):
        yield folder, "the home folder", True
    # macOS keeps the folders of all clouds in one place.
    for folder in _listed(home / "Library" / "CloudStorage", "OneDrive-"):
        yield folder, "~/Library/CloudStorage", folder.name.casefold() != "onedrive-personal"
    yield home / "OneDrive", "the home folder", None
    for folder in _listed(home, "OneDrive"):
        yield folder, "the home folder", _by_name(folder)


def _listed(folder: Path, prefix: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.startswith(prefix))
    except OSError:
        return []


def _by_name(path: Path) -> bool | None:
    """An organisation's folder is called ``OneDrive - Organisation``, the same way in every language."""
    name = path.name.replace("\\", "/").rpartition("/")[2]
    if name.casefold() in {"onedrive - personal", "onedrive-personal"}:
        return False
    return True if " - " in name else None


def _same(path: Path) -> str:
    text = os.path.normpath(path)
    return text.casefold() if sys.platform in {"win32", "darwin"} else text


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None
