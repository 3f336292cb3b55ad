"""Workspaces and their results: real git, real sandboxes, and repositories that an agent has prepared for us."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.db.audit_log import AuditLogDB
from operator_core.errors import SourceError, VerificationError
from operator_core.model.task import CheckFile, Source, TaskSpec
from operator_core.sandbox import ExecResult, Policy, open_sandbox
from operator_core.work.repository.delivery import Committed, commit_result
from operator_core.work.repository.source import Prepared, export_base, export_check_files, prepare_workspace

BRANCH = "operator/Fix-it_0123abcd"


def git(folder: Path, *arguments: str, **environment: str) -> str:
    """Plain git, as a person would use it who has no configuration."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
        **environment,
    }
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits on ``main`` with a test, an attribute that archives would obey, and a link."""
    folder = tmp_path / "a repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text("def test_it(): assert False\n")
    (folder / ".gitattributes").write_text("tests export-ignore\n")
    (folder / "code.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("code.py")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    (folder / "code.py").write_text("x = 2\n")
    git(folder, "commit", "-q", "-am", "two")
    return folder


@pytest.fixture
async def audit(tmp_path: Path) -> AsyncIterator[AuditLogDB]:
    async with AuditLogDB(tmp_path / "store" / "operator.db") as audit:
        yield audit


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "attempt-1").mkdir()
    return tmp_path / "attempt-1" / "workspace"


def _spec(source: Source | None = None, **values: Any) -> TaskSpec:
    return TaskSpec(name="Fix it", prompt="fix it", source=source or Source(), **values)


def _git_spec(repository: Path, commit: str | None = None, **values: Any) -> TaskSpec:
    commit = commit or git(repository, "rev-parse", "HEAD")
    return _spec(Source(kind="git", location=str(repository), commit=commit), **values)


async def _blob(audit: AuditLogDB, data: bytes, tmp_path: Path) -> str:
    path = tmp_path / "blob"
    path.write_bytes(data)
    return await audit.store_blob(path)


def _files(folder: Path) -> dict[str, str]:
    """Path -> content (or target of a link) of everything but the repository."""
    return {
        str(path.relative_to(folder)): f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if ".git" not in path.relative_to(folder).parts and (path.is_symlink() or path.is_file())
    }


# ---- prepare


async def test_a_clone_is_on_its_branch_and_cannot_push(repository: Path, workspace: Path, audit: AuditLogDB) -> None:
    first = git(repository, "rev-parse", "HEAD~1")
    prepared = await prepare_workspace(_git_spec(repository, first), workspace, branch=BRANCH, audit=audit)
    assert prepared.commit == first
    assert git(workspace, "symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    assert git(workspace, "status", "--porcelain") == ""
    assert (workspace / "code.py").read_text() == "x = 1\n"
    assert git(workspace, "remote") == ""
    assert str(repository) not in (workspace / ".git" / "config").read_text()
    assert not list(workspace.parent.glob(".*.partial"))
    assert (workspace / ".git" / "hooks").is_dir()
    inodes = {p.stat().st_ino for p in (repository / ".git" / "objects").rglob("*") if p.is_file()}
    assert not any(p.stat().st_ino in inodes for p in workspace.rglob("*") if p.is_file())


async def test_preparing_again_keeps_the_work(repository: Path, workspace: Path, audit: AuditLogDB) -> None:
    spec = _git_spec(repository)
    first = await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit)
    (workspace / "code.py").write_text("x = 3\n")
    assert await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit) == first
    assert (workspace / "code.py").read_text() == "x = 3\n"


async def test_what_a_crash_left_is_not_taken_for_a_workspace(
    repository: Path, workspace: Path, audit: AuditLogDB
) -> None:
    half = workspace.parent / ".workspace-deadbeef.partial"
    half.mkdir()
    (half / "half").write_text("half")
    (workspace.parent / ".workspace.json").write_text('{"commit": "x", "note": "a lie"}')
    workspace.mkdir()
    prepared = await prepare_workspace(_git_spec(repository), workspace, branch=BRANCH, audit=audit)
    assert prepared.commit == git(repository, "rev-parse", "HEAD")
    assert not half.exists()
    assert not (workspace / "half").exists()


async def test_a_commit_of_no_branch_is_found(repository: Path, workspace: Path, audit: AuditLogDB) -> None:
    commit = git(repository, "commit-tree", "-m", "loose", "HEAD^{tree}")
    prepared = await prepare_workspace(_git_spec(repository, commit), workspace, branch=BRANCH, audit=audit)
    assert prepared.commit == commit


async def test_an_empty_repository_can_be_worked_in(tmp_path: Path, workspace: Path, audit: AuditLogDB) -> None:
    git(tmp_path, "init", "-q", "empty")
    spec = _spec(Source(kind="git", location=str(tmp_path / "empty")))
    prepared = await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit)
    assert prepared.commit == git(workspace, "rev-parse", BRANCH)


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("/no/such/repository", "There is no repository /no/such/repository on this machine"),
        ("ext::sh -c touch% {ran}", "not allowed"),
        ("relative/path", "relative path"),
        ("--upload-pack=touch {ran}", "relative path"),
        ("{folder}", "does not appear to be a git repository|does not exist|not a git repository"),
        ("https://user:geheimnis99@127.0.0.1:1/x.git", "cannot be cloned on this machine"),
    ],
)
async def test_a_source_that_is_not_there_is_one_sentence(
    tmp_path: Path, workspace: Path, audit: AuditLogDB, location: str, why: str
) -> None:
    (tmp_path / "folder").mkdir()
    ran = tmp_path / "ran"
    spec = _spec(Source(kind="git", location=location.format(ran=ran, folder=tmp_path / "folder"), commit="a" * 40))
    with pytest.raises(SourceError, match=why) as caught:
        await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit)
    assert "\n" not in str(caught.value)
    assert "geheimnis99" not in str(caught.value)
    assert not ran.exists()
    assert os.listdir(workspace.parent) == []


async def test_a_commit_that_is_gone_is_one_sentence(repository: Path, workspace: Path, audit: AuditLogDB) -> None:
    with pytest.raises(SourceError, match="it no longer has the commit aaaaaaaaaaaa"):
        await prepare_workspace(_git_spec(repository, "a" * 40), workspace, branch=BRANCH, audit=audit)
    assert not workspace.exists()


async def test_nothing_of_this_user_or_the_source_runs(
    repository: Path, workspace: Path, audit: AuditLogDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks, filters and helpers in the source, in the user's own configuration and in the environment."""
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    template = tmp_path / "template" / "hooks"
    template.mkdir(parents=True)
    for hook in ("post-checkout", "pre-commit", "reference-transaction", "post-commit"):
        shutil.copy(program, template / hook)
        shutil.copy(program, repository / ".git" / "hooks" / hook)
    (repository / ".gitattributes").write_text("* filter=evil\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "--no-verify", "-m", "attributes", "--no-gpg-sign")
    ran.unlink(missing_ok=True)
    settings = f'[core]\n hooksPath = {template}\n fsmonitor = {program}\n[filter "evil"]\n smudge = {program}\n'
    settings += (
        f" clean = {program}\n[init]\n templateDir = {template.parent}\n[uploadpack]\n packObjectsHook = {program}\n"
    )
    with (repository / ".git" / "config").open("a") as file:
        file.write(settings)
    head = (repository / ".git" / "refs" / "heads" / "main").read_text().strip()
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(settings)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(template.parent))
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    await prepare_workspace(_git_spec(repository, head), workspace, branch=BRANCH, audit=audit)
    assert (workspace / "code.py").read_text() == "x = 2\n"
    assert not ran.exists()
    assert os.listdir(workspace / ".git" / "hooks") == []


