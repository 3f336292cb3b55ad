"""A disk that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["remount", "small_disk"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, mounted for this test."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "operator-test", str(disk)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here ({done.stderr.strip()})")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def remount(disk: Path, options: str) -> None:
    """Mount it anew with other options, e.g. ``size=2m``."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)
