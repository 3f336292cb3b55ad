"""What must not change: a snapshot before the agent's first command, compared after its last one."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from operator_core import clock
from operator_core.model.invariant import Protect
from operator_core.model.verdict import Evidence
from operator_core.sandbox.protocol import ExecResult
from operator_core.text import clip, printable

__all__ = ["Fingerprint", "Snapshot", "compare", "take_snapshot"]

Run = Callable[[str], Awaitable[ExecResult]]


class Fingerprint(NamedTuple):
    """What one protected thing was.

    Attributes:
        digest: SHA-256 (hex) of its content, ``missing``, or None when it could not be looked at.
        excerpt: For people: its size, and the beginning of what everybody may read anyway.
    """

    digest: str | None
    excerpt: str


Snapshot = dict[str, Fingerprint]
"""``file PATH`` or ``command TEXT`` -> fingerprint."""


async def take_snapshot(protect: Protect, workspace: Path, run: Run, *, patience_s: float = 60.0) -> Snapshot:
    """Fingerprint every protected file and command.

    Args:
        workspace: Base of relative paths.
        run: Runs a command in a sandbox of the platform's own.
        patience_s: Seconds for one file or folder; what takes longer could not be looked at.
    """
    snapshot: Snapshot = {}
    for name in protect.files:
        path = Path(name) if os.path.isabs(name) else workspace / name
        # Hashing may take long; the event loop's heartbeat must not wait for it.
        snapshot[f"file {name}"] = await asyncio.to_thread(_hash_path, path, clock.monotonic() + patience_s)
    for command in protect.commands:
        result = await run(command)
        text = result.stdout.text()
        if result.exit_code != 0 or result.timed_out or result.stdout.omitted:
            why = "timed out" if result.timed_out else f"exit {result.exit_code}: {result.stderr.text() or text}"
            snapshot[f"command {command}"] = Fingerprint(None, clip(printable(why.strip()), 400))
        else:
            digest = hashlib.sha256(result.stdout.head + result.stdout.tail).hexdigest()
            snapshot[f"command {command}"] = Fingerprint(digest, clip(printable(text.strip()), 400))
    return snapshot


def compare(before: Snapshot, after: Snapshot) -> tuple[Evidence, ...]:
    """One piece of evidence for each protected thing; what could not be looked at, before or after, is neither."""
    evidence = []
    now = clock.iso()
    for name, was in before.items():
        is_now = after.get(name, Fingerprint(None, "not looked at"))
        known = was.digest is not None and is_now.digest is not None
        ok = was.digest == is_now.digest if known else None
        expected = f"as before: {was.excerpt}" if was.digest else f"could not be looked at before: {was.excerpt}"
        evidence.append(
            Evidence(f"protected {name}", expected, is_now.excerpt or "(empty)", ok, now, name.partition(" ")[2])
        )
    return tuple(evidence)


def _hash_path(path: Path, deadline: float) -> Fingerprint:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return Fingerprint("missing", "missing")
    except OSError as error:
        return Fingerprint(None, error.strerror or "cannot be read")
    if stat.S_ISDIR(info.st_mode):
        return _hash_folder(path, deadline)
    try:
        return _hash_file(path, info, deadline)
    except OSError as error:
        return Fingerprint(None, error.strerror or "cannot be read")


def _hash_file(path: Path, info: os.stat_result, deadline: float) -> Fingerprint:
    if stat.S_ISLNK(info.st_mode):
        target = os.readlink(path)
        return Fingerprint(
            hashlib.sha256(b"link\0" + os.fsencode(target)).hexdigest(), f"a link to {printable(target)}"
        )
    if not stat.S_ISREG(info.st_mode):
        return Fingerprint(f"special {stat.S_IFMT(info.st_mode):o}", "not a plain file")
    # The agent may have put anything here: never follow a link, never wait for a pipe.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return Fingerprint("changed while looking", "changed while looking")
        raise
    digest = hashlib.sha256(f"file {stat.S_IMODE(info.st_mode):o}\0".encode())
    with os.fdopen(fd, "rb") as file:
        head = file.read(400)
        digest.update(head)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            _hurry(deadline)  # a sparse file may be as large as it likes
    said = f"sha256 {digest.hexdigest()[:12]}, {info.st_size} bytes"
    if info.st_mode & stat.S_IROTH:  # what not everybody may read, such as a credential, is not for the journal either
        said += f": {clip(' '.join(printable(head.decode('utf-8', 'replace')).split()), 120)}"
    return Fingerprint(digest.hexdigest(), said)


def _hurry(deadline: float) -> None:
    if clock.monotonic() > deadline:
        raise TimeoutError(errno.ETIMEDOUT, "takes too long to read")


def _hash_folder(path: Path, deadline: float) -> Fingerprint:
    digest, count = hashlib.sha256(), 0
    problems: list[OSError] = []
    for folder, names, files in os.walk(path, onerror=problems.append):
        names.sort()
        for name in sorted(files) + [n for n in names if os.path.islink(os.path.join(folder, n))]:
            item = Path(folder, name)
            try:
                _hurry(deadline)
                found = _hash_file(item, item.lstat(), deadline)
            except OSError as error:
                problems.append(error)
                continue
            digest.update(os.fsencode(os.path.relpath(item, path)) + b"\0" + str(found.digest).encode() + b"\0")
            count += 1
    if problems:
        return Fingerprint(None, problems[0].strerror or "cannot be read")
    return Fingerprint(digest.hexdigest(), f"sha256 {digest.hexdigest()[:12]}, {count} files")
