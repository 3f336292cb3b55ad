"""A copy of the workspace looks like the original, and links in it lead nowhere else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import ConfigError, SandboxError
from operator_core.sandbox import Policy, Sandbox, open_sandbox

Make = Callable[..., Any]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    folder = tmp_path / "original"
    folder.mkdir()
    (folder / "which").write_text("original")
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "deep" / "copy"
    (folder / "sub").mkdir(parents=True)
    (folder / "which").write_text("copy")
    return folder


@pytest.fixture
async def make(tmp_path: Path, copy: Path) -> AsyncIterator[Make]:
    opened: list[Sandbox] = []

    async def start(backend: str = "auto", **policy: Any) -> Sandbox:
        sandbox = open_sandbox(backend, Policy(copy, **policy), session_dir=tmp_path / f"session{len(opened)}")
        opened.append(sandbox)
        await sandbox.start()
        return sandbox

    yield start
    for sandbox in opened:
        await sandbox.close()


async def out(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(command)
    return (result.stdout.text() + result.stderr.text()).strip()


@pytest.mark.usefixtures("require_bubblewrap")
class TestBubblewrap:
    async def test_commands_see_the_copy_at_the_original_path(self, make: Make, original: Path, copy: Path) -> None:
        (copy / "run").write_text(f"#!/bin/bash\ncat {original}/which\n")
        (copy / "run").chmod(0o755)
        sandbox = await make(shown_at=original)
        assert await out(sandbox, "pwd; ./run") == f"{original}\ncopy"
        assert await out(sandbox, f"ls {copy} 2>/dev/null || echo hidden") == "hidden"
        await sandbox.exec(f"echo new >{original}/new; cd sub")
        assert (copy / "new").read_text() == "new\n"
        assert not (original / "new").exists()
        assert await out(sandbox, "pwd") == f"{original}/sub"

    async def test_the_file_tools_see_the_same(self, make: Make, original: Path, copy: Path) -> None:
        sandbox = await make(shown_at=original, protected=("which",), masked=("sub",))
        (copy / "sub" / "key").write_text("secret")
        assert (await sandbox.read_file("which")).data == b"copy"
        assert (await sandbox.read_file(str(original / "which"))).path == str(original / "which")
        await sandbox.write_file(f"{original}/made", b"1")
        assert (copy / "made").read_bytes() == b"1"
        for path in ("which", f"{original}/which"):
            with pytest.raises(SandboxError, match="write-protected"):
                await sandbox.write_file(path, b"2")
        with pytest.raises(SandboxError, match="hidden"):
            await sandbox.read_file("sub/key")
        with pytest.raises(SandboxError):
            await sandbox.read_file(str(copy / "which"))

    async def test_protected_and_masked_names_follow(self, make: Make, original: Path, copy: Path) -> None:
        (copy / "tests").mkdir()
        for name in ("a", "b", "c"):
            (copy / "tests" / name).write_text("kept")
        (copy / "sub" / "key").write_text("secret")
        sandbox = await make(shown_at=original, protected=("tests/a", f"{original}/tests/b"), masked=("sub",))
        await sandbox.exec("echo evil | tee tests/a tests/b tests/c; rm -f tests/a; mv tests away")
        assert [(copy / "tests" / n).read_text() for n in "abc"] == ["kept", "kept", "evil\n"]
        assert "secret" not in await out(sandbox, "cat sub/key")

    async def test_a_session_inside_of_the_workspace_stays_hidden(self, original: Path, copy: Path) -> None:
        sandbox = open_sandbox("auto", Policy(copy, shown_at=original), session_dir=copy / ".session")
        await sandbox.start()
        (copy / ".session" / "journal").write_text("canary")
        assert "canary" not in await out(sandbox, "cat .session/journal")
        await sandbox.close()

    async def test_a_protected_link_back_to_the_original_protects_the_copy(
        self, make: Make, original: Path, copy: Path
    ) -> None:
        (copy / "link").symlink_to(original / "which")
        sandbox = await make(shown_at=original, protected=("link",))
        assert await out(sandbox, "cat link; { echo evil >which; } 2>/dev/null || echo refused") == "copyrefused"

    async def test_a_git_folder_is_protected_in_the_copy(self, make: Make, original: Path, copy: Path) -> None:
        subprocess.run(["git", "init", "-q", str(copy)], check=True)  # noqa: ASYNC221
        sandbox = await make(shown_at=original)
        await sandbox.exec("echo evil >.git/hooks/pre-commit; echo evil >>.git/config")
        assert not (copy / ".git/hooks/pre-commit").exists()
        assert "evil" not in (copy / ".git/config").read_text()


@pytest.mark.usefixtures("require_bubblewrap")
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("name", [".vscode", ".git"])
async def test_a_link_in_place_of_a_protected_name_shows_nothing_of_the_host(
    make: Make, copy: Path, tmp_path: Path, name: str, relative: bool
) -> None:
    secret = tmp_path / "secret"
    (secret / "hooks").mkdir(parents=True)
    for path in (secret / "config", secret / "hooks" / "config"):
        path.write_text("canary")
    sandbox = await make()
    target = os.path.relpath(secret, copy) if relative else str(secret)
    await sandbox.exec(f"ln -s {target} {name}")
    assert "canary" not in await out(sandbox, f"cat {name}/config {name}/hooks/config {secret}/config")
    for inner in (f"{name}/config", f"{name}/hooks/config"):
        with pytest.raises(SandboxError):
            await sandbox.read_file(inner)


async def test_without_isolation_the_copy_is_shown_where_it_is(make: Make, original: Path, copy: Path) -> None:
    sandbox = await make("none", shown_at=original, protected=("which",))
    assert await out(sandbox, "pwd; cat which") == f"{copy}\ncopy"
    with pytest.raises(SandboxError, match="write-protected"):
        await sandbox.write_file("which", b"2")


@pytest.mark.parametrize("bad", [Path("relative"), Path("/")])
def test_a_place_that_cannot_be_is_refused(copy: Path, bad: Path) -> None:
    with pytest.raises(ConfigError):
        Policy(copy, shown_at=bad)