async def test_no_source_is_an_empty_repository(workspace: Path, audit: AuditLogDB, tmp_path: Path) -> None:
    prepared = await prepare_workspace(_spec(), workspace, branch=BRANCH, audit=audit, base=tmp_path / "base")
    assert prepared == Prepared(git(workspace, "rev-parse", BRANCH), "an empty folder")
    assert os.listdir(workspace) == [".git"]
    assert git(workspace, "log", "--format=%an <%ae>") == "Operator <operator@localhost>"
    assert os.listdir(tmp_path / "base") == []


def _tar(*members: tuple[str, bytes | str], hardlink: tuple[str, str] | None = None) -> bytes:
    """An archive of files (bytes) and links (text)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def test_a_folder_comes_out_of_the_store(workspace: Path, audit: AuditLogDB, tmp_path: Path) -> None:
    data = _tar(
        ("./a.txt", b"a"),
        ("sub/run.sh", b"#!/bin/sh\n"),
        ("link", "a.txt"),
        (".git/config", b"[core]\n fsmonitor = touch /tmp/never\n"),
        ("sub/.git/hooks/pre-commit", b"x"),
        (".gitignore", b"ignored\n"),
        ("ignored", b"i"),
    )
    spec = _spec(Source(kind="folder", location="/somewhere", blob=await _blob(audit, data, tmp_path)))
    base = tmp_path / "base"
    prepared = await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit, base=base)
    wanted = {"a.txt": "a", "sub/run.sh": "#!/bin/sh\n", "link": "-> a.txt", ".gitignore": "ignored\n", "ignored": "i"}
    assert _files(workspace) == _files(base) == wanted
    assert os.access(workspace / "sub" / "run.sh", os.X_OK)
    assert not (workspace / "sub" / ".git").exists()
    assert "fsmonitor" not in (workspace / ".git" / "config").read_text()
    assert prepared == Prepared(git(workspace, "rev-parse", "HEAD"), "the folder /somewhere")
    assert not list(workspace.parent.glob("*.tar"))


@pytest.mark.parametrize(
    "members",
    [
        [("../out", b"x")],
        [("link", "/etc")],
        [("link", "../.."), ("link/out", b"x")],
        [("sub", "/etc"), ("sub/out", b"x")],
    ],
)
async def test_an_archive_cannot_reach_outside(
    workspace: Path, audit: AuditLogDB, tmp_path: Path, members: list[tuple[str, bytes | str]]
) -> None:
    spec = _spec(Source(kind="folder", location="/x", blob=await _blob(audit, _tar(*members), tmp_path)))
    with pytest.raises(SourceError, match="cannot be used as a workspace"):
        await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit)
    assert os.listdir(workspace.parent) == []
    assert not (tmp_path / "out").exists()


async def test_a_folder_that_is_not_in_the_store_is_one_sentence(workspace: Path, audit: AuditLogDB) -> None:
    with pytest.raises(SourceError, match="not in the store as it was submitted"):
        await prepare_workspace(
            _spec(Source(kind="folder", location="/x", blob="a" * 64)), workspace, branch=BRANCH, audit=audit
        )
    assert os.listdir(workspace.parent) == []


# ---- the base and the check files


async def test_the_base_comes_from_the_source_and_is_complete(
    repository: Path, workspace: Path, audit: AuditLogDB, tmp_path: Path
) -> None:
    spec = _git_spec(repository)
    kept, again = tmp_path / "kept" / "base", tmp_path / "again" / "base"
    await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit, base=kept)
    (workspace / "tests" / "test_it.py").write_text("def test_it(): pass\n")
    git(workspace, "commit", "-qam", "easier")
    await export_base(spec, again, audit=audit)
    assert _files(kept) == _files(again) == _files(repository)
    assert "tests/test_it.py" in _files(again)  # although the repository says `export-ignore`
    assert not (again / ".git").exists()
    assert not (kept / ".git").exists()
    assert os.access(again / "run.sh", os.X_OK)
    (again / "code.py").write_text("ours")
    await export_base(spec, again, audit=audit)
    assert (again / "code.py").read_text() == "ours"
    shutil.rmtree(repository)
    await export_base(spec, kept, audit=audit)
    with pytest.raises(SourceError):
        await export_base(spec, tmp_path / "third", audit=audit)


async def _check_file(audit: AuditLogDB, tmp_path: Path, path: str, data: bytes, executable: bool = False) -> CheckFile:
    return CheckFile(path=path, sha256=await _blob(audit, data, tmp_path), executable=executable)


async def test_check_files_are_in_the_workspace_and_not_in_the_base(
    repository: Path, workspace: Path, audit: AuditLogDB, tmp_path: Path
) -> None:
    (repository / ".gitignore").write_text("checks\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "three")
    files = (
        await _check_file(audit, tmp_path, "checks/it.sh", b"exit 1\n", executable=True),
        await _check_file(audit, tmp_path, ":(top)code.py", b"magic\n"),
        await _check_file(audit, tmp_path, "tests/test_it.py", b"def test_it(): assert 0\n"),
    )
    spec = _git_spec(repository, check_files=files)
    base, copy = tmp_path / "base", tmp_path / "copy"
    prepared = await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit, base=base)
    assert (workspace / "checks" / "it.sh").read_text() == "exit 1\n"
    assert os.access(workspace / "checks" / "it.sh", os.X_OK)
    assert prepared.note.endswith("with 3 check files")
    assert prepared.commit == git(workspace, "rev-parse", "HEAD") != spec.source.commit
    assert git(workspace, "show", "HEAD:checks/it.sh") == "exit 1"
    assert git(workspace, "status", "--porcelain") == ""
    assert _files(base) == _files(repository)
    await export_check_files(spec, copy, audit)
    assert _files(copy) == {
        "checks/it.sh": "exit 1\n",
        ":(top)code.py": "magic\n",
        "tests/test_it.py": "def test_it(): assert 0\n",
    }


async def test_a_check_file_goes_through_no_link(
    repository: Path, workspace: Path, audit: AuditLogDB, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository / "checks").symlink_to(outside)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "link")
    spec = _git_spec(repository, check_files=(await _check_file(audit, tmp_path, "checks/it.sh", b"x"),))
    with pytest.raises(SourceError, match="a link or a file of the source is where"):
        await prepare_workspace(spec, workspace, branch=BRANCH, audit=audit)
    assert list(outside.iterdir()) == []
    assert not workspace.exists()


async def test_a_check_file_that_is_not_what_was_submitted_is_refused(audit: AuditLogDB, tmp_path: Path) -> None:
    spec = _spec(check_files=(CheckFile(path="it.sh", sha256=hashlib.sha256(b"lost").hexdigest()),))
    with pytest.raises(VerificationError, match="not in the store as it was submitted"):
        await export_check_files(spec, tmp_path / "copy", audit)


# ---- the result

Commit = Callable[[], Any]


@pytest.fixture(params=["bubblewrap", "none"])
def commit(request: pytest.FixtureRequest, tmp_path: Path, workspace: Path) -> Callable[..., Any]:
    if request.param == "bubblewrap":
        request.getfixturevalue("require_bubblewrap")

    async def work(*, message: str = "The result") -> Committed:
        box = open_sandbox(request.param, Policy(workspace), session_dir=tmp_path / "box")
        await box.start()

        async def run(command: str, timeout: float) -> ExecResult:
            return await box.exec(command, timeout=timeout, cwd=".")

        try:
            return await commit_result(run, branch=BRANCH, message=message)
        finally:
            await box.close()

    return work


@pytest.fixture
async def prepared(repository: Path, workspace: Path, audit: AuditLogDB) -> Prepared:
    return await prepare_workspace(_git_spec(repository), workspace, branch=BRANCH, audit=audit)


async def test_the_result_is_one_commit_on_the_branch(
    commit: Commit, prepared: Prepared, workspace: Path, repository: Path
) -> None:
    before = git(repository, "status", "--porcelain"), git(repository, "for-each-ref")
    (workspace / "code.py").write_text("x = 3\n")
    (workspace / "new file").write_text("new")
    (workspace / "run.sh").unlink()
    (workspace / ".gitignore").write_text("*.pyc\n")
    (workspace / "x.pyc").write_text("x")
    message = 'It\'s "done": $(touch ran) `x` __BRANCH__\n\nsecond line'
    done = await commit(message=message)
    assert done.files == 4
    assert done.note == ""
    assert git(workspace, "symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    assert git(workspace, "rev-parse", "HEAD") == done.commit
    assert git(workspace, "rev-parse", "HEAD~1") == prepared.commit
    assert git(workspace, "log", "-1", "--format=%an <%ae>|%B") == f"Operator <operator@localhost>|{message}"
    assert git(workspace, "status", "--porcelain") == ""
    assert git(workspace, "ls-tree", "-r", "--name-only", "HEAD").splitlines() == [
        ".gitattributes", ".gitignore", "code.py", "link", "new file", "tests/test_it.py",
    ]  # fmt: skip
    assert [line.partition(" ")[2] for line in done.history.splitlines()][1:] == ["two", "one"]
    assert git(workspace, "fsck", "--strict") == ""
    assert git(workspace, "rev-parse", "main") == git(repository, "rev-parse", "main")
    assert (git(repository, "status", "--porcelain"), git(repository, "for-each-ref")) == before
    again = await commit()
    assert again == done._replace(files=0)


async def test_the_agents_own_commits_are_kept(commit: Commit, prepared: Prepared, workspace: Path) -> None:
    git(workspace, "checkout", "-q", "-b", "elsewhere")
    (workspace / "code.py").write_text("x = 3\n")
    git(workspace, "commit", "-qam", "by the agent")
    mine = git(workspace, "rev-parse", "HEAD")
    done = await commit()
    assert (done.commit, done.files) == (mine, 0)
    assert git(workspace, "symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    assert git(workspace, "rev-parse", "elsewhere") == mine


def _program(tmp_path: Path) -> tuple[Path, Path]:
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\necho ran >> {tmp_path / 'attempt-1' / 'workspace' / 'ran'}\ncat\n")
    program.chmod(0o755)
    return ran, program


async def test_no_program_of_the_agent_runs(
    commit: Commit, prepared: Prepared, workspace: Path, tmp_path: Path
) -> None:
    """Not even where there is no sandbox: its hooks, filters, monitors, signers and editors are not asked."""
    ran, program = _program(tmp_path)
    hooks = workspace / ".git" / "hooks"
    for name in (
        "pre-commit",
        "post-commit",
        "commit-msg",
        "reference-transaction",
        "post-index-change",
        "pre-auto-gc",
    ):
        shutil.copy(program, hooks / name)
    with (workspace / ".git" / "config").open("a") as file:
        file.write(
            f"[core]\n fsmonitor = {program}\n hooksPath = {hooks}\n sshCommand = {program}\n editor = {program}\n"
            f" alternateRefsCommand = {program}\n attributesFile = /tmp/attributes\n pager = {program}\n"
            f'[filter "evil"]\n clean = {program}\n smudge = {program}\n process = {program}\n required = true\n'
            f'[diff "evil"]\n textconv = {program}\n command = {program}\n[diff]\n external = {program}\n'
            f"[commit]\n gpgsign = true\n[gpg]\n program = {program}\n[uploadpack]\n packObjectsHook = {program}\n"
            f"[log]\n showSignature = true\n[extensions]\n partialClone = evil\n"
            f'[remote "evil"]\n promisor = true\n url = ext::{program}\n uploadpack = {program}\n'
        )
    (workspace / ".git" / "info").mkdir(exist_ok=True)
    (workspace / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil\n")
    (workspace / ".gitattributes").write_text("* filter=evil diff=evil\n")
    nested = workspace / "nested"
    nested.mkdir()
    git(nested, "init", "-q")
    (nested / "file").write_text("x")
    git(nested, "add", "-A")
    git(nested, "commit", "-qm", "nested")
    (nested / "file").write_text("changed")
    with (nested / ".git" / "config").open("a") as file:
        file.write(f"[core]\n fsmonitor = {program}\n hooksPath = {hooks}\n")
    (workspace / "code.py").write_text("x = 3\n")
    done = await commit()
    assert done.commit is not None, done.note
    assert "1 repositories inside of the workspace" in done.note
    assert not ran.exists()
    assert not (workspace / "ran").exists()
    assert git(workspace, "cat-file", "blob", f"{done.commit}:code.py") == "x = 3"


async def test_an_object_that_lies_about_its_name_is_not_delivered(
    commit: Commit, prepared: Prepared, workspace: Path
) -> None:
    """Git does not compute the hash of a loose object that it finds; the commit would hold what nobody verified."""
    (workspace / "code.py").write_text("honest\n")
    name = git(workspace, "hash-object", "code.py")
    (workspace / "evil").write_text("evil!!\n")
    other = git(workspace, "hash-object", "-w", "evil")
    (workspace / "evil").unlink()
    objects = workspace / ".git" / "objects"
    (objects / name[:2]).mkdir(exist_ok=True)
    shutil.copy(objects / other[:2] / other[2:], objects / name[:2] / name[2:])
    done = await commit()
    assert git(workspace, "cat-file", "blob", f"{done.commit}:code.py") == "honest"
    assert git(workspace, "fsck") == ""
    assert git(workspace, "rev-parse", f"{done.commit}~1") == prepared.commit


def _remove(workspace: Path) -> None:
    shutil.rmtree(workspace / ".git")


def _as_file(workspace: Path) -> None:
    shutil.move(workspace / ".git", workspace.parent / "gone")
    (workspace / ".git").write_text(f"gitdir: {workspace.parent / 'gone'}\n")


def _as_link(workspace: Path) -> None:
    shutil.move(workspace / ".git", workspace.parent / "gone")
    (workspace / ".git").symlink_to(workspace.parent / "gone")


def _no_objects(workspace: Path) -> None:
    shutil.rmtree(workspace / ".git" / "objects")


def _no_head(workspace: Path) -> None:
    (workspace / ".git" / "HEAD").write_text("nonsense")


def _objects_elsewhere(workspace: Path) -> None:
    shutil.move(workspace / ".git" / "objects", workspace.parent / "gone")
    (workspace / ".git" / "objects").symlink_to("/dev")


def _damaged(workspace: Path) -> None:
    for path in (workspace / ".git" / "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"nonsense")


@pytest.mark.parametrize(
    "how", [_remove, _as_file, _as_link, _no_objects, _no_head, _objects_elsewhere, _damaged], ids=lambda f: f.__name__
)
async def test_a_repository_that_the_agent_broke_is_made_anew(
    commit: Commit, prepared: Prepared, workspace: Path, how: Callable[[Path], None]
) -> None:
    (workspace / "code.py").write_text("x = 3\n")
    how(workspace)
    done = await commit()
    assert done.commit is not None, done.note
    assert "the history before it is lost" in done.note
    assert done.files == 5
    assert len(done.history.splitlines()) == 1
    assert (workspace / ".git").is_dir()
    assert not (workspace / ".git").is_symlink()
    assert git(workspace, "rev-parse", BRANCH) == done.commit
    assert git(workspace, "cat-file", "blob", "HEAD:code.py") == "x = 3"
    assert git(workspace, "fsck") == ""
    assert git(workspace, "status", "--porcelain") == ""


async def test_leftovers_and_branches_in_the_way_do_no_harm(
    commit: Commit, prepared: Prepared, workspace: Path
) -> None:
    (workspace / "code.py").write_text("x = 3\n")
    dot = workspace / ".git"
    (dot / "index.lock").write_text("")
    (dot / "HEAD.lock").write_text("")
    (dot / "operator-new").mkdir()
    (dot / "operator-new" / "HEAD").write_text("forged")
    git(workspace, "checkout", "-q", "--detach") if not (dot / "index.lock").exists() else None
    (dot / "HEAD.lock").unlink()
    (dot / "index.lock").unlink()
    git(workspace, "checkout", "-q", "--detach")
    git(workspace, "branch", "-D", BRANCH)
    git(workspace, "branch", "operator")
    (dot / "index.lock").write_text("")
    (dot / "HEAD.lock").write_text("")
    done = await commit()
    assert done.commit is not None, done.note
    assert (done.files, done.note) == (1, "")
    assert git(workspace, "rev-parse", f"{BRANCH}~1") == prepared.commit
    assert not (dot / "operator-new").exists()
    assert not list(dot.glob("*.lock"))


async def test_without_git_the_work_stays_where_it_is() -> None:
    async def run(command: str, timeout: float) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            "/bin/bash",
            "-c",
            command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": "/x"},
        )
        out, err = await process.communicate()
        from operator_core.sandbox import Stream

        def stream(data: bytes) -> Stream:
            return Stream(data, b"", len(data), None)

        return ExecResult(process.returncode, None, "exited", 0.1, stream(out), stream(err), "/")

    done = await commit_result(run, branch=BRANCH, message="x")
    assert done.commit is None
    assert done.note == "The result could not be committed (git is not installed); it is in the workspace."
