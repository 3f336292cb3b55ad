"""From a path in OneDrive to its address in the web, and back.

Nothing is asked over the network: the address follows from what OneDrive has noted about its folders, or from
``[dataverse] onedrive_url`` where it notes nothing (macOS, Linux).
"""

from __future__ import annotations

from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from operator_dataverse.onedrive.paths import path_looks_like_file
from operator_dataverse.onedrive.registry import Hive, WindowsHive, accounts, syncs

__all__ = [
    "Mount",
    "graph_create_link_url",
    "graph_item_url",
    "local_path_to_web_url",
    "mount_at",
    "mounts",
    "web_url_to_local_path",
]

_GRAPH = "https://graph.microsoft.com/v1.0/me/drive/root"


class Mount(NamedTuple):
    """A local folder and the address that it is a copy of.

    Attributes:
        folder: Compared as its system compares paths: a Windows path without regard to case.
        url: ``https://host/personal/user/Documents``, percent-encoded, without a slash at its end.
    """

    folder: PurePath
    url: str


def mounts(hive: Hive | None = None) -> list[Mount]:
    """What the registry knows: synchronised folders first, then the folders of the accounts."""
    registry = WindowsHive() if hive is None else hive
    found = [(sync.folder, sync.url) for sync in syncs(registry) if sync.url]
    for account in accounts(registry):
        # `https://host/personal/user/_api`: the documents of that site are what the account's folder is a copy of.
        site = account.endpoint.rstrip("/").removesuffix("/_api")
        if account.business and account.folder and site:
            found.append((account.folder, f"{site}/Documents"))
    made = (mount_at(PureWindowsPath(folder), url) for folder, url in found)
    return [mount for mount in made if mount is not None]


def mount_at(folder: PurePath, url: str) -> Mount | None:
    """A folder and its address; None for what is no ``https`` address of a folder."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return None
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
        return None
    # The registry has spaces in it, a person may have percent-encoded them already.
    path = quote(unquote(parts.path).rstrip("/"))
    return Mount(folder, urlunsplit((parts.scheme, parts.netloc.lower(), path, "", "")))


def local_path_to_web_url(path: PurePath | str, known: list[Mount] | None = None, *, view: bool = False) -> str | None:
    """The address of a file or folder; it need not exist.

    Args:
        path: Absolute.
        known: Default: what this machine knows.
        view: Of a file: the address that shows it, rather than the one that downloads it.

    Returns:
        None when it is in no folder that is known, or leaves it by ``..``.
    """
    best: tuple[int, str] | None = None
    for mount in mounts() if known is None else known:
        whole = type(mount.folder)(path)
        if ".." in whole.parts or not whole.is_relative_to(mount.folder):
            continue
        rest = whole.relative_to(mount.folder).parts
        url = "/".join([mount.url, *(quote(part, safe="", errors="replace") for part in rest)])
        # The innermost folder knows best.
        if best is None or len(mount.folder.parts) > best[0]:
            best = (len(mount.folder.parts), url)
    if best is None:
        return None
    return f"{best[1]}?web=1" if view and path_looks_like_file(path) else best[1]


def web_url_to_local_path(url: str, known: list[Mount] | None = None) -> PurePath | None:
    """The local path of an address.

    Returns:
        None when it is in no folder that is known, or has parts that are no names of files.
    """
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return None
    if parts.scheme != "https" or "@" in parts.netloc:
        return None
    best: PurePath | None = None
    depth = -1
    for mount in mounts() if known is None else known:
        theirs = urlsplit(mount.url)
        root = PurePosixPath(unquote(theirs.path)).parts
        # Names in SharePoint are compared without regard to case.
        names = [unquote(part) for part in parts.path.rstrip("/").split("/")[1:]]
        lead = [name.casefold() for name in names[: len(root) - 1]]
        if parts.netloc.lower() != theirs.netloc or lead != [part.casefold() for part in root[1:]]:
            continue
        rest = names[len(root) - 1 :]
        if all(map(_is_name, rest)) and len(root) > depth:
            best, depth = mount.folder.joinpath(*rest), len(root)
    return best


def graph_item_url(path: PurePath | str) -> str:
    """Microsoft Graph's address of an item, by its path in the person's drive."""
    return f"{_GRAPH}:/{_drive_path(path)}:/"


def graph_create_link_url(path: PurePath | str) -> str:
    """Where Microsoft Graph makes a link to an item that can be shared."""
    return f"{_GRAPH}:/{_drive_path(path)}:/createLink"


def _drive_path(path: PurePath | str) -> str:
    parts = [part for part in str(path).replace("\\", "/").split("/") if part]
    if not parts or not all(map(_is_name, parts)):
        raise ValueError("a path in the drive has names only, and at least one")
    return "/".join(quote(part, safe="", errors="replace") for part in parts)


def _is_name(part: str) -> bool:
    return part not in ("", ".", "..") and not any(c in '/\\:*?"<>|' or ord(c) < 32 for c in part)
