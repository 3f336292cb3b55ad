"""How many writes leave the workspace while somebody exchanges a directory for a link, and what a write costs.

Each method writes the same file again and again while another process exchanges its directory and a link to the
outside (``renameat2`` with ``RENAME_EXCHANGE``), as fast as it can. What turns up outside has escaped.

* seed: ``realpath`` of the parent, compare, then ``open`` the path
* resolved: ``realpath``, compare, then ``open`` what was resolved
* pathlib: ``Path.resolve()`` and ``is_relative_to``, then write
* openat2: open beneath the workspace in one step, then write in place
* guard: :class:`~operator_core.safety.guard.WorkspaceGuard`: the same, and whole or not at all (new file and rename)
* guard, walk: the same where ``openat2`` is missing
* sandbox: the file tool of a sandbox, through its table of mounts

Run ``python benchmarks/guard_races.py`` (about a minute). Machines are noisy: trust the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import platform
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from operator_core.errors import SandboxError
from operator_core.safety.guard import WorkspaceGuard
from operator_core.sandbox import files
from operator_core.sandbox.linux import beneath

DATA = b"x" * 100
_EXCHANGE = 2
_LONGEST_S = 60.0


class Row(NamedTuple):
    """One method: median microseconds in peace and under attack; writes that were done, refused, that escaped.

    A refusal is much cheaper than a write, so that there are more of them in the same time.
    """

    name: str
    peace_us: float
    attack_us: float
    done: int
    refused: int
    escaped: int


class Refused(Exception):
    """The method says no."""


Write = Callable[[Path], None]


def methods(root: Path) -> dict[str, Write]:
    """The methods by name; each writes :data:`DATA` to the path or raises."""
    workspace = os.path.realpath(root)
    guard = WorkspaceGuard(root)
    fd = os.open(root, os.O_RDONLY)
    places = [files.Place(str(root), root, "write")]

    def inside(path: str) -> str:
        if not (path + "/").startswith(workspace + "/"):
            raise Refused
        return path

    def seed(path: Path) -> None:
        inside(os.path.realpath(path.parent))
        with open(path, "wb") as file:
            file.write(DATA)

    def resolved(path: Path) -> None:
        with open(inside(os.path.realpath(path)), "wb") as file:
            file.write(DATA)

    def pathlib(path: Path) -> None:
        if not path.resolve().is_relative_to(root):
            raise Refused
        path.write_bytes(DATA)

    def openat2(path: Path) -> None:
        relative = str(path.relative_to(root))
        parent = beneath.open_beneath(fd, os.path.dirname(relative), os.O_PATH | os.O_DIRECTORY)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            file = os.open(os.path.basename(relative), flags, 0o644, dir_fd=parent)
            try:
                os.write(file, DATA)
            finally:
                os.close(file)
        finally:
            os.close(parent)

    def guarded(path: Path) -> None:
        guard.write(path, DATA)

    def walked(path: Path) -> None:
        kernel, beneath._syscall = beneath._syscall, lambda: None  # type: ignore[assignment]
        try:
            guard.write(path, DATA)
        finally:
            beneath._syscall = kernel

    def sandbox(path: Path) -> None:
        files.write(places, str(path), str(root), DATA)

    return {
        "seed": seed,
        "resolved": resolved,
        "pathlib": pathlib,
        "openat2": openat2,
        "guard": guarded,
        "guard, walk": walked,
        "sandbox": sandbox,
    }


@contextlib.contextmanager
def attacker(directory: Path, link: Path) -> Iterator[None]:
    """A process that lets the two change places until the end of the block."""
    number = {"x86_64": 316, "aarch64": 276}[platform.machine()]
    call = ctypes.CDLL(None).syscall
    pid = os.fork()
    if pid == 0:
        one, two = os.fsencode(directory), os.fsencode(link)
        while True:
            call(number, -100, one, -100, two, _EXCHANGE)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def in_peace(writes: dict[str, Write], workspace: Path, count: int) -> dict[str, float]:
    """Median seconds of one write by each method, in turn, with nobody else about."""
    calm = workspace / "src" / "calm"
    calm.mkdir(parents=True)
    taken: dict[str, list[float]] = {name: [] for name in writes}
    for _ in range(count):
        for name, write in writes.items():
            started = time.perf_counter()
            write(calm / "f")
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in taken.items()}


def measure(name: str, write: Write, folder: Path, workspace: Path, count: int, peace: float) -> Row:
    """One method under attack."""
    outside = folder / "outside"
    directory, link = workspace / "src" / "package", workspace / "src" / "link"
    for path in (directory, outside):
        path.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    done = refused = escaped = 0
    attacked = []
    with attacker(directory, link):
        end = time.monotonic() + _LONGEST_S
        while done < count and time.monotonic() < end:
            started = time.perf_counter()
            try:
                write(directory / "f")
                attacked.append(time.perf_counter() - started)
                done += 1
            except (Refused, SandboxError, OSError):
                refused += 1
            with contextlib.suppress(FileNotFoundError):
                (outside / "f").unlink()
                escaped += 1
    for path in (directory, link):  # whichever of them is the link now
        if path.is_symlink():
            path.unlink()
        else:
            with contextlib.suppress(FileNotFoundError):
                (path / "f").unlink()
            path.rmdir()
    return Row(name, peace * 1e6, statistics.median(attacked) * 1e6, done, refused, escaped)


def main() -> None:
    """Measure all methods and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--count", type=int, default=20_000, help="writes that each method carries out (default: %(default)s)"
    )
    count = parser.parse_args().count
    print("| method | µs in peace | µs under attack | done | refused | escaped |\n|---|---|---|---|---|---|")
    # In memory where that is possible: it is about what a method costs, and not about the disk.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = Path(name).resolve()
        workspace = folder / "Operator Sessions" / "a-task_1234abcd" / "workspace"
        workspace.mkdir(parents=True)
        writes = methods(workspace)
        peace = in_peace(writes, workspace, count // 10)
        for method, write in writes.items():
            row = measure(method, write, folder, workspace, count, peace[method])
            print(
                f"| {row.name} | {row.peace_us:.0f} | {row.attack_us:.0f} | {row.done} | {row.refused} | "
                f"{row.escaped} ({row.escaped / max(1, row.done):.1%}) |",
                flush=True,
            )
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}.")


if __name__ == "__main__":
    main()
