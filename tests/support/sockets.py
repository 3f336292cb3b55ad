"""A unix socket that leads to another one, so that a test can decide who may use it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from types import TracebackType

__all__ = ["Forwarder"]


class Forwarder:
    """Passes connections on, from threads, until the block ends.

    Args:
        path: Where it listens.
        target: Where it connects.
        mode: Who may connect.
    """

    def __init__(self, path: Path, target: Path, mode: int = 0o666) -> None:
        self._path, self._target = path, target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        os.chmod(path, mode)
        self._listener.listen(16)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Path:
        return self._path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._target))
                pair = threading.Thread(target=_both, args=(near, far), daemon=True)
                self._threads.append(pair)
                pair.start()


def _both(near: socket.socket, far: socket.socket) -> None:
    back = threading.Thread(target=_one, args=(far, near), daemon=True)
    back.start()
    _one(near, far)
    back.join()
    near.close()
    far.close()


def _one(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
