"""A copy is what the folder was, whatever an agent put there; the digest is of content alone."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from operator_core.errors import VerificationError
from operator_core.verify.copies import MAX_DEPTH, TreeCopy, copy_tree, plain_name, tree_digest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "text").write_text("content")
    (folder / "empty").mkdir()
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o4755)
    (folder / "a" / "up").symlink_to("../tool")
    return folder


async def copied(source: Path, target: Path) -> TreeCopy:
    return await copy_tree(source, target, max_bytes=1 << 30, max_files=10_000)


async def test_a_copy_is_what_the_folder_was(source: Path, tmp_path: Path) -> None:
    os.utime(source / "tool", (1_000_000_000, 1_000_000_000))
    os.utime(source / "a", (1_000_000_001, 1_000_000_001))
    done = await copied(source, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert done.digest == await tree_digest(source) == await tree_digest(copy)
    assert (done.files, done.bytes, done.skipped) == (6, len("content") + len("#!/bin/sh\n"), ())
    assert (copy / "a/b/text").read_text() == "content"
    assert (copy / "empty").is_dir()
    assert os.readlink(copy / "a/up") == "../tool"
    assert stat.S_IMODE((copy / "tool").stat().st_mode) == 0o755
    assert (copy / "tool").stat().st_mtime == 1_000_000_000
    assert (copy / "a").stat().st_mtime == 1_000_000_001


async def test_the_digest_is_of_content_alone(source: Path) -> None:
    before = await tree_digest(source)
    os.utime(source / "tool", (1, 1))
    (source / "tool").chmod(0o755)
    (source / ".git").mkdir()
    (source / ".git" / "index").write_text("x")
    assert await tree_digest(source) == before


@pytest.mark.parametrize(
    "change",
    [
        "echo x >>a/b/text",
        "chmod -x tool",
        "mv a/b a/c",
        "rm a/up; ln -s ../other a/up",
        "rm a/up; cp tool a/up",
        "rmdir empty",
        "rm -r empty; touch empty",
        "mkdir a/.git; touch a/.git/x",
        "mkdir .github",
        "rm tool; ln -s a/b/text tool",
    ],
)
async def test_every_change_of_content_changes_the_digest(source: Path, change: str) -> None:
    before = await tree_digest(source)
    subprocess.run(["bash", "-ec", change], cwd=source, check=True)  # noqa: ASYNC221
    assert await tree_digest(source) != before


async def test_names_and_contents_cannot_be_moved_into_each_other(tmp_path: Path) -> None:
    digests = set()
    for number, files in enumerate([{"a": "b", "c": ""}, {"a": "", "c": "b"}, {"ab": "", "c": ""}, {"a": "b\0c"}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        digests.add(await tree_digest(folder))
    assert len(digests) == 4


async def test_no_link_is_followed(source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    (source / "folder").symlink_to(outside)
    (source / "file").symlink_to(outside / "secret")
    (source / "loop").symlink_to(".")
    (source / "dangling").symlink_to("nowhere")
    done = await copied(source, tmp_path / "copy")
    assert done.files == 10
    assert {p.name for p in (tmp_path / "copy").iterdir() if p.is_symlink()} == {"folder", "file", "loop", "dangling"}
    (outside / "secret").write_text("changed")
    assert await tree_digest(source) == done.digest
    link = tmp_path / "link"
    link.symlink_to(source)
    with pytest.raises(VerificationError, match="link"):
        await copied(link, tmp_path / "other")


async def test_pipes_and_sockets_are_skipped_and_named(source: Path, tmp_path: Path) -> None:
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(source / "a" / "sock"))
        done = await asyncio.wait_for(copied(source, tmp_path / "copy"), 20)
    assert sorted(done.skipped) == ["a/sock", "pipe"]
    assert not (tmp_path / "copy" / "pipe").exists()
    assert await tree_digest(tmp_path / "copy") == done.digest


async def test_hard_links_become_files_of_their_own(source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    os.link(outside, source / "linked")
    await copied(source, tmp_path / "copy")
    (tmp_path / "copy" / "linked").write_text("changed")
    assert outside.read_text() == "kept"


async def test_weird_names_are_copied(source: Path, tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", b"-rf", "schön".encode(), b"\x1b[31m"):
        Path(os.fsdecode(os.path.join(os.fsencode(source), name))).write_bytes(name)
    os.mkfifo(os.path.join(os.fsencode(source), b"pipe\xff"))
    done = await copied(source, tmp_path / "copy")
    assert await tree_digest(tmp_path / "copy") == done.digest
    assert done.skipped == ("pipe\\udcff",)
    done.skipped[0].encode()


async def test_too_much_is_refused_before_it_is_read(source: Path, tmp_path: Path) -> None:
    (source / "sparse").touch()
    os.truncate(source / "sparse", 1 << 40)
    with pytest.raises(VerificationError, match=r"larger than 1048576 bytes.*sparse"):
        await asyncio.wait_for(copy_tree(source, tmp_path / "copy", max_bytes=1 << 20, max_files=100), 20)
    os.unlink(source / "sparse")
    with pytest.raises(VerificationError, match="more than 5 files"):
        await copy_tree(source, tmp_path / "copy2", max_bytes=1 << 20, max_files=5)
    await copy_tree(source, tmp_path / "copy3", max_bytes=17, max_files=6)
    with pytest.raises(VerificationError, match="larger than 16 bytes"):
        await copy_tree(source, tmp_path / "copy4", max_bytes=16, max_files=6)


async def test_a_bottomless_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    script = "import os\nfor _ in range(%d):\n os.mkdir('d'); os.chdir('d')"
    subprocess.run(["python3", "-c", script % (MAX_DEPTH * 2)], cwd=folder, check=True)  # noqa: ASYNC221
    with pytest.raises(VerificationError, match="nested deeper"):
        await copied(folder, tmp_path / "copy")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_what_cannot_be_read_is_said(source: Path, tmp_path: Path) -> None:
    (source / "tool").chmod(0)
    with pytest.raises(VerificationError, match="`tool` cannot be copied"):
        await copied(source, tmp_path / "copy")


async def test_a_missing_folder_and_a_used_target_are_said(source: Path, tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="No such file"):
        await copied(tmp_path / "missing", tmp_path / "copy")
    with pytest.raises(VerificationError, match="not empty"):
        await copied(source, source / "a")


async def test_a_read_only_folder_is_copied_and_can_be_removed(source: Path, tmp_path: Path) -> None:
    (source / "a").chmod(0o555)
    await copied(source, tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy" / "a").stat().st_mode) == 0o755


def test_names_for_people() -> None:
    assert plain_name("a\udcff\x1b[31mb\n" + "x" * 400).startswith("a\\udcffb\\n")
    assert len(plain_name("x" * 999)) == 300
