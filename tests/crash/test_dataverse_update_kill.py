"""Self-update, killed at each of its steps: the next start finishes it, or what was there before is back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_dataverse.client import StaticToken
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.source import DataverseSource
from operator_dataverse.update.checkout import Checkout, Record
from tests.support.processes import operator_environment
from tests.support.releases import BROKEN, World, git, world

__all__ = ["world"]

_PROCESS = """
import asyncio, sys
from pathlib import Path
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.update import Updater

here, signers, install = sys.argv[1:]
mine = DataverseSettings(
    update_branch="origin/main", update_signers=signers, update_s=1e-9, update_install=install or None
)

async def main():
    print(await Updater(mine, print, Path(here)).maybe(idle=True))

asyncio.run(main())
"""
_INSTALL = "#!/bin/sh\ncat VERSION >>../installed\nif test -e ../refuse; then ! grep -q 1.1 VERSION; fi\n"


def run(world: World, install: str, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    env = operator_environment({"OPERATOR_CRASH_AT": crash_at})
    argv = [sys.executable, "-c", _PROCESS, str(world.here), str(world.signers), install]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


def script(world: World) -> str:
    path = world.here.parent / "install"
    path.write_text(_INSTALL)
    path.chmod(0o755)
    return str(path)


def installed(world: World) -> str:
    path = world.here.parent / "installed"
    return path.read_text().split()[-1] if path.exists() else world.version


async def record(world: World) -> Record:
    return await (await Checkout.find("origin/main", world.here)).record()


def at_rest(world: World) -> bool:
    """Nothing half done: what is checked out is what is installed, and nothing else is left."""
    left = asyncio.run(record(world))
    assert git(world.here, "status", "--porcelain") == ""
    assert git(world.here, "worktree", "list", "--porcelain").count("worktree ") == 1
    return not (left.taking or left.leaving) and installed(world) == world.version


@pytest.mark.parametrize(
    ("place", "first"),
    [
        ("update.begun", "1.0"),
        ("update.advanced", "1.1"),
        ("update.installed", "1.1"),
        ("update.tried", "1.1"),
        ("update.done", "1.1"),
    ],
)
def test_an_update_that_was_killed_is_ended_by_the_next_start(world: World, place: str, first: str) -> None:
    install, old = script(world), world.head
    new = world.release("1.1")
    assert run(world, install, place).returncode == -signal.SIGKILL
    assert world.version == first
    done = run(world, install)
    assert (done.returncode, done.stderr) == (0, "")
    assert (done.stdout.splitlines()[-1], world.version) == (str(place != "update.done"), first)
    assert at_rest(world)
    done = run(world, install)
    assert (world.version, world.head) == ("1.1", new)
    assert done.stdout.splitlines()[-1] == str(first == "1.0")
    assert at_rest(world)
    left = asyncio.run(record(world))
    assert (left.previous, left.failed, left.once) == (old, {}, {})


def test_a_process_that_was_killed_while_it_tried_a_copy_leaves_none(world: World) -> None:
    new = world.release("1.1")
    assert run(world, "", "update.staged").returncode == -signal.SIGKILL
    assert git(world.here, "worktree", "list", "--porcelain").count("worktree ") == 2
    assert run(world, "").stdout.splitlines()[-1] == "True"
    assert run(world, "").stdout.splitlines()[-1] == "True"
    assert world.head == new
    assert at_rest(world)


@pytest.mark.parametrize("place", ["update.advanced", "update.installed", "update.judged", "update.back"])
@pytest.mark.parametrize("code", ["broken", "refused"])
def test_a_bad_version_is_left_again_wherever_its_update_is_killed(world: World, place: str, code: str) -> None:
    install, old = script(world), world.head
    if code == "refused":
        (world.here.parent / "refuse").touch()
    bad = world.release("1.1", BROKEN if code == "broken" else "")
    killed = run(world, install, place).returncode == -signal.SIGKILL
    assert killed or (place, code) == ("update.installed", "refused")
    for _ in range(3):
        done = run(world, install)
        assert (done.returncode, done.stderr) == (0, "")
    assert (world.version, world.head) == ("1.0", old)
    assert list(asyncio.run(record(world)).failed) == [bad]
    assert at_rest(world)
    assert run(world, install).stdout.splitlines()[-1] == "False"


def half_merged(world: World) -> str:
    """As a `git merge` leaves it that was killed while it wrote the files; the commit that it was to become."""
    new = world.release("1.1")
    assert run(world, script(world), "update.begun").returncode == -signal.SIGKILL
    (world.here / "VERSION").write_text("1.1\n")
    dot = world.here / ".git"
    for name in ("index.lock", "HEAD.lock", "refs/heads/main.lock"):
        (dot / name).write_bytes(b"half")
    return new


def test_the_locks_of_a_git_that_was_killed_are_taken_away(world: World) -> None:
    old = world.head
    new = half_merged(world)
    done = run(world, script(world))
    assert "is undone" in done.stdout, done.stdout
    assert (world.version, world.head) == ("1.0", old)
    assert at_rest(world)
    assert run(world, script(world)).stdout.splitlines()[-1] == "True"
    assert world.head == new


def test_the_lock_of_somebody_who_works_there_stays(world: World) -> None:
    """An update can wait; what a person commits at this moment must not be broken."""
    half_merged(world)
    argv = ["git", "hash-object", "--stdin"]
    with subprocess.Popen(argv, cwd=world.here, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as person:
        done = run(world, script(world))
        assert "is under way, or was interrupted" in done.stdout
        assert (world.here / ".git" / "index.lock").exists()
        person.communicate(b"x")
    assert "is undone" in run(world, script(world)).stdout
    assert at_rest(world)


def test_a_checkout_that_somebody_changed_since_is_left_alone(world: World) -> None:
    install = script(world)
    world.release("1.1")
    later = world.release("1.2")
    git(world.author, "push", "-q", "-f", "origin", "HEAD~1:main")
    assert run(world, install, "update.advanced").returncode == -signal.SIGKILL
    git(world.here, "fetch", "-q", "origin")
    git(world.author, "push", "-q", "origin", f"{later}:main")
    git(world.here, "pull", "-q", "--ff-only", "origin", "main")
    assert "somebody has checked out" in run(world, install).stdout
    assert (world.head, asyncio.run(record(world)).taking) == (later, "")


async def test_a_worker_ends_an_interrupted_update_before_it_takes_work(world: World, tmp_path: Path) -> None:
    install = script(world)
    world.release("1.1")
    assert run(world, install, "update.advanced").returncode == -signal.SIGKILL
    said: list[str] = []
    # No service listens there: whoever asked it would be told so.
    mine = DataverseSettings(
        url="http://127.0.0.1:9", user="alice@example.com", update_branch="origin/main", update_install=install
    )
    async with Database.open(str(tmp_path / "a.db")) as database:
        source = DataverseSource(
            Settings(), mine, database, said.append, credential=StaticToken("x"), checkout=world.here
        )
        await source.start()
        assert await source.look() is False
        await asyncio.wait_for(source.run(asyncio.Event()), 10)
    assert len(said) == 1
    assert "is finished" in said[0]
    assert (await record(world)).taking == ""
    assert installed(world) == "1.1"
