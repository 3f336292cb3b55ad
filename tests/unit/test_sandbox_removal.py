"""Removing what an agent left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from operator_core.sandbox import removal
from operator_core.sandbox.removal import remove_tree


def test_a_tree_of_any_depth_goes(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.getcwd()
    os.chdir(top)
    try:
        for _ in range(5000):
            os.mkdir("d")
            os.chdir("d")
        Path("file").write_text("x")
    finally:
        os.chdir(here)
    remove_tree(top)
    assert not top.exists()


def test_rights_links_and_odd_files_do_not_hold_it_up(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").write_text("x")
    (top / "a" / "link").symlink_to(outside)
    (top / "dangling").symlink_to("nowhere")
    os.mkfifo(top / "a" / "pipe")
    (top / "a" / "b").chmod(0)
    (top / "a").chmod(0o100)
    remove_tree(top)
    assert not top.exists()
    assert (outside / "kept").exists()


def test_a_link_goes_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "never there")
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_a_link_put_in_the_place_of_a_folder_keeps_its_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking and opening, somebody who is still running may swap them."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    top = tmp_path / "top"
    top.mkdir()
    (top / "a").symlink_to(outside)
    monkeypatch.setattr(removal, "_is_folder", lambda parent, name: True)
    parent = os.open(top, os.O_RDONLY)
    try:
        assert removal._open(parent, "a") is None
    finally:
        os.close(parent)
    assert outside.stat().st_mode & 0o777 == 0o755
