"""The workspace guard: the seed's question, and writes that hold also when somebody else is at it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_core.errors import ConfigError, SandboxError
from operator_core.safety.guard import WorkspaceGuard
from operator_core.sandbox.linux import beneath
from operator_core.sandbox.linux.beneath import lexical, open_beneath, walk
from tests.support.racing import rounds, swapping


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "victim").write_text("untouched")
    return folder


@pytest.fixture
def guard(tmp_path: Path, outside: Path) -> Iterator[WorkspaceGuard]:
    found = WorkspaceGuard(tmp_path / "ws")
    yield found
    assert (outside / "victim").read_text() == "untouched"
    assert sorted(os.listdir(outside)) == ["victim"]


class TestTheSeedsQuestion:
    """`is_write_allowed` as the seed has it (rows C-019, C-026)."""

    def test_a_new_file(self, guard: WorkspaceGuard) -> None:
        assert guard.is_write_allowed(guard.root / "new.txt")

    def test_an_existing_file(self, guard: WorkspaceGuard) -> None:
        (guard.root / "a").write_text("")
        assert guard.is_write_allowed(guard.root / "a")

    def test_a_relative_path_is_one_of_the_workspace(self, guard: WorkspaceGuard) -> None:
        assert guard.is_write_allowed("new.txt")

    def test_below_a_directory(self, guard: WorkspaceGuard) -> None:
        (guard.root / "d").mkdir()
        assert guard.is_write_allowed("d/new.txt")

    def test_without_its_directory_it_is_no(self, guard: WorkspaceGuard) -> None:
        assert not guard.is_write_allowed("missing/new.txt")

    def test_an_absolute_path_outside(self, guard: WorkspaceGuard) -> None:
        assert not guard.is_write_allowed("/etc/passwd")

    def test_up_and_out(self, guard: WorkspaceGuard) -> None:
        assert not guard.is_write_allowed("../outside/new")

    def test_up_and_in_again(self, guard: WorkspaceGuard) -> None:
        (guard.root / "d").mkdir()
        assert guard.is_write_allowed("d/../new")

    def test_a_link_to_a_file_outside(self, guard: WorkspaceGuard, outside: Path) -> None:
        (guard.root / "link").symlink_to(outside / "victim")
        assert not guard.is_write_allowed("link")

    def test_a_link_to_a_directory_outside(self, guard: WorkspaceGuard, outside: Path) -> None:
        (guard.root / "link").symlink_to(outside)
        assert not guard.is_write_allowed("link/new")

    def test_a_link_inside(self, guard: WorkspaceGuard) -> None:
        (guard.root / "d").mkdir()
        (guard.root / "link").symlink_to("d")
        assert guard.is_write_allowed("link/new")

    def test_a_sibling_whose_name_begins_alike(self, guard: WorkspaceGuard, tmp_path: Path) -> None:
        (tmp_path / "ws-evil").mkdir()
        assert not guard.is_write_allowed(tmp_path / "ws-evil" / "new")

    def test_the_workspace_is_made_and_canonical(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "alias").symlink_to("real")
        guard = WorkspaceGuard(tmp_path / "alias" / "a" / "b")
        assert guard.root == tmp_path / "real" / "a" / "b"
        assert guard.root.is_dir()

    def test_a_workspace_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="file"):
            WorkspaceGuard(tmp_path / "file")

    def test_a_link_to_nothing_and_impossible_names(self, guard: WorkspaceGuard, outside: Path) -> None:
        (guard.root / "link").symlink_to(outside / "new")
        assert not guard.is_write_allowed("link")
        assert not guard.is_write_allowed("a\0b")
        assert not guard.is_write_allowed("x" * 300 + "/y")


class TestWriting:
    def test_a_file_with_its_directories(self, guard: WorkspaceGuard) -> None:
        guard.write("a/b/c.txt", "hé".encode())
        guard.write(guard.root / "a" / "b" / "d", b"2")
        assert (guard.root / "a/b/c.txt").read_text() == "hé"
        assert sorted(os.listdir(guard.root / "a/b")) == ["c.txt", "d"]

    def test_defect_20_a_link_to_a_file_outside(self, guard: WorkspaceGuard, outside: Path) -> None:
        (guard.root / "link").symlink_to(outside / "victim")
        (guard.root / "relative").symlink_to("../outside/victim")
        for name in ("link", "relative"):
            with pytest.raises(SandboxError, match="outside the workspace directory"):
                guard.write(name, b"evil")

    def test_a_link_to_nothing_outside_makes_nothing_there(self, guard: WorkspaceGuard, outside: Path) -> None:
        (guard.root / "link").symlink_to(outside / "new")
        (guard.root / "far").symlink_to("../outside/new")
        for name in ("link", "far", "link/below"):
            with pytest.raises(SandboxError):
                guard.write(name, b"evil")

    def test_defect_21_no_directory_is_made_outside(self, guard: WorkspaceGuard, tmp_path: Path) -> None:
        for path in ("../newdir/a/b.txt", "x/../../newdir/a", str(tmp_path / "newdir" / "a"), "/newdir/a"):
            with pytest.raises(SandboxError, match="outside the workspace directory"):
                guard.write(path, b"evil")
        assert not (tmp_path / "newdir").exists()
        assert os.listdir(guard.root) == []

    def test_directories_behind_a_link(self, guard: WorkspaceGuard, outside: Path) -> None:
        (guard.root / "link").symlink_to(outside)
        with pytest.raises(SandboxError, match="outside"):
            guard.write("link/new/deep/file", b"evil")

    def test_links_inside_are_followed(self, guard: WorkspaceGuard) -> None:
        (guard.root / "d").mkdir()
        (guard.root / "to-d").symlink_to("d")
        (guard.root / "to-file").symlink_to("to-d/file")
        (guard.root / "absolute").symlink_to(guard.root / "d" / "other")
        guard.write("to-file", b"1")
        guard.write("to-d/sub/x", b"2")
        guard.write("absolute", b"3")
        assert (guard.root / "d/file").read_bytes() == b"1"
        assert (guard.root / "d/sub/x").read_bytes() == b"2"
        assert (guard.root / "d/other").read_bytes() == b"3"
        assert (guard.root / "to-file").is_symlink()

    def test_links_in_a_circle_end(self, guard: WorkspaceGuard) -> None:
        (guard.root / "a").symlink_to("b")
        (guard.root / "b").symlink_to("a")
        with pytest.raises(SandboxError):
            guard.write("a", b"")

    def test_the_other_name_of_a_file_keeps_its_content(self, guard: WorkspaceGuard, outside: Path) -> None:
        os.link(outside / "victim", guard.root / "hard")
        guard.write("hard", b"new")
        assert (guard.root / "hard").read_bytes() == b"new"

    def test_the_mode_stays_without_setuid(self, guard: WorkspaceGuard) -> None:
        guard.write("run", b"1")
        (guard.root / "run").chmod(0o4755)
        guard.write("run", b"2")
        assert stat.S_IMODE((guard.root / "run").stat().st_mode) == 0o755

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for others")
    def test_what_root_writes_belongs_to_the_owner_of_the_place(self, guard: WorkspaceGuard) -> None:
        os.chown(guard.root, 61234, 61235)
        guard.write("new/deep/file", b"x")
        (guard.root / "mine").write_text("")
        guard.write("mine", b"x")
        owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in guard.root.rglob("*")}
        theirs = (61234, 61235)
        assert owners == {"new": theirs, "deep": theirs, "file": theirs, "mine": (0, 0)}

    def test_what_is_no_plain_file_stays(self, guard: WorkspaceGuard) -> None:
        (guard.root / "d").mkdir()
        os.mkfifo(guard.root / "fifo")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(guard.root / "sock"))
        for name, what in (("d", "a dir"), ("fifo", "a named pipe"), ("sock", "a sock"), (".", "a dir"), ("", "a dir")):
            with pytest.raises(SandboxError, match=what):
                guard.write(name, b"x")
        assert sorted(os.listdir(guard.root)) == ["d", "fifo", "sock"]

    def test_protected_names_by_any_way(self, guard: WorkspaceGuard) -> None:
        hooks = guard.root / ".git" / "hooks"
        hooks.mkdir(parents=True)
        (guard.root / "innocent").symlink_to(".git/hooks")
        (guard.root / "sub").mkdir()
        (guard.root / "sub" / "cfg").symlink_to("../.git/config")
        (guard.root / "env").symlink_to(".envrc")
        for path in (
            ".git/hooks/pre-commit",
            "./.git//hooks/x",
            "sub/../.git/config",
            "innocent/pre-commit",
            "sub/cfg",
            "env",
        ):
            with pytest.raises(SandboxError, match="protected"):
                guard.write(path, b"evil")
        guard.write(".git/description", b"fine")
        guard.write(".github/x", b"fine")
        assert os.listdir(hooks) == []

    def test_reading_does_not_wait_for_a_pipe(self, guard: WorkspaceGuard, outside: Path) -> None:
        os.mkfifo(guard.root / "fifo")
        (guard.root / "link").symlink_to(outside / "victim")
        guard.write("f", b"content")
        assert guard.read("f", 4) == b"cont"
        for name in ("fifo", "link", "nothing"):
            with pytest.raises(SandboxError):
                guard.read(name, 10)

    def test_impossible_names_and_a_full_disk_say_why(self, guard: WorkspaceGuard) -> None:
        for path in ("a\0b", "x" * 300, "f" + "/x" * 3000):
            with pytest.raises(SandboxError):
                guard.write(path, b"")
        guard.write("x" * 255, b"the longest name")
        assert os.listdir(guard.root) == ["x" * 255]


class TestRaces:
    """Somebody exchanges a directory of the workspace for a link to the outside, again and again."""

    @pytest.mark.parametrize("kernel", [True, False])
    def test_no_write_gets_out(
        self, guard: WorkspaceGuard, outside: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
    ) -> None:
        if not kernel:
            monkeypatch.setattr(beneath, "_syscall", lambda: None)
        ends: Counter[str] = Counter()
        with swapping(guard.root / "dir", outside):
            # On a busy machine the attacker may sleep for a while: until both happened, so that the race was one.
            for number in rounds(2000, lambda: len(ends) == 2):
                try:
                    guard.write(f"dir/new/f{number % 7}", b"x")
                    ends["done"] += 1
                except SandboxError:
                    ends["refused"] += 1
        assert set(ends) == {"done", "refused"}

    def test_the_race_finds_a_check_that_comes_too_early(self, tmp_path: Path, outside: Path) -> None:
        workspace = tmp_path / "ws"
        workspace.mkdir()
        with swapping(workspace / "dir", outside):
            until = time.monotonic() + 60
            while time.monotonic() < until:
                path = workspace / "dir" / "f"
                with contextlib.suppress(OSError):
                    if path.resolve().is_relative_to(workspace):
                        path.write_bytes(b"x")
                if (outside / "f").exists():
                    return
        pytest.fail("the attacker never won, so the test above proves nothing")


class TestBeneath:
    def test_both_ways_of_opening_agree(self, tmp_path: Path) -> None:
        (tmp_path / "d" / "e").mkdir(parents=True)
        (tmp_path / "d" / "f").write_text("")
        (tmp_path / "up").symlink_to("..")
        (tmp_path / "root").symlink_to("/")
        (tmp_path / "magic").symlink_to("/proc/self/root")
        root = os.open(tmp_path, os.O_RDONLY)
        try:
            for path, fine in (
                ("d/f", True), ("d", True), (".", True), ("d/e/.", True), ("/etc", False), ("..", False),
                ("d/../..", False), ("up/x", False), ("root/etc", False), ("magic/etc", False), ("up", False),
            ):  # fmt: skip
                for opener in (open_beneath, walk):
                    if fine:
                        os.close(opener(root, path, os.O_RDONLY))
                        continue
                    with pytest.raises(OSError, match="Errno") as caught:
                        os.close(opener(root, path, os.O_RDONLY))
                    assert caught.value.errno in (errno.EXDEV, errno.ELOOP, errno.ENOTDIR), (opener.__name__, path)
        finally:
            os.close(root)

    @pytest.mark.parametrize("path", ["/a", "..", "a/../..", "../a", "a\0"])
    def test_what_leads_outside_as_a_text(self, path: str) -> None:
        with pytest.raises(OSError, match=re.escape(repr(path))):
            lexical(path)

    def test_nothing_stays_open(self, guard: WorkspaceGuard) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for path in ("a/b", "../x", ".git/hooks/x", "a/b/c", "a\0"):
            for _ in range(5):
                with contextlib.suppress(SandboxError):
                    guard.write(path, b"")
        assert len(os.listdir("/proc/self/fd")) == before
