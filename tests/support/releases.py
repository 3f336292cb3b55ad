"""A remote repository with signed versions, its author's checkout, and one that follows it: for self-update."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operator_dataverse.settings import DataverseSettings
from operator_dataverse.update import Updater

__all__ = ["BROKEN", "World", "git", "world"]

GOOD = "print('usage')\n"
BROKEN = "raise SystemExit('the new version is broken')\n"


def git(folder: Path, *words: str, **env: str) -> str:
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    people = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", "-C", str(folder), *people, *words], env={**clean, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class World(NamedTuple):
    """A remote, the checkout of its author, and the one that follows."""

    author: Path
    here: Path
    key: Path
    signers: Path
    said: list[str]

    def release(
        self, version: str | None, code: str = GOOD, *, signed: bool = True, tag: str = "", **files: str
    ) -> str:
        for name in ("operator_core", "operator_dataverse"):
            package = self.author / "packages" / "all" / "src" / name
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").write_text("")
            (package / "__main__.py").write_text(code)
        if version is None:
            (self.author / "VERSION").unlink()
        else:
            (self.author / "VERSION").write_text(f"{version}\n")
        for name, text in files.items():
            (self.author / name).write_text(text)
        git(self.author, "add", "-A")
        key = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={self.key}")
        git(self.author, *key, "commit", "-q", "-m", f"Version {version}", *(["-S"] if signed and not tag else []))
        if tag:
            git(self.author, *key, "tag", "-s" if signed else "-a", "-m", tag, tag)
        git(self.author, "push", "-q", "--follow-tags", "origin", "HEAD:main")
        return git(self.author, "rev-parse", "HEAD")

    def updater(self, **values: Any) -> Updater:
        mine = {"update_branch": "origin/main", "update_signers": self.signers, "update_s": 1e-9, **values}
        return Updater(DataverseSettings(**mine), self.said.append, self.here)

    @property
    def version(self) -> str:
        return (self.here / "VERSION").read_text().strip()

    @property
    def head(self) -> str:
        return git(self.here, "rev-parse", "HEAD")


@pytest.fixture
def world(tmp_path: Path) -> World:
    key = tmp_path / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, stdin=subprocess.DEVNULL
    )
    signers = tmp_path / "signers"
    signers.write_text(f"ann@example.com {key.with_suffix('.pub').read_text()}")
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(tmp_path / "remote.git")], check=True)
    for name in ("author", "here"):
        (tmp_path / name).mkdir()
    author, here = tmp_path / "author", tmp_path / "here"
    git(author, "init", "-q", "-b", "main")
    git(author, "remote", "add", "origin", str(tmp_path / "remote.git"))
    made = World(author, here, key, signers, [])
    made.release("1.0")
    git(tmp_path, "clone", "-q", str(tmp_path / "remote.git"), str(here))
    return made
