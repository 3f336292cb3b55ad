"""Runs the arena as another process, and as another user where that is asked for."""

from __future__ import annotations

import functools
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import Unprivileged, UnprivilegedMissing
from tests.support.processes import operator_environment
from tests.support.unprivileged import UID

__all__ = ["COLUMNS", "IMAGE", "Missing", "NotRoot", "fight"]

COLUMNS = (
    "none/root", "none/user", "bubblewrap/root", "bubblewrap/user", "docker/root", "docker/user", "landlock/user",
)  # fmt: skip
IMAGE = "operator-agent:test"
_SOCKET = Path("/var/run/docker.sock")
_LONG_S = 300.0


class Missing(Exception):
    """This column cannot be tried here; the text says why, as a clause."""


class NotRoot(Missing):
    """The tests do not run as root, which no service can change."""


@functools.cache
def fight(column: str, *, idle: bool = False, proxy: bool = False) -> dict[str, Any]:
    """Everything that was seen in one column (``backend/user``), tried once per process.

    Args:
        column: One of :data:`COLUMNS`.
        idle: Do nothing instead of each attack, to see whether the witnesses can say no.
        proxy: With the network ``allowlist``, and attacks on that alone.

    Raises:
        Missing: Not on this machine.
        AssertionError: The arena itself failed.
    """
    backend, _, user = column.partition("/")
    words = [sys.executable, "-m", "tests.escape.arena", backend]
    words += ["--idle"] * idle + ["--proxy"] * proxy
    if backend == "docker":
        words += ["--image", IMAGE]
    done = _as_root(words) if user == "root" else _as_user(words, backend)
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    assert "broken" not in seen, seen["broken"]
    if "unavailable" in seen:
        raise Missing(seen["unavailable"])
    return seen


def _as_root(words: list[str]) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        raise NotRoot("the tests do not run as root")
    root = Path(__file__).parents[2]
    return subprocess.run(
        words, env=operator_environment(), cwd=root, capture_output=True, text=True, timeout=_LONG_S, check=False
    )


def _as_user(words: list[str], backend: str) -> subprocess.CompletedProcess[str]:
    try:
        # Each a user of its own, because some limits count all processes of a user.
        uid = UID + 1 + ("none", "bubblewrap", "docker", "landlock").index(backend)
        with Unprivileged(uid, _docker_group() if backend == "docker" else ()) as user:
            return user.run(*words, timeout=_LONG_S)
    except UnprivilegedMissing as missing:
        raise Missing(str(missing)) from None


def _docker_group() -> tuple[int, ...]:
    """The group that may use the docker daemon."""
    try:
        info = _SOCKET.stat()
    except OSError:
        raise Missing("there is no docker daemon") from None
    return (info.st_gid,) if info.st_mode & stat.S_IWGRP else ()
