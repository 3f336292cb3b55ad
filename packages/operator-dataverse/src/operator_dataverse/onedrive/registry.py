r"""What OneDrive has written into the Windows registry about its accounts and the folders that it keeps in step.

Below ``HKEY_CURRENT_USER``:

* ``Software\Microsoft\OneDrive\Accounts\{Business1,Personal,…}``: ``UserFolder``, ``ServiceEndpointUri``;
* ``Software\SyncEngines\Providers\OneDrive\{id}``: ``MountPoint``, ``UrlNamespace``, ``LibraryType``, and in newer
  versions ``FullRemotePath``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import NamedTuple, Protocol

__all__ = ["Account", "Hive", "Sync", "WindowsHive", "accounts", "syncs"]

_ACCOUNTS = r"Software\Microsoft\OneDrive\Accounts"
_PROVIDERS = r"Software\SyncEngines\Providers\OneDrive"


class Hive(Protocol):
    """The part of the registry that belongs to the person."""

    def keys(self, path: str) -> list[str]:
        """Names of the keys below a key, in their order; none if it is not there."""
        ...

    def values(self, path: str) -> Mapping[str, object]:
        """The values of a key by name; none if it is not there."""
        ...


class WindowsHive:
    """``HKEY_CURRENT_USER``; an empty one where there is none."""

    def keys(self, path: str) -> list[str]:
        """See :class:`Hive`."""
        if sys.platform == "win32":
            import winreg

            with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_CURRENT_USER, path) as key:
                return [winreg.EnumKey(key, number) for number in range(winreg.QueryInfoKey(key)[0])]
        return []

    def values(self, path: str) -> Mapping[str, object]:
        """See :class:`Hive`."""
        if sys.platform == "win32":
            import winreg

            with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_CURRENT_USER, path) as key:
                found = (winreg.EnumValue(key, number) for number in range(winreg.QueryInfoKey(key)[1]))
                return {name: value for name, value, _ in found}
        return {}


class Account(NamedTuple):
    """One account of OneDrive.

    Attributes:
        name: ``Business1``, ``Personal``, …
        folder: Its local folder; may be empty.
        endpoint: ``https://host/personal/user/_api``; may be empty.
    """

    name: str
    folder: str
    endpoint: str

    @property
    def business(self) -> bool:
        """Whether it is an organisation's."""
        return self.name.lower().startswith("business")


class Sync(NamedTuple):
    """One folder that is kept in step.

    Attributes:
        folder: The local folder.
        url: Address of the folder that it is a copy of; empty when the registry does not tell.
        library: ``mysite``, ``personal``, ``teamsite``, …; in lower case.
    """

    folder: str
    url: str
    library: str


def accounts(hive: Hive) -> list[Account]:
    """All accounts, those of organisations first."""
    found = []
    for name in hive.keys(_ACCOUNTS):
        values = hive.values(rf"{_ACCOUNTS}\{name}")
        found.append(Account(name, _text(values, "UserFolder"), _text(values, "ServiceEndpointUri")))
    return sorted(found, key=lambda account: (not account.business, account.name.lower()))


def syncs(hive: Hive) -> list[Sync]:
    """All folders that are kept in step and have a place on this machine."""
    found = []
    for key in hive.keys(_PROVIDERS):
        values = hive.values(rf"{_PROVIDERS}\{key}")
        library = _text(values, "LibraryType").lower()
        whole = _text(values, "FullRemotePath")
        # Of a team's library only the root is in `UrlNamespace`, whichever folder in it is kept in step.
        url = whole or (_text(values, "UrlNamespace") if library != "teamsite" else "")
        if folder := _text(values, "MountPoint"):
            found.append(Sync(folder, url, library))
    return found


def _text(values: Mapping[str, object], name: str) -> str:
    lowered = {key.lower(): value for key, value in values.items()}
    value = lowered.get(name.lower())
    return value.strip() if isinstance(value, str) else ""
