"""What belongs to whom, and which session directories nobody owns any more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from operator_core.sandbox.leftovers import MARK, claim, sweep_beside
from operator_core.sandbox.owner import is_left_over, owner

ENDED = "import sys; sys.path[:0] = {path!r}\nfrom operator_core.sandbox.owner import owner; print(owner())"


@pytest.fixture(scope="module")
def dead() -> str:
    """The name of a process that has ended."""
    code = ENDED.format(path=sys.path)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_owners(dead: str) -> None:
    namespace, pid, started = owner().split("-")
    assert int(pid) == os.getpid()
    assert not is_left_over(owner())
    assert is_left_over(dead)
    assert is_left_over(f"{dead}-and more")
    assert is_left_over(f"{namespace}-{pid}-{int(started) - 1}")  # the same id, but an earlier process
    for other in (f"{int(namespace) + 1}-{pid}-1", "", "owner", f"{namespace}-{pid}", dead.partition("-")[2]):
        assert not is_left_over(other), other


def test_nobody_knows_who_lives_on_another_machine(dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several of them share a folder; the first PID namespace has the same number on all of them."""
    here = os.uname()
    elsewhere = os.uname_result((here.sysname, "elsewhere", *here[2:]))
    monkeypatch.setattr(os, "uname", lambda: elsewhere)
    assert not is_left_over(dead)


def room(base: Path, name: str, mark: str) -> Path:
    folder = base / name
    (folder / "home" / "deep").mkdir(parents=True)
    (folder / "cwd").write_text("/somewhere")
    folder.chmod(0o700)
    (folder / MARK).write_text(mark)
    return folder


def test_only_what_nobody_owns_is_emptied(tmp_path: Path, dead: str) -> None:
    left = room(tmp_path, "left", dead)
    kept = [
        room(tmp_path, "alive", owner()),
        room(tmp_path, "strange", "what is this"),
        room(tmp_path, "open to others", dead),
        room(tmp_path, "new", dead),
    ]
    kept[2].chmod(0o755)
    victim = tmp_path / "elsewhere" / "victim"
    room(victim.parent, "victim", dead)
    (tmp_path / "link").symlink_to(victim)
    (left / "tmp").symlink_to(victim)
    claim(kept[3])
    sweep_beside(kept[3])
    assert sorted(path.name for path in left.iterdir()) == ["cwd"]
    for folder in (*kept, victim):
        assert (folder / "home" / "deep").exists(), folder
    assert (kept[3] / MARK).read_text() == owner()


def test_nothing_to_look_at(tmp_path: Path) -> None:
    sweep_beside(tmp_path / "no" / "such" / "folder")
