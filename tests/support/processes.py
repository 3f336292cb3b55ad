"""Running the command line as a person does, and finding the processes it left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["operator_environment", "processes_of", "run_operator", "wait_until_gone"]


def operator_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """An explicit environment for a child: ``PATH``, ``HOME``, a UTF-8 locale, no colours, and then ``env``."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": os.environ["HOME"],
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        **(env or {}),
    }


def run_operator(
    *args: str,
    env: Mapping[str, str] | None = None,
    db: str | Path | None = None,
    cwd: str | Path | None = None,
    timeout: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m operator_core`` to its end, without standard input.

    Args:
        *args: The words after ``operator``.
        env: Variables to add to :func:`operator_environment`; nothing else of this process is passed on.
        db: Path or URL for the global ``--db`` option; left out when None.
        cwd: Working directory (default: that of the test).
        timeout: Seconds until the process is killed and ``subprocess.TimeoutExpired`` raised (default 60).

    Returns:
        Exit code, standard output and standard error as text; a non-zero exit code is no exception.
    """
    store = [] if db is None else ["--db", str(db)]
    return subprocess.run(
        [sys.executable, "-m", "operator_core", *store, *args],
        env=operator_environment(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def processes_of(marker: str) -> list[int]:
    """Ids of the living processes that carry ``marker`` in their arguments or their initial environment (Linux).

    The calling process and zombies are left out, and so is what belongs to another user when the caller is not root.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            # A zombie has neither arguments nor environment, so it is not found.
            text = (folder / "cmdline").read_bytes() + b"\0" + (folder / "environ").read_bytes()
        except OSError:
            continue  # ended meanwhile, or not ours to read
        if marker.encode() in text:
            found.append(int(folder.name))
    return sorted(found)


def wait_until_gone(*markers: str, timeout: float = 60.0) -> None:
    """Wait until no living process carries one of the markers; see :func:`processes_of`.

    Raises:
        AssertionError: Some still live after ``timeout`` seconds (default 60); the message says what they are.
    """
    deadline = time.monotonic() + timeout
    while left := sorted({pid for marker in markers for pid in processes_of(marker)}):
        if time.monotonic() >= deadline:
            raise AssertionError(f"alive after {timeout} s: " + "; ".join(map(_description, left)))
        time.sleep(0.01)


def _description(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
    except OSError:
        return f"{pid} (ended meanwhile)"
    return f"{pid} (child of {parent}) {words[:100]}"
