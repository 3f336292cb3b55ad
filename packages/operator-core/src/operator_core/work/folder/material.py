"""What the summarizer is shown of a finished work: the names of its files, and the beginning of those that are text."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import quote

from operator_core.text import clip, printable

__all__ = ["deliverables"]

_NAMES, _TEXTS = 100, 12
_HEAD, _ALL = 2_000, 16_000
_NOT_A_RESULT = frozenset({".git", "__pycache__", ".venv", "node_modules", ".pytest_cache", ".mypy_cache"})


def deliverables(workspace: Path) -> str:
    """The files of a workspace, newest first, as Markdown links relative to the session folder, and their beginnings.

    No link is followed, and whatever the agent left there is only text here.
    """
    found: list[tuple[float, str]] = []
    for folder, names, files in os.walk(workspace):
        names[:] = sorted(name for name in names if name not in _NOT_A_RESULT)
        for name in files:
            path = os.path.join(folder, name)
            try:
                info = os.lstat(path)
            except OSError:  # a path may be too long for a name, and the work right all the same
                continue
            if stat.S_ISREG(info.st_mode) and not name.endswith(".pyc"):
                found.append((info.st_mtime, os.path.relpath(path, workspace)))
        if len(found) > 50 * _NAMES:
            break
    found.sort(key=lambda item: (-item[0], item[1]))
    chosen = [name for _, name in found[:_NAMES]]
    lines = ["FILE LINKS:"]
    lines += [f"- [{printable(name)}](workspace/{quote(os.fsencode(name))})" for name in chosen]
    if len(found) > len(chosen):
        lines.append(f"- and {len(found) - len(chosen)} more")
    room = _ALL
    for name in chosen[:_TEXTS]:
        text = _head(workspace / name)
        if text and room > 0:
            lines += ["", f"{printable(name)}:", clip(text, min(_HEAD, room))]
            room -= len(text)
    return "\n".join(lines)


def _head(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read(_HEAD)
    except OSError:
        return ""
    return "" if b"\0" in data else printable(data.decode("utf-8", "replace"))
