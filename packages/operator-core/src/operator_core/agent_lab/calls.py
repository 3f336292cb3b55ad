"""The files of a session's commands: who started one, what it has printed so far, and its result.

They survive a crash of the worker. ``<call>.out`` is created once, by whoever starts the command or proves that nobody
did; the command's first output goes into it. ``<call>.json`` is the result, published by rename. Long output is in
``<call>.d``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from operator_core.errors import Fenced, StoreError, StoreFull
from operator_core.sandbox.protocol import OnOutput

__all__ = ["CallFiles", "Started"]

_PARTIAL = 64 * 1024


class Started:
    """The right to run one command, and the place for its first output.

    Attributes:
        watcher: Is given all of the output too.
    """

    def __init__(self, fd: int) -> None:
        self.watcher: OnOutput | None = None
        self._fd = fd
        self._left = _PARTIAL

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def __call__(self, stream: str, data: memoryview) -> None:
        """Keep the next (redacted) bytes, as far as they fit."""
        if self._left > 0:
            self._left -= os.write(self._fd, data[: self._left])
        if self.watcher is not None:
            self.watcher(stream, data)


class CallFiles:
    """The call files of one session.

    Args:
        folder: Where they are; it exists while the session does.
        place: Identity of that folder: a result can be looked up only where the command ran.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self.place = place
        self._folder = folder

    def start(self, call: str) -> Started | None:
        """Take the right to run a command; None if somebody took it before, ever.

        Raises:
            Fenced: The session has ended elsewhere; this worker comes too late.
        """
        try:
            fd = os.open(self._path(call, ".out"), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return None
        except FileNotFoundError:
            raise Fenced from None
        return Started(fd)

    def publish(self, call: str, value: dict[str, Any]) -> None:
        """Put the result where a recovering worker finds it, whole or not at all.

        A power cut may still lose it: the outcome is then unknown, and said to be, which does not deserve a flush of
        the disk for each command.
        """
        draft = self._path(call, ".tmp")
        draft.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
        os.replace(draft, self._path(call, ".json"))

    def result(self, call: str) -> dict[str, Any] | None:
        """The published result, if there is one."""
        try:
            value = json.loads(self._path(call, ".json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def partial(self, call: str) -> str:
        """What the command had printed when it was interrupted, as far as it was kept."""
        try:
            return self._path(call, ".out").read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def spool(self, call: str) -> Path:
        """Folder for long output; it is made only if there is some."""
        return self._path(call, ".d")

    def error(self, error: OSError) -> StoreError:
        """What a failing file means: the session must stop here and be resumed, not go on without a result."""
        if error.errno == errno.ENOSPC:
            return StoreFull(f"The disk under {self._folder} is full; free some space and start again.")
        why = error.strerror or error
        return StoreError(f"The state folder {self._folder} cannot be used ({why}); set [worker] state_dir.")

    def _path(self, call: str, ending: str) -> Path:
        # The id is the model server's text: hostile as a path, harmless as a digest.
        return self._folder / (hashlib.sha256(call.encode("utf-8", "surrogatepass")).hexdigest()[:32] + ending)
