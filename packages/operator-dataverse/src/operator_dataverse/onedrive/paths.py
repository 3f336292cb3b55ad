"""Questions about a path that a file system under synchronisation cannot be asked."""

from __future__ import annotations

from pathlib import PurePath, PureWindowsPath

__all__ = ["path_looks_like_file"]


def path_looks_like_file(path: PurePath | str) -> bool:
    """Whether a path means a file, by its suffix alone (row B-067).

    A file may be there already without being synchronised yet, so what ``Path.is_file`` says is a matter of luck. A
    hidden name is no suffix: ``.gitignore`` does not look like a file, ``.config.json`` does.
    """
    text = str(path)
    return not text.endswith(("/", "\\")) and PureWindowsPath(text).suffix not in ("", ".")
