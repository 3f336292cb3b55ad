"""What is kept of an endless stream in bounded memory: its head, its tail, and a file with its first bytes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from operator_core.sandbox.protocol import Stream

__all__ = ["LogSink", "Sink", "StreamSink"]

Chunk = bytes | memoryview


class Sink(Protocol):
    """Where the pump puts the bytes of one stream."""

    def feed(self, chunk: Chunk) -> None:
        """Take the next bytes; they are valid only during the call."""
        ...

    def close(self) -> Stream:
        """The stream has ended."""
        ...


class _SpillFile:
    """A file of at most ``cap`` bytes. A disk that is full ends the file, never the command."""

    def __init__(self, path: Path, cap: int) -> None:
        self.path = path
        self.size = 0
        self._cap = cap
        self._fd: int | None = None
        self._broken = cap <= 0

    def write(self, chunk: Chunk) -> None:
        room = self._cap - self.size
        if self._broken or room <= 0:
            return
        data = memoryview(chunk)[:room]
        try:
            if self._fd is None:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, 0o600)
            while data:
                written = os.write(self._fd, data)
                self.size += written
                data = data[written:]
        except OSError:
            self._broken = True
            self.close()

    def close(self) -> Path | None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None
        return self.path if self.size else None


class StreamSink:
    """Keeps the first ``head`` and the last ``tail`` bytes, and a file as soon as they do not hold everything.

    Args:
        head: Bytes.
        tail: Bytes.
        spill: Path of the file, which is made only when it is needed; None for no file.
        spill_cap: Bytes of the file at most.
    """

    def __init__(self, head: int, tail: int, spill: Path | None = None, spill_cap: int = 64 << 20) -> None:
        self._head_size, self._tail_size = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._total = 0
        self._spill = _SpillFile(spill, spill_cap) if spill else None

    def feed(self, chunk: Chunk) -> None:
        size = len(chunk)
        if self._spill and self._total + size > self._head_size + self._tail_size:
            if self._total <= self._head_size + self._tail_size:
                self._spill.write(bytes(self._head + self._tail))
            self._spill.write(chunk)
        self._total += size
        if len(self._head) < self._head_size:
            room = self._head_size - len(self._head)
            self._head += chunk[:room]
            chunk = chunk[room:]
        if not self._tail_size or not len(chunk):
            return
        if len(chunk) >= self._tail_size:
            self._tail[:] = chunk[-self._tail_size :]
            return
        self._tail += chunk
        # Cutting at twice the size makes the cost per byte constant, however small the chunks are.
        if len(self._tail) > 2 * self._tail_size:
            del self._tail[: len(self._tail) - self._tail_size]

    def close(self) -> Stream:
        """What was kept. The tail may overlap nothing: head and tail are always different bytes."""
        del self._tail[: max(0, len(self._tail) - self._tail_size)]
        path = self._spill.close() if self._spill else None
        return Stream(bytes(self._head), bytes(self._tail), self._total, path)


class LogSink:
    """Writes everything into one file, up to a cap; both streams of a background job share it."""

    def __init__(self, path: Path, cap: int) -> None:
        self.path = path
        self.total = 0
        self._file = _SpillFile(path, cap)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)

    def feed(self, chunk: Chunk) -> None:
        self.total += len(chunk)
        self._file.write(chunk)

    def close(self) -> Stream:
        """Nothing is kept in memory."""
        return Stream(b"", b"", self.total, self._file.close())
