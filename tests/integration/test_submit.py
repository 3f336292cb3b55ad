"""What is submitted is checked, frozen and stored as a whole, or refused with one sentence and nothing is stored."""

from __future__ import annotations

import os
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.ledger import ticket_history
from operator_core.errors import ConfigError
from operator_core.model.task import MAX_PROMPT, TaskSpec
from operator_core.model.ticket import Ticket
from operator_core.redaction import Redactor
from operator_core.work.repository import packing
from operator_core.work.repository.packing import pack_folder
from operator_core.work.submit import submit_task
from tests.support.store import column_of

SECRET = "correct-horse-battery"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with two commits, a tag, a branch and a sub-folder."""
    folder = tmp_path / "repo"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "sub" / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    git(folder, "tag", "-am", "first", "v1")
    git(folder, "branch", "old")
    (folder / "sub" / "a.txt").write_text("two\n")
    git(folder, "commit", "-qam", "two")
    return folder


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Database]:
    async with Database.open(tmp_path / "store" / "operator.db", redactor=Redactor([SECRET])) as database:
        yield database


async def submit(store: Database, prompt: str = "Do it.", **values: Any) -> tuple[Ticket, TaskSpec, list[str]]:
    warnings: list[str] = []
    ticket = await submit_task(store, Settings(), prompt, warn=warnings.append, **values)
    return ticket, TaskSpec.model_validate(ticket.check_spec), warnings


async def refused(store: Database, prompt: str = "Do it.", **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        await submit(store, prompt, **values)
    text = str(caught.value)
    assert "\n" not in text
    assert "\x1b" not in text
    assert await column_of(store.name, "SELECT count(*) FROM tickets") == [0], "nothing is stored"
    return text


async def blob(store: Database, digest: str) -> bytes:
    return b"".join([chunk async for chunk in AuditLogDB(store).read_blob(digest)])


async def test_the_ticket_of_a_task(store: Database) -> None:
    ticket, spec, warnings = await submit(
        store, "\n  Make it fast \x1b[31m\nand small.", checks=["pytest -q"] * 2, priority=3, pinned_to="alpha",
        engine="claude-code", model="m", budget_usd=2.5, max_iterations=3, profile="operator", network="host",
        allow_change=["./tests//a.py"],
    )  # fmt: skip
    assert (ticket.kind, ticket.severity, ticket.status, ticket.priority) == ("task", "info", "open", 3)
    assert (ticket.invariant_name, ticket.pinned_to) == ("Make it fast", "alpha")
    assert ticket.message == spec.prompt == "\n  Make it fast \x1b[31m\nand small."
    assert ticket.violation_key.startswith("task:")
    assert len(bytes.fromhex(ticket.violation_key.removeprefix("task:"))) == 16
    assert ticket.check_hash == spec.digest
    assert [c.command for c in spec.checks] == ["pytest -q"]
    assert (spec.engine, spec.model, spec.budget_usd, spec.max_iterations) == ("claude-code", "m", 2.5, 3)
    assert (spec.profile, spec.network, spec.allow_change) == ("operator", "host", ("tests/a.py",))
    (opened,) = await ticket_history(store, ticket.id or 0)
    assert (opened.body["new"], opened.body["check_hash"]) == ("open", spec.digest)
    assert warnings == []
    _, plain, _ = await submit(store)
    assert (plain.source.kind, plain.engine, plain.max_iterations, plain.budget_usd) == ("none", "anthropic", 10, None)


async def test_names_are_harmless_and_short(store: Database) -> None:
    for name, wanted in (
        ("x" * 300, "x" * 79 + "…"),
        ("\x1b]0;owned\x07\u202ename", "name"),
        ("\u202e", "task"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("a\tb\nc", "a b"),
        ("a\0b", "a�b"),
    ):
        ticket, spec, _ = await submit(store, name=name)
        assert ticket.invariant_name == spec.name == wanted


async def test_secrets_are_masked_in_words_and_refused_elsewhere(store: Database) -> None:
    assert "password" in await refused(store, repo=f"https://me:{SECRET}@example.org/x.git")
    assert "looks like a secret" in await refused(store, checks=[f"curl -fH 'Authorization: {SECRET}' http://x"])
    ticket, spec, warnings = await submit(store, f"Use {SECRET} now.")
    assert ticket.message == spec.prompt == "Use [REDACTED] now."
    assert ticket.invariant_name == "Use [REDACTED] now."
    assert warnings == ["Something in the prompt looks like a secret and was masked."]
    assert SECRET.encode() not in b"".join(p.read_bytes() for p in Path(store.name).parent.glob("operator.db*"))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"prompt": " \n"}, "must say"),
        ({"prompt": "x" * (MAX_PROMPT + 1)}, "100001"),
        ({"checks": ["true"]}, "`true` cannot fail"),
        ({"checks": ["pytest || true"]}, "cannot fail"),
        ({"checks": [" "]}, "must be a command"),
        ({"checks": ["x" * 20_001]}, "script"),
        ({"checks": ["a\0b"]}, "no text"),
        ({"checks": ["a\udcffb"]}, "no text"),
        ({"engine": "gpt"}, "anthropic or claude-code"),
        ({"profile": "x\x1b[2J"}, "shraga or operator"),
        ({"network": "all"}, "none or allowlist or host"),
        ({"network": "allowlist"}, "at least one that"),
        ({"allow_hosts": ["example.org"]}, "`allowlist` only"),
        ({"network": "allowlist", "allow_hosts": ["https://example.org"]}, "scheme"),
        ({"budget_usd": 0.0}, "greater than 0"),
        ({"budget_usd": float("inf")}, "greater than 0"),
        ({"budget_usd": float("nan")}, "greater than 0"),
        ({"max_iterations": 0}, "from 1 to 10"),
        ({"max_iterations": 11}, "from 1 to 10"),
        ({"model": " "}, "model"),
        ({"pinned_to": ""}, "worker"),
        ({"pinned_to": "a\nb"}, "worker"),
        ({"priority": 2**31}, "priority"),
        ({"allow_change": ["../x"]}, "relative"),
        ({"allow_change": ["/etc/x"]}, "relative"),
        ({"allow_change": ["."]}, "relative"),
        ({"ref": "main"}, "name the repository too"),
        ({"repo": ""}, "neither a folder"),
        ({"repo": "--upload-pack=touch x"}, "neither a folder"),
        ({"repo": "ext::sh -c true"}, "neither a folder"),
        ({"repo": "fd::3"}, "neither a folder"),
        ({"repo": "git://127.0.0.1/x"}, "https://"),
        ({"repo": "ssh://-oProxyCommand=true/x"}, "https://"),
        ({"repo": "/nonexistent/x"}, "no folder"),
        ({"repo": "/etc/passwd"}, "no folder"),
        ({"repo": "file:///nonexistent/x"}, "cannot be reached"),
        ({"repo": "a\udcff"}, "neither a folder"),
        ({"check_files": [""]}, "check file"),
        ({"check_files": ["/nonexistent"]}, "check file"),
        ({"check_files": ["/dev/zero"]}, "no plain file"),
        ({"check_files": ["/etc"]}, "plain file"),
        ({"check_files": ["/etc/passwd=../x"]}, "relative"),
        ({"check_files": ["/etc/passwd=.git/hooks/x"]}, "another place"),
        ({"check_files": ["/etc/passwd=a", "/etc/group=a"]}, "Two check files"),
        ({"check_files": ["/etc/passwd=a", "/etc/group=a/b"]}, "folder of check files"),
    ],
)
async def test_what_is_refused(store: Database, values: dict[str, Any], word: str) -> None:
    assert word in await refused(store, **values)


async def test_a_repository_is_the_commit_that_it_was(store: Database, repo: Path) -> None:
    head, first = git(repo, "rev-parse", "HEAD"), git(repo, "rev-parse", "HEAD~1")
    _, spec, warnings = await submit(store, repo=str(repo))
    assert spec.source.model_dump() == {
        "kind": "git", "location": str(repo), "ref": None, "commit": head, "blob": None
    }  # fmt: skip
    assert warnings == []
    (repo / "sub" / "a.txt").write_text("three\n")
    (repo / "new.txt").write_text("new\n")
    for ref in ("v1", "old", "HEAD~1", first[:10]):
        _, spec, warnings = await submit(store, repo=repo, ref=ref)
        assert (spec.source.ref, spec.source.commit) == (ref, first)
        assert warnings == [f"2 uncommitted change(s) in {repo} are not part of the task; commit what should be."]
    for given, wanted in ((None, head), ("v1", first), ("old", first), (first, first)):
        _, spec, _ = await submit(store, repo=f"file://{repo}", ref=given)
        assert (spec.source.location, spec.source.ref, spec.source.commit) == (f"file://{repo}", given, wanted)
    link = repo.parent / "link"
    link.symlink_to(repo)
    _, spec, _ = await submit(store, repo=link)
    assert (spec.source.kind, spec.source.location) == ("git", str(repo))


async def test_a_bare_and_an_empty_repository(store: Database, repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    _, spec, _ = await submit(store, repo=tmp_path / "bare.git")
    assert (spec.source.kind, spec.source.commit) == ("git", git(repo, "rev-parse", "HEAD"))
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    _, spec, _ = await submit(store, repo=tmp_path / "empty")
    assert (spec.source.kind, spec.source.commit) == ("git", None)


async def test_references_that_name_nothing(store: Database, repo: Path) -> None:
    assert "cannot be used" in await refused(store, repo=repo / ".git")
    for ref in ("nope", "-x", "", "v1:sub/a.txt", "HEAD --all", "\x1b[2J", "v1\n", "a\udcff"):
        for place in (repo, f"file://{repo}"):
            said = await refused(store, repo=place, ref=ref)
            assert "name another" in said
            assert "--" not in said.replace(repr(ref), ""), "a browser has no options of a command line"
    assert "leave the branch, tag or commit out" in await refused(store, repo=repo / "sub", ref="v1")


async def test_git_obeys_neither_the_environment_nor_the_repository(
    store: Database, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = tmp_path / "touched"
    git(repo, "config", "core.fsmonitor", f"touch {touched}; false")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    _, spec, _ = await submit(store, repo=repo)
    assert spec.source.kind == "git"
    assert not touched.exists()


# ---- folders


async def test_a_folder_is_copied_even_inside_of_a_repository(store: Database, repo: Path) -> None:
    folder = repo / "sub"
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o700)
    (folder / "here").symlink_to("a.txt")
    _, spec, warnings = await submit(store, repo=folder, check_files=[str(folder / "run")])
    assert (spec.source.kind, spec.source.location, warnings) == ("folder", str(folder), [])
    assert [(f.path, f.executable) for f in spec.check_files] == [("run", True)], "where it is in the folder"
    archive = repo.parent / "archive.tar"
    archive.write_bytes(await blob(store, spec.source.blob or ""))
    with tarfile.open(archive) as tar:
        seen = [(m.name, m.type, oct(m.mode), m.linkname, m.uid, m.uname, m.mtime) for m in tar]
    assert seen == [
        ("a.txt", tarfile.REGTYPE, "0o644", "", 0, "", 0),
        ("here", tarfile.SYMTYPE, "0o777", "a.txt", 0, "", 0),
        ("run", tarfile.REGTYPE, "0o755", "", 0, "", 0),
    ]


async def test_the_same_folder_is_the_same_blob(store: Database, tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        folder = tmp_path / f"copy-{number}"
        for name in ("z", "a", "ü" * 60, "deep/er/x")[:: 1 - 2 * number]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        (folder / os.fsdecode(b"latin-\xfc")).write_text("x")
        (folder / ".git").mkdir()
        (folder / ".git" / str(number)).write_text("not part of it")
        os.utime(folder / "a", (number, number))
        (folder / "a").chmod(0o600 + 0o044 * number)
        # An unfinished repository is none, so this is a folder.
        digests.add((await submit(store, repo=folder))[1].source.blob)
    assert len(digests) == 1


async def test_what_cannot_be_part_of_a_folder(
    store: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    assert "pipe is neither a file" in await refused(store, repo=folder)
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        assert "socket is neither a file" in await refused(store, repo=folder)
    (folder / "socket").unlink()
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", packing.MAX_FOLDER_BYTES + 1)
    assert "larger than 200 MB" in await refused(store, repo=folder)
    os.truncate(folder / "sparse", 0)
    for number in range(30):
        (folder / f"empty-{number}").touch()
    with pytest.raises(ConfigError, match="larger than"):
        pack_folder(folder, tmp_path / "x.tar", most=10_000)  # entries count too
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../store")
    (folder / "in").symlink_to("./x/../sparse")
    _, spec, warnings = await submit(store, repo=folder)
    assert warnings == [f"2 link(s) in {folder} lead out of it and are not part of the task, the first is 'out'."]
    assert b"passwd" not in await blob(store, spec.source.blob or "")


async def test_the_platform_s_own_files_are_no_part_of_a_folder(store: Database) -> None:
    folder = Path(store.name).parent
    (folder / "mine.txt").write_text("x")
    (folder / "Operator Sessions").mkdir()
    (folder / "Operator Sessions" / "other").write_text("of another session")
    (folder / "operator.db.d").mkdir()
    (folder / "operator.db.d" / "place").write_text("x")
    _, spec, _ = await submit(store, repo=folder)
    archive = folder.parent / "archive.tar"
    archive.write_bytes(await blob(store, spec.source.blob or ""))
    with tarfile.open(archive) as tar:
        assert tar.getnames() == ["mine.txt"]


# ---- check files


async def test_check_files_are_kept_as_they_are_now(
    store: Database, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checks").mkdir()
    for name in ("checks/a.py", "checks/b=c.py", "checks/d.py"):
        (tmp_path / name).write_text(name)
    (repo / "sub" / "check.sh").write_text("exit 1")
    monkeypatch.chdir(tmp_path)
    files = ["checks/a.py", "checks/b=c.py", "checks/d.py=tests/d.py", str(tmp_path / "checks/d.py")]
    _, spec, _ = await submit(store, repo=repo, check_files=[*files, "repo/sub/check.sh"])
    assert [f.path for f in spec.check_files] == [
        "checks/a.py", "checks/b=c.py", "tests/d.py", "d.py", "sub/check.sh"
    ]  # fmt: skip
    (tmp_path / "checks" / "a.py").write_text("changed")
    assert await blob(store, spec.check_files[0].sha256) == b"checks/a.py"
    (tmp_path / "link").symlink_to("checks/a.py")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 10_000_001)
    for name, word in (("link", "it is a link"), ("large", "larger than 10 MB")):
        with pytest.raises(ConfigError, match=word):
            await submit(store, check_files=[name])


async def test_what_a_task_was_submitted_with_survives_retention(store: Database, tmp_path: Path) -> None:
    from datetime import timedelta

    from operator_core.db.retention import prune
    from operator_core.model.entry import Draft
    from tests.support.store import finish, start_work

    (tmp_path / "check").write_text("the check")
    folder = tmp_path / "folder"
    folder.mkdir()
    work = await start_work(store)
    _, spec, _ = await submit(store, repo=folder, check_files=[f"{tmp_path}/check=check"])
    digests = [spec.check_files[0].sha256, spec.source.blob or ""]
    (tmp_path / "output").write_text("a large output")
    output = await work.audit.store_blob(tmp_path / "output")
    meta = {"a_blob": digests[0], "b_blob": digests[1], "c_blob": output}
    await work.journal.append(Draft("note", "it mentions them", meta=meta))
    await finish(work)
    done = await prune(store, older_than=timedelta(), keep=None, state_dir=tmp_path / "state")
    assert (len(done.sessions), done.blobs) == (1, 1)
    assert await blob(store, digests[0]) == b"the check"
    assert await blob(store, digests[1]) != b""
    assert await blob(store, output) == b""
