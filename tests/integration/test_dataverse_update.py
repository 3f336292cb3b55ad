"""Self-update, on real repositories: what is taken, what never is, and how a bad version is left again (row B-064)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from operator_core.errors import ConfigError, OperatorError
from operator_dataverse.update.checkout import Checkout
from tests.support.releases import BROKEN, World, git, world

__all__ = ["world"]


async def test_a_signed_new_version_is_taken_once(world: World) -> None:
    assert await world.updater().maybe(idle=True) is False
    assert world.said == []
    commit = world.release("1.1")
    updater = world.updater()
    assert await updater.maybe(idle=False) is False
    assert world.version == "1.0"
    assert await updater.maybe(idle=True) is True
    assert (world.version, world.head) == ("1.1", commit)
    assert git(world.here, "status", "--porcelain") == ""
    assert git(world.here, "symbolic-ref", "--short", "HEAD") == "main"
    # The process that the supervisor starts next finds nothing to do, and so does the one after it.
    for _ in range(2):
        assert await world.updater().maybe(idle=True) is False
    assert len(world.said) == 1
    record = await (await Checkout.find("origin/main", world.here)).record()
    assert record.previous == git(world.author, "rev-parse", "HEAD~1")


async def test_not_before_its_time_and_never_without_a_branch(world: World) -> None:
    world.release("1.1")
    assert await world.updater(update_s=60).maybe(idle=True) is False
    assert await world.updater(update_branch=None).maybe(idle=True) is False
    assert world.version == "1.0"


async def test_what_is_compared_is_what_is_applied(world: World) -> None:
    """The checkout tracks one branch and follows another: the seed compared one and pulled the other, for ever."""
    git(world.author, "push", "-q", "origin", "HEAD:stable")
    world.release("1.1")
    updater = world.updater(update_branch="origin/stable")
    assert await updater.maybe(idle=True) is False
    assert world.version == "1.0"
    git(world.author, "push", "-q", "origin", "HEAD:stable")
    later = world.release("1.2")
    assert await updater.maybe(idle=True) is True
    assert world.version == "1.1"
    assert world.head != later
    assert await world.updater(update_branch="origin/stable").maybe(idle=True) is False


async def test_the_commit_that_was_looked_at_is_applied_whatever_comes_later(world: World) -> None:
    commit = world.release("1.1")
    updater = world.updater()
    look = await updater.look()
    world.release("1.2", signed=False)
    await (await updater.checkout()).fetch()
    await updater.apply(look)
    assert (world.version, world.head) == ("1.1", commit)
    with pytest.raises(OperatorError, match="look again"):
        await updater.apply(look)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: w.release("1.0", other="x"), "which is the one here"),
        (lambda w: w.release(None), "VERSION is missing in origin/main"),
        (lambda w: w.release("1.1", signed=False), "no trusted key has signed"),
        (lambda w: w.release("1.1", signed=False, tag="v1.1"), "no trusted key has signed"),
        (lambda w: (w.release("1.1"), w.signers.write_text("")), "no trusted key has signed"),
        (lambda w: (w.release("1.1"), (w.here / "VERSION").write_text("0.9\n")), "has changes of its own"),
        (lambda w: (w.release("1.1"), git(w.here, "commit", "-q", "--allow-empty", "-m", "x")), "does not follow on"),
        (lambda w: (git(w.author, "checkout", "-q", "--orphan", "x"), git(w.author, "push", "-q", "origin", ":main"),
                    w.release("1.1")), "does not follow on"),
    ],
)  # fmt: skip
async def test_what_is_never_taken(world: World, change: Callable[[World], object], why: str) -> None:
    git(world.author.parent / "remote.git", "config", "receive.denyDeleteCurrent", "ignore")
    change(world)
    before = world.head, world.version
    updater = world.updater()
    look = await updater.look()
    assert look.why_not is not None
    assert why in look.why_not
    assert await updater.maybe(idle=True) is False
    assert (world.head, world.version) == before
    with pytest.raises(OperatorError):
        await updater.apply(look)
    assert (world.head, world.version) == before


async def test_a_signed_tag_or_a_named_commit_is_trusted_too(world: World) -> None:
    tagged = world.release("1.1", tag="v1.1")
    assert await world.updater().maybe(idle=True) is True
    assert world.head == tagged
    named = world.release("1.2", signed=False)
    assert await world.updater(update_allowed=[named[:12]]).maybe(idle=True) is False
    assert await world.updater(update_allowed=[named]).maybe(idle=True) is True
    world.release("1.3", signed=False)
    assert await world.updater(update_signed=False).maybe(idle=True) is True
    assert world.version == "1.3"


async def test_a_signature_of_another_commit_is_worth_nothing(world: World) -> None:
    """A tag of the same name that the person has here, signed and of an old commit, is not the one that counts."""
    world.release("1.1", tag="v1")
    git(world.here, "fetch", "-q", "--tags")
    git(world.author, "push", "-q", "origin", ":refs/tags/v1")
    git(world.author, "tag", "-d", "v1")
    world.release("1.2", signed=False, tag="v1")
    assert "no trusted key" in str((await world.updater().look()).why_not)


@pytest.mark.parametrize("install", [None, "true"])
async def test_a_broken_version_is_left_again_and_never_tried_twice(world: World, install: str | None) -> None:
    old = world.head
    bad = world.release("1.1", BROKEN)
    updater = world.updater(update_install=install)
    assert await updater.maybe(idle=True) is False
    assert (world.head, world.version) == (old, "1.0")
    assert git(world.here, "status", "--porcelain") == ""
    assert git(world.here, "worktree", "list", "--porcelain").count("worktree ") == 1
    assert "the new version is broken" in world.said[-1]
    assert await updater.maybe(idle=True) is False
    assert "was tried and did not work" in world.said[-1]
    assert bad in (await (await updater.checkout()).record()).failed
    world.release("1.2")
    assert await world.updater(update_install=install).maybe(idle=True) is True
    assert world.version == "1.2"


async def test_an_installation_that_fails_is_undone(world: World) -> None:
    script = world.author.parent / "install"
    script.write_text('#!/bin/sh\necho "$(cat VERSION) $SECRET_TOKEN" >>../installed\ngrep -qv 1.1 VERSION\n')
    script.chmod(0o755)
    world.release("1.1")
    os.environ["SECRET_TOKEN"] = "hush"
    try:
        assert await world.updater(update_install=str(script)).maybe(idle=True) is False
    finally:
        del os.environ["SECRET_TOKEN"]
    assert world.version == "1.0"
    # The old version was installed again, and nothing of this process's environment was shown.
    assert (world.here.parent / "installed").read_text() == "1.1 \n1.0 \n"


async def test_nothing_of_the_repository_is_executed_by_git(world: World) -> None:
    mark = world.here.parent / "ran"
    for name in ("post-merge", "post-checkout", "reference-transaction"):
        hook = world.here / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
        hook.chmod(0o755)
    modules = f'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch% {mark}\n'
    world.release("1.1", **{".gitmodules": modules, ".gitattributes": "* filter=evil\n"})
    assert await world.updater().maybe(idle=True) is True
    assert not mark.exists()


async def test_two_processes_do_not_update_one_checkout_at_once(world: World) -> None:
    world.release("1.1")
    updater = world.updater()
    look = await updater.look()
    async with (await updater.checkout()).alone():
        with pytest.raises(OperatorError, match="Another process is updating"):
            await updater.apply(look)
    ends = await asyncio.gather(*(world.updater().apply(look) for _ in range(3)), return_exceptions=True)
    assert [end for end in ends if end is None] == [None]
    assert world.version == "1.1"


async def test_trouble_with_the_remote_is_said_once_and_ends_nothing(world: World) -> None:
    shutil.rmtree(world.here.parent / "remote.git")
    updater = world.updater()
    for _ in range(2):
        assert await updater.maybe(idle=True) is False
    assert len(world.said) == 1
    with pytest.raises(ConfigError, match="must be a remote branch such as"):
        await Checkout.find("main", world.here)
    with pytest.raises(ConfigError, match="is in no git checkout"):
        await Checkout.find("origin/main", world.here.parent)


def test_the_version_file_is_the_version_of_the_packages() -> None:
    import operator_core
    import operator_dataverse

    root = Path(__file__).parents[2]
    version = (root / "VERSION").read_text().strip()
    assert (operator_core.__version__, operator_dataverse.__version__) == (version, version)
    for project in root.glob("packages/*/pyproject.toml"):
        assert f'\nversion = "{version}"\n' in project.read_text()


@pytest.mark.deep
def test_the_command_says_what_it_sees_and_does(world: World) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        # The program's own checkout is the one that is followed, so the sources are put into it.
        code = (
            "import sys; from pathlib import Path; import operator_dataverse.update.checkout as c; "
            f"c.operator_dataverse.__file__ = {str(world.here / 'x.py')!r}; "
            "from operator_dataverse.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        env = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            "UPDATE_BRANCH": "origin/main",
            "OPERATOR_DATAVERSE__UPDATE_SIGNERS": str(world.signers),
        }
        argv = [sys.executable, "-c", code, "update", *words]
        return subprocess.run(argv, env=env, cwd=world.here.parent, capture_output=True, text=True, check=False)

    assert call("check").returncode == 3
    commit = world.release("1.1")
    done = call("check")
    assert (done.returncode, done.stdout.strip()) == (0, f"Version 1.1 ({commit[:12]}) can be taken.")
    assert call("apply", "--dry-run").returncode == 0
    assert world.version == "1.0"
    assert "is in place" in call("apply").stdout
    assert world.version == "1.1"
    assert "has version 1.1" in call("status").stdout


async def test_an_install_command_that_is_none_is_said_and_ends_nothing(world: World) -> None:
    world.release("1.1")
    assert await world.updater(update_install="sh -c 'true").maybe(idle=True) is False
    assert "update_install" in world.said[0]
    assert world.version == "1.0"
    assert await world.updater(update_install="true").maybe(idle=True) is True


async def test_a_version_that_could_not_be_installed_is_tried_once_more_and_then_only_by_hand(world: World) -> None:
    commit = world.release("1.1")
    install = "sh -c 'echo no network >&2; exit 1'"
    assert await world.updater(update_install=install).maybe(idle=True) is False
    record = await (await Checkout.find("origin/main", world.here)).record()
    assert (list(record.once), record.failed, record.taking) == ([commit], {}, "")
    assert any("could not be installed again" in line for line in world.said)
    assert "tried once more later" in world.said[-1]
    assert await world.updater(update_install=install).maybe(idle=True) is False
    record = await (await Checkout.find("origin/main", world.here)).record()
    assert list(record.failed) == [commit]
    assert world.version == "1.0"
    assert await world.updater(update_install="true").maybe(idle=True) is False
    assert "apply --again" in world.said[-1]
    await world.updater().try_again()
    assert await world.updater(update_install="true").maybe(idle=True) is True
    assert world.version == "1.1"
    record = await (await Checkout.find("origin/main", world.here)).record()
    assert (record.failed, record.once) == ({}, {})


async def test_what_a_person_changes_while_a_version_fails_is_kept(world: World) -> None:
    (world.author / "notes.txt").write_text("a\n")
    world.release("1.1")
    assert await world.updater().maybe(idle=True) is True
    world.release("1.2")
    command = "sh -c 'test -e .git/once || echo mine >> notes.txt; touch .git/once; exit 1'"
    assert await world.updater(update_install=command).maybe(idle=True) is False
    assert world.version == "1.1"
    assert "+mine" in git(world.here, "stash", "show", "-p")
    assert any("git stash" in line for line in world.said)
