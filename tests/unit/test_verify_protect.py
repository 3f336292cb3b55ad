"""Fingerprints of protected things: every change is seen, and nothing hostile can hold the look up."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from operator_core.model.invariant import Protect
from operator_core.verify.protect import Snapshot, compare, take_snapshot


async def _no_commands(command: str) -> NoReturn:
    raise AssertionError(command)


async def _look(folder: Path, *files: str, **more: Any) -> Snapshot:
    return await take_snapshot(Protect(files=files), folder, _no_commands, **more)


def _change(folder: Path, how: str) -> None:
    file = folder / "conf" / "limit"
    match how:
        case "content":
            file.write_text("11")
        case "same size":
            file.write_text("01")
        case "mode":
            file.chmod(0o777)
        case "removed":
            file.unlink()
        case "link":
            (folder / "copy").write_text("10")
            file.unlink()
            file.symlink_to(folder / "copy")
        case "fifo":
            file.unlink()
            os.mkfifo(file)
        case "folder":
            file.unlink()
            file.mkdir()
        case "socket":
            import socket

            file.unlink()
            with socket.socket(socket.AF_UNIX) as s:
                s.bind(str(file))


HOW = ("content", "same size", "mode", "removed", "link", "fifo", "folder", "socket")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("protected", ["conf/limit", "conf"])
async def test_every_change_is_seen_and_nothing_hangs(tmp_path: Path, how: str, protected: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "limit").write_text("10")
    (tmp_path / "conf" / "limit").chmod(0o644)
    before = await _look(tmp_path, protected)
    assert [e.ok for e in compare(before, await _look(tmp_path, protected))] == [True]
    started = time.monotonic()
    _change(tmp_path, how)
    (evidence,) = compare(before, await _look(tmp_path, protected))
    # An empty folder has no content; that it is one is seen if it is what is protected.
    assert evidence.ok is False
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("how", ["added", "renamed", "link inside"])
async def test_changes_of_a_folder(tmp_path: Path, how: str) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "a").write_text("1")
    (data / "b").symlink_to("deep")
    before = await _look(tmp_path, str(data))
    match how:
        case "added":
            (data / "deep" / "new").touch()
        case "renamed":
            (data / "deep" / "a").rename(data / "deep" / "z")
        case "link inside":
            (data / "b").unlink()
            (data / "b").symlink_to("/etc")
    assert [e.ok for e in compare(before, await _look(tmp_path, str(data)))] == [False]


async def test_a_missing_file_that_appears_is_a_change(tmp_path: Path) -> None:
    before = await _look(tmp_path, "off-switch")
    assert [e.ok for e in compare(before, await _look(tmp_path, "off-switch"))] == [True]
    (tmp_path / "off-switch").touch()
    assert [e.ok for e in compare(before, await _look(tmp_path, "off-switch"))] == [False]


async def test_an_endless_file_could_not_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("10")
    before = await _look(tmp_path, "limit")
    os.truncate(tmp_path / "limit", 1 << 42)
    started = time.monotonic()
    (evidence,) = compare(before, await _look(tmp_path, "limit", patience_s=0.2))
    assert time.monotonic() - started < 5
    assert evidence.ok is None
    assert "takes too long" in evidence.observed


async def test_what_could_not_be_read_before_proves_nothing_after(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    unreadable = {"file x": (await _look(tmp_path, "x"))["file x"]._replace(digest=None, excerpt="denied")}
    (evidence,) = compare(unreadable, await _look(tmp_path, "x"))
    assert evidence.ok is None
    assert "could not be looked at before: denied" in evidence.expected


async def test_what_not_everybody_may_read_is_not_shown(tmp_path: Path) -> None:
    """The excerpt goes into the journal and the report; a protected credential must not."""
    (tmp_path / "limit").write_text("ten")
    (tmp_path / "limit").chmod(0o644)
    (tmp_path / "token").write_text("canary-5f3c9e1b")
    (tmp_path / "token").chmod(0o640)
    before = await _look(tmp_path, "limit", "token")
    assert before["file limit"].excerpt.endswith(", 3 bytes: ten")
    assert before["file token"].excerpt.endswith(", 15 bytes")
    (tmp_path / "token").write_text("canary-5f3c9e1c")
    assert [e.ok for e in compare(before, await _look(tmp_path, "limit", "token"))] == [True, False]


async def test_a_folder_of_very_many_files_could_not_be_looked_at(tmp_path: Path) -> None:
    for n in range(50):
        (tmp_path / str(n)).touch()
    found = await _look(tmp_path.parent, str(tmp_path), patience_s=-1.0)
    assert [f.digest for f in found.values()] == [None]
