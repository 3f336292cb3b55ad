"""The file tools of a sandbox: the same table of mounts as commands have, whatever links and races there are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import SandboxError
from operator_core.sandbox import Policy, Sandbox, open_sandbox
from operator_core.sandbox.files import Place, read, write
from tests.support.racing import rounds, swapping

Make = Callable[..., Any]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
async def make(require_bubblewrap: None, tmp_path: Path, workspace: Path) -> AsyncIterator[Make]:
    opened: list[Sandbox] = []

    async def start(**policy: Any) -> Sandbox:
        sandbox = open_sandbox("bubblewrap", Policy(workspace, **policy), session_dir=tmp_path / f"box{len(opened)}")
        opened.append(sandbox)
        await sandbox.start()
        return sandbox

    yield start
    for sandbox in opened:
        await sandbox.close()


async def by_command(sandbox: Sandbox, path: str) -> bytes | None:
    result = await sandbox.exec(f"test -f {shlex.quote(path)} && cat -- {shlex.quote(path)}")
    return result.stdout.text().encode() if result.exit_code == 0 else None


async def by_tool(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return (await sandbox.read_file(path)).data
    except SandboxError:
        return None


class TestTheSameAsCommands:
    async def test_reading_through_links_of_every_kind(self, make: Make, workspace: Path, tmp_path: Path) -> None:
        shown = tmp_path / "shown"
        (shown / "d").mkdir(parents=True)
        (shown / "d" / "r").write_text("readable")
        sandbox = await make(readable=(shown,), masked=("secret",))
        (workspace / "secret").mkdir()
        (workspace / "secret" / "key").write_text("hidden")
        (workspace / "a" / "b").mkdir(parents=True)
        (workspace / "a" / "f").write_text("plain")
        (workspace / "up").write_text("up")
        await sandbox.exec("echo of-the-session >/tmp/t; echo at-home >~/h")
        for name, target in {
            "relative": "a/f", "chain": "relative", "absolute": f"{workspace}/a/f", "dir": "a", "deep": "dir/b/../f",
            "to-tmp": "/tmp/t", "to-home": "/home/agent/h", "to-shown": f"{shown}/d/r", "to-shown-dir": f"{shown}/d",
            "out": f"{tmp_path}/nothing", "way-up": "../../../../../../etc/passwd", "nothing": "missing",
            "loop": "loop2", "loop2": "loop", "to-secret": "secret/key", "proc": "/proc/self/root/etc/passwd",
            "to-usr": "/usr/bin/env", "a/parent": "..",
        }.items():  # fmt: skip
            (workspace / name).symlink_to(target)
        paths = [
            *os.listdir(workspace), "dir/f", "deep/x", "to-shown-dir/r", "a/parent/up", "a/b/../../up", "dir/../up",
            "/tmp/t", "/home/agent/h", "~/h", f"{shown}/d/../d/r", f"{tmp_path}/shown/d/r", "/etc/passwd",
            "/etc/shadow", "/bin/sh", "/usr/lib/os-release", "/etc/os-release", "/", "/tmp", str(workspace), "a/f/x",
            "a//f", "./a/./f", "/root/.bashrc", str(tmp_path / "box0" / "state"), "to-tmp/../t", "secret/key",
        ]  # fmt: skip
        seen = 0
        for path in paths:
            expected = await by_command(sandbox, path)
            if path in ("/bin/sh", "to-usr"):  # bytes, and not a text
                expected = Path("/bin/sh" if path == "/bin/sh" else "/usr/bin/env").read_bytes()[: 1 << 20]
            if path == "proc":
                expected = None  # commands only; what /proc shows is about who looks
            if path in ("to-secret", "secret/key"):
                expected = None
            assert await by_tool(sandbox, path) == expected, path
            seen += expected is not None
        assert seen > 20

    @pytest.mark.parametrize("seed", range(4))
    async def test_random_trees_of_links(self, make: Make, workspace: Path, seed: int) -> None:
        dice = random.Random(seed)
        names = ["a", "b", "c", "d"]
        (workspace / "a" / "b").mkdir(parents=True)
        (workspace / "d").mkdir()
        folders, everything = [workspace / "d", workspace / "a", workspace / "a" / "b"], ["a", "d", "a/b"]
        for number in range(150):
            path = dice.choice(folders) / dice.choice(names)
            if os.path.lexists(path):
                continue
            what = number % 3
            if what == 0:
                path.mkdir()
                folders.append(path)
            elif what == 1:
                path.write_text(str(path.relative_to(workspace)))
            elif dice.random() < 0.5:
                path.symlink_to(os.path.relpath(workspace / dice.choice(everything), path.parent))
            else:
                target = "/".join(dice.choices([*names, "..", "."], k=dice.randint(1, 4)))
                path.symlink_to(f"{dice.choice([workspace, '/tmp', '/usr'])}/{target}" if number % 2 else target)
            everything.append(str(path.relative_to(workspace)))
        sandbox = await make(masked=("a/b",), protected=("c",))
        more = ["", "", "/a", "/b", "/../a", "/../../d/c", "/./d", "/c/../d"]
        paths = [dice.choice(everything) + dice.choice(more) for _ in range(300)]
        shown = "; ".join(f"if [ -f {path} ] && [ -s {path} ]; then cat {path}; echo; else echo; fi" for path in paths)
        by_commands = (await sandbox.exec(f"{{ {shown}; }} 2>&1")).stdout.text().splitlines()
        for path, expected in zip(paths, by_commands, strict=True):
            try:
                found = (await sandbox.read_file(path)).data.decode()
            except SandboxError as error:
                # A command sees an empty folder there, and may go through it and up again.
                found = expected if "hidden" in str(error) and not expected.startswith("a/b/") else ""
            assert found == expected, path
        assert len(set(by_commands)) > 10

    async def test_writing_through_links(self, make: Make, workspace: Path, tmp_path: Path) -> None:
        writable = tmp_path / "more"
        writable.mkdir()
        sandbox = await make(writable=(writable,))
        (workspace / "a").mkdir()
        for name, target in {
            "file": "a/new", "dir": "a", "tmp": "/tmp", "more": str(writable), "abs": f"{workspace}/a/abs",
        }.items():  # fmt: skip
            (workspace / name).symlink_to(target)
        for number, path in enumerate(
            [
                "file",
                "dir/x/y",
                "tmp/t",
                "more/m",
                "abs",
                "/tmp/u/v",
                "~/notes",
                "/home/agent/h",
                "dir/../top",
                f"{writable}/n",
            ]
        ):
            await sandbox.write_file(path, f"{number}".encode())
            assert await by_command(sandbox, path) == f"{number}".encode(), path
        assert (workspace / "a" / "new").read_text() == "0"
        assert (workspace / "file").is_symlink()
        assert (writable / "m").exists()
        assert not Path("/tmp/t").exists()
        assert (workspace / "~" / "notes").exists()  # a shell makes more of a tilde than a path does

    async def test_protected_is_judged_where_the_path_ends(self, make: Make, workspace: Path) -> None:
        (workspace / ".git" / "hooks").mkdir(parents=True)
        (workspace / ".git" / "config").write_text("[core]")
        (workspace / "rules").mkdir()
        (workspace / "kept").symlink_to("rules")
        (workspace / "innocent").symlink_to(".git")
        (workspace / "cfg").symlink_to(".git/config")
        sandbox = await make(protected=(".git/hooks", ".git/config", "kept"))
        for path in (
            ".git/hooks/pre-commit", "innocent/hooks/pre-commit", "innocent/config", "cfg", "kept/x", "rules/x",
            "rules", "sub/../.git/config", ".git/hooks/new/deep", ".git/../.git/hooks/x", "cfg/below",
        ):  # fmt: skip
            with pytest.raises(SandboxError):
                await sandbox.write_file(path, b"evil")
        assert (workspace / ".git" / "config").read_text() == "[core]"
        assert os.listdir(workspace / ".git" / "hooks") == []
        assert os.listdir(workspace / "rules") == []
        await sandbox.write_file("innocent/description", b"fine")
        await sandbox.write_file("innocent/../plain", b"fine")
        assert (workspace / ".git" / "description").exists()

    async def test_masked_is_not_even_walked_through(self, make: Make, workspace: Path) -> None:
        (workspace / "secret" / "sub").mkdir(parents=True)
        (workspace / "f").write_text("plain")
        (workspace / "link").symlink_to("secret/sub")
        sandbox = await make(masked=("secret",))
        for path in ("secret/sub/x", "secret/../f", "link/x", "link/../../f"):
            with pytest.raises(SandboxError, match="hidden"):
                await sandbox.read_file(path)
            with pytest.raises(SandboxError, match="hidden"):
                await sandbox.write_file(path, b"x")

    async def test_a_session_in_the_workspace_is_not_shown(self, workspace: Path, require_bubblewrap: None) -> None:
        sandbox = open_sandbox("bubblewrap", Policy(workspace), session_dir=workspace / ".session")
        await sandbox.start()
        (workspace / ".session" / "journal").write_text("canary")
        for path in (".session/journal", ".session/state/1"):
            with pytest.raises(SandboxError):
                await sandbox.read_file(path)
            with pytest.raises(SandboxError):
                await sandbox.write_file(path, b"x")
        await sandbox.close()

    async def test_nothing_is_made_on_the_way_to_a_refusal(self, make: Make, workspace: Path) -> None:
        sandbox = await make()
        for path in (
            "new" + "/.." * 12 + "/srv/x",
            "new/../.git/hooks/x",
            "/newdir/x",
            "/usr/newdir/x",
            "/etc/newdir/x",
        ):
            with pytest.raises(SandboxError):
                await sandbox.write_file(path, b"x")
        assert os.listdir(workspace) == []
        assert not Path("/newdir").exists()
        assert not Path("/usr/newdir").exists()

    async def test_what_only_root_can_read_of_the_system_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "mine").write_text("x")
        (tmp_path / "s" / "mine").chmod(0o600)
        (tmp_path / "s" / "open").write_text("x")
        places = [Place("/usr", tmp_path / "s", "public")]
        assert read(places, "open", "/usr", 0, 10).data == b"x"
        with pytest.raises(SandboxError, match="ermission"):
            read(places, "mine", "/usr", 0, 10)
        (tmp_path / "s" / "closed").mkdir(mode=0o700)
        (tmp_path / "s" / "closed" / "open").write_text("x")
        with pytest.raises(SandboxError, match="ermission"):
            read(places, "closed/open", "/usr", 0, 10)


class TestRaces:
    @pytest.mark.parametrize("verb", ["write", "read"])
    async def test_nothing_gets_out_or_in(self, tmp_path: Path, workspace: Path, verb: str) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "f").write_text("secret")
        places = [Place("/ws", workspace, "write")]
        ends: Counter[str] = Counter()
        with swapping(workspace / "dir", outside, {"f": "mine"}):
            for _ in rounds(2000, lambda: len(ends) == 2):
                try:
                    if verb == "write":
                        write(places, "dir/f", "/ws", b"mine")
                    else:
                        assert read(places, "dir/f", "/ws", 0, 10).data == b"mine"
                    ends["done"] += 1
                except SandboxError:
                    ends["refused"] += 1
        assert (outside / "f").read_text() == "secret"
        assert os.listdir(outside) == ["f"]
        assert set(ends) == {"done", "refused"}

    async def test_nothing_stays_open(self, make: Make, workspace: Path) -> None:
        sandbox = await make(masked=("m",))
        (workspace / "m").mkdir()
        (workspace / "loop").symlink_to("loop")
        await sandbox.exec("true")
        await asyncio.sleep(0)
        before = len(os.listdir("/proc/self/fd"))
        for path in ("a/b/c", "m/x", "loop", "../x", "/etc/passwd/x", "/tmp/x", "a/b/c/d", "/nowhere/x", "a"):
            for _ in range(3):
                for work in (sandbox.read_file(path), sandbox.write_file(path, b"x")):
                    with contextlib.suppress(SandboxError):
                        await work
        assert len(os.listdir("/proc/self/fd")) == before
