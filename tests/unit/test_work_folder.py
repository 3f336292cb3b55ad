"""The session folder: hostile names are harmless, nothing is written through a link, and a changed brief is noticed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operator_core import clock
from operator_core.config import Settings, StoreSettings, TaskSettings
from operator_core.db.engine import Database
from operator_core.errors import StoreFull, StoreReadOnly
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Ticket, TicketKind
from operator_core.work.folder import SESSIONS, SessionFolder, folder_name, place_file, short_id
from operator_core.work.folder import session_folder as folder_module

RESERVED = {"CON", "PRN", "AUX", "NUL"} | {f"{name}{n}" for name in ("COM", "LPT") for n in range(10)}


def _ticket(key: str = "task:0123abcd-4567-89ab-cdef-000000000000") -> Ticket:
    now = clock.now()
    return Ticket(7, key, "name", "do it", "info", now, now, kind=TicketKind.TASK)


@given(name=st.text(max_size=400), id8=st.text(alphabet="0123456789abcdef", min_size=8, max_size=8))
@example(name="", id8="01234567")
@example(name="../../etc/passwd", id8="01234567")
@example(name="..", id8="01234567")
@example(name="/", id8="01234567")
@example(name="a" * 300, id8="01234567")
@example(name="a" * 49 + "  b", id8="01234567")
@example(name="Ünïcödé 任务 \U0001f600", id8="01234567")
@example(name="nul\0byte\nline", id8="01234567")
@example(name=" . - leading", id8="01234567")
@example(name="--force", id8="01234567")
@example(name="trailing. . ", id8="01234567")
@example(name="CON", id8="01234567")
@example(name="com1", id8="01234567")
@example(name="\u202egnp.exe", id8="01234567")
def test_a_hostile_name_is_harmless(name: str, id8: str) -> None:
    made = folder_name(name, id8)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_ -]*_[0-9a-f]{8}", made)
    assert len(made.encode()) <= 59
    assert made.endswith(f"_{id8}")
    assert made.upper() not in RESERVED
    assert Path("/root/x", made).parent == Path("/root/x")
    assert made == folder_name(name, id8)


def test_an_ordinary_name_stays_as_it_is() -> None:
    assert folder_name("Fix the failing test-2_b", "0123abcd") == "Fix the failing test-2_b_0123abcd"
    assert folder_name("a/b.c:d", "0123abcd") == "a_b_c_d_0123abcd"
    assert folder_name("x" * 51, "0123abcd") == "x" * 50 + "_0123abcd"


@given(name=st.text(max_size=100), attempt=st.integers(1, 12))
def test_every_folder_has_a_usable_branch(name: str, attempt: int) -> None:
    branch = SessionFolder(Path("/r"), folder_name(name, "0123abcd"), attempt).branch
    assert re.fullmatch(r"operator/[A-Za-z0-9_][A-Za-z0-9_-]*", branch)
    assert not branch.endswith((".lock", "/"))


def test_the_short_id_comes_from_the_key() -> None:
    assert short_id(_ticket()) == "0123abcd"
    assert short_id(_ticket("task:0123ABCD456789abcdef000000000000")) == "0123abcd"
    assert re.fullmatch("[0-9a-f]{8}", short_id(_ticket("by hand")))
    assert short_id(_ticket("by hand")) != short_id(_ticket("by foot"))


async def test_the_root_is_configured_or_beside_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store" / "operator.db"
    store.parent.mkdir()
    spec = TaskSpec(name="Fix it", prompt="fix it")
    async with Database.open(store) as database:
        beside = SessionFolder.locate(Settings(store=StoreSettings(url=str(store))), database, _ticket(), spec, 1)
        elsewhere = Settings(tasks=TaskSettings(root=tmp_path / "drive"))
        there = SessionFolder.locate(elsewhere, database, _ticket(), spec, 2)
    assert beside.path == store.parent.resolve() / SESSIONS / "Fix it_0123abcd" / "attempt-1"
    assert there.path == tmp_path.resolve() / "drive" / SESSIONS / "Fix it_0123abcd" / "attempt-2"
    assert there.workspace == there.path / "workspace"
    assert (beside.branch, there.branch) == ("operator/Fix-it_0123abcd", "operator/Fix-it_0123abcd-attempt-2")
    assert not beside.exists
    assert os.listdir(store.parent) == ["operator.db"] or not (store.parent / SESSIONS).exists()


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder(tmp_path / "root", "task_0123abcd", 1)


def test_the_folder_is_private_and_can_be_made_twice(folder: SessionFolder) -> None:
    folder.create()
    folder.create()
    assert folder.exists
    for path in (folder.path, folder.path.parent, folder.path.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("at", [SESSIONS, f"{SESSIONS}/task_0123abcd", f"{SESSIONS}/task_0123abcd/attempt-1"])
@pytest.mark.parametrize("what", ["link", "file"])
def test_no_folder_is_made_behind_a_link(folder: SessionFolder, tmp_path: Path, at: str, what: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = folder.root / at
    place.parent.mkdir(parents=True)
    place.symlink_to(outside) if what == "link" else place.write_text("")
    with pytest.raises(StoreReadOnly, match=r"link or a file is where .*set \[tasks\] root"):
        folder.create()
    with pytest.raises(StoreReadOnly):
        folder.write("result.md", "x")
    assert list(outside.iterdir()) == []


def test_the_root_itself_may_be_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "drive").symlink_to(tmp_path / "real")
    SessionFolder(tmp_path / "drive", "t_0", 1).write("a", "b")
    assert (tmp_path / "real" / SESSIONS / "t_0" / "attempt-1" / "a").read_text() == "b"


def test_a_place_that_cannot_be_written_is_one_sentence() -> None:
    with pytest.raises(StoreReadOnly) as caught:
        SessionFolder(Path("/proc/nothing"), "t_0", 1).create()
    assert str(caught.value).count("\n") == 0
    assert "[tasks] root" in str(caught.value)


def test_the_brief_says_the_contract(folder: SessionFolder) -> None:
    checks = (TaskCheck(command="pytest -q\necho `x`", timeout_s=30), TaskCheck(command="./check.sh"))
    digests = folder.write_brief("Do the thing.", "It is done.", "the raw prompt", checks)
    task, criteria = ((folder.path / name).read_text() for name in ("TASK.md", "VERIFICATION.md"))
    assert task.startswith("# TASK - READ ONLY - SOURCE OF TRUTH\n")
    assert re.findall(r"^## .*", task, re.M) == ["## Task Description", "## Important Notes"]
    assert "Do the thing." in task
    assert "`STATUS: done`" in task
    assert "`STATUS: blocked - <reason why you're blocked>`" in task
    assert criteria.startswith("# Verification Criteria\n")
    assert re.findall(r"^## .*", criteria, re.M) == ["## Success Definition", "## Verification Instructions"]
    assert "\n    pytest -q\n    echo `x`\n\n    (at most 30 s)\n\n    ./check.sh\n" in criteria
    assert (folder.path / "TASK_PROMPT.md").read_text() == "the raw prompt\n"
    assert (folder.path / "SUCCESS_CRITERIA.md").read_text() == "It is done.\n"
    assert set(digests) == {"TASK.md", "VERIFICATION.md", "TASK_PROMPT.md", "SUCCESS_CRITERIA.md"}
    for name in digests:
        assert stat.S_IMODE((folder.path / name).stat().st_mode) == 0o444
    assert folder.changed(digests) == []
    before = {name: (folder.path / name).stat().st_ino for name in digests}
    assert folder.write_brief("Do the thing.", "It is done.", "the raw prompt", checks) == digests
    # A file that a sandbox shows at this moment must not be replaced by an equal one.
    assert {name: (folder.path / name).stat().st_ino for name in digests} == before


def _edit(path: Path) -> None:
    path.chmod(0o644)
    path.write_text("easier")


def _link(path: Path) -> None:
    real = path.with_name("copy")
    real.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(real)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x").touch()


@pytest.mark.parametrize("how", [_edit, _link, _fifo, _folder, Path.unlink])
def test_a_changed_brief_is_noticed_and_put_right(folder: SessionFolder, how: object) -> None:
    digests = folder.write_brief("a", "b", "c")
    assert callable(how)
    how(folder.path / "TASK.md")
    assert folder.changed(digests) == ["TASK.md"]
    assert folder.write_brief("a", "b", "c") == digests
    assert folder.changed(digests) == []


def test_a_brief_behind_a_linked_folder_has_changed(folder: SessionFolder) -> None:
    digests = folder.write_brief("a", "b", "c")
    moved = folder.path.with_name("moved")
    folder.path.rename(moved)
    assert folder.changed(digests) == list(digests)
    folder.path.symlink_to(moved)
    assert folder.changed(digests) == list(digests)


def test_a_link_is_replaced_and_never_followed(folder: SessionFolder, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_text("precious")
    folder.create()
    (folder.path / "VERDICT.json").symlink_to(outside)
    (folder.path / "REPORT.md").hardlink_to(outside)
    (folder.path / "SUMMARY.md").mkdir()
    (folder.path / "SUMMARY.md" / "kept").write_text("kept")
    for name in ("VERDICT.json", "REPORT.md", "SUMMARY.md"):
        folder.write(name, "ours")
        assert (folder.path / name).read_text() == "ours"
        assert not (folder.path / name).is_symlink()
    assert outside.read_text() == "precious"
    (aside,) = folder.path.glob("SUMMARY.md.aside-*")
    assert (aside / "kept").read_text() == "kept"
    assert not list(folder.path.glob("*.tmp")) + list(folder.path.glob(".*.tmp"))


def test_what_has_no_utf8_is_written_as_its_escape(folder: SessionFolder) -> None:
    folder.write("result.md", "half \ud800 and € ✓")
    assert (folder.path / "result.md").read_text() == "half \\ud800 and € ✓"


def test_removing_needs_nothing_to_be_there(folder: SessionFolder) -> None:
    folder.remove("VERDICT.json")
    folder.write("VERDICT.json", "{}")
    folder.remove("VERDICT.json")
    folder.remove("VERDICT.json")
    (folder.path / "VERDICT.json").mkdir()
    folder.remove("VERDICT.json")
    assert not (folder.path / "VERDICT.json").exists()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[None]:
    """A limit on the size of files stands in for a disk that fills up in the middle of a write."""
    import errno
    import resource
    import signal

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    kept = folder_module._FULL
    folder_module._FULL = (*kept, errno.EFBIG)
    try:
        yield
    finally:
        folder_module._FULL = kept
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(folder: SessionFolder, full_disk: None) -> None:
    folder.write("result.md", "old")
    with pytest.raises(StoreFull, match=r"^The disk under .* is full; free some space"):
        folder.write("result.md", "x" * 10_000)
    assert (folder.path / "result.md").read_text() == "old"
    assert os.listdir(folder.path) == ["result.md"]


def test_a_file_is_placed_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    place_file(tmp_path / "in", "a/b/run.sh", b"#!/bin/sh\n", 0o755)
    assert os.access(tmp_path / "in/a/b/run.sh", os.X_OK)
    (tmp_path / "in/tests").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        place_file(tmp_path / "in", "tests/x", b"", 0o644)
    assert list((tmp_path / "outside").iterdir()) == []
