"""Seed 003, task 2: three tools and their dispatch (rows C-008 to C-028)."""

from __future__ import annotations

import ast
import inspect
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operator_core.agent_lab.ouroboros import system_prompt, tools
from operator_core.agent_lab.ouroboros.tools import (
    ToolCall,
    call_tool,
    define_tools,
    dispatch_tool_call,
    tool_descriptions,
)
from operator_core.safety import SafetyConfig, SafetyLayer


@pytest.fixture(params=["bubblewrap", "none"])
async def safety(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SafetyLayer]:
    if request.param == "bubblewrap":
        request.getfixturevalue("require_bubblewrap")
    async with SafetyLayer(SafetyConfig(tmp_path / "ws", backend=request.param)) as layer:
        yield layer


async def call(safety: SafetyLayer, name: Any, arguments: Any = None, **named: Any) -> str:
    answer = await dispatch_tool_call(ToolCall("id", name, named or arguments), safety, safety.workspace_root())
    assert isinstance(answer, str)
    return answer


def error_of(answer: str) -> str:
    value = json.loads(answer)
    assert list(value) == ["error"]
    assert isinstance(value["error"], str)
    assert value["error"]
    return str(value["error"])


class TestDefinitions:
    def test_rows_c008_to_c011(self) -> None:
        shell, read, write = define_tools()
        assert [t["name"] for t in (shell, read, write)] == ["shell_exec", "file_read", "file_write"]
        assert [t["input_schema"]["required"] for t in (shell, read, write)] == [
            ["command"], ["path"], ["path", "content"],
        ]  # fmt: skip
        for tool in (shell, read, write):
            assert {p["type"] for p in tool["input_schema"]["properties"].values()} == {"string"}
            assert set(tool["input_schema"]["properties"]) == set(tool["input_schema"]["required"])
        assert "workspace directory" in shell["description"]
        assert all(word in shell["description"] for word in ("stdout", "stderr", "exit_code", "timed_out"))
        assert "read access is unrestricted" in read["description"]
        assert "restricted to the workspace" in write["description"]

    def test_row_c012_the_schemas_are_data(self) -> None:
        for tool in define_tools():
            assert json.loads(json.dumps(tool)) == tool
            assert tool["input_schema"]["type"] == "object"
        define_tools()[0]["name"] = "changed"
        assert define_tools()[0]["name"] == "shell_exec"

    def test_rows_c006_and_c013_a_text_for_people(self) -> None:
        text = tool_descriptions()
        for tool in define_tools():
            assert tool["name"] in text
            assert tool["description"] in text
            for name, parameter in tool["input_schema"]["properties"].items():
                assert f"{name} (string, required): {parameter['description']}" in text
        assert "{" not in text

    def test_rows_c001_and_c014_the_modules(self) -> None:
        assert len(inspect.getsource(system_prompt).splitlines()) >= 40
        assert len(inspect.getsource(tools).splitlines()) >= 100


class TestTheSeedsTests:
    """Row C-028."""

    async def test_shell_exec(self, safety: SafetyLayer) -> None:
        answer = await call(safety, "shell_exec", command="echo hello")
        assert json.loads(answer) == {"stdout": "hello\n", "stderr": "", "exit_code": 0, "timed_out": False}

    async def test_file_read_of_a_file(self, safety: SafetyLayer) -> None:
        (safety.workspace_root() / "f.txt").write_text("content €")
        assert await call(safety, "file_read", path="f.txt") == "content €"

    async def test_file_write_inside(self, safety: SafetyLayer) -> None:
        answer = await call(safety, "file_write", path="out.txt", content="hé")
        assert json.loads(answer) == {"written_bytes": 3, "path": "out.txt"}
        assert (safety.workspace_root() / "out.txt").read_text() == "hé"

    async def test_file_write_outside(self, safety: SafetyLayer, tmp_path: Path) -> None:
        answer = await call(safety, "file_write", path="../out.txt", content="x")
        assert error_of(answer) == "file_write: path '../out.txt' is outside the workspace directory"
        assert not (tmp_path / "out.txt").exists()

    async def test_an_unknown_tool(self, safety: SafetyLayer) -> None:
        assert await call(safety, "nope", x=1) == '{"error": "Unknown tool: nope"}'


class TestShellExec:
    async def test_a_failing_and_a_blocked_command(self, safety: SafetyLayer) -> None:
        assert json.loads(await call(safety, "shell_exec", command="exit 3"))["exit_code"] == 3
        blocked = json.loads(await call(safety, "shell_exec", command="sudo ls"))
        assert blocked["exit_code"] == 126
        assert json.loads(blocked["stderr"])["blocked"] is True

    async def test_row_c024_a_megabyte_arrives_whole(self, safety: SafetyLayer) -> None:
        answer = json.loads(await call(safety, "shell_exec", command="head -c 1000000 /dev/zero | tr '\\0' x"))
        assert answer["stdout"] == "x" * 1_000_000

    async def test_a_place_without_a_sandbox_is_an_answer(self, tmp_path: Path) -> None:
        safety = SafetyLayer(SafetyConfig(tmp_path, backend="no-such-backend"))
        assert "no-such-backend" in error_of(await call(safety, "shell_exec", command="true"))
        assert "no-such-backend" in error_of(await call(safety, "file_read", path="x"))


class TestFileRead:
    async def test_absolute_and_relative(self, safety: SafetyLayer) -> None:
        root = safety.workspace_root()
        (root / "d").mkdir()
        (root / "d" / "f").write_text("")
        assert await call(safety, "file_read", path=str(root / "d" / "f")) == ""
        assert await call(safety, "file_read", path="d/../d/./f") == ""

    async def test_what_commands_can_read_outside(self, safety: SafetyLayer) -> None:
        by_command = json.loads(await call(safety, "shell_exec", command="cat /etc/passwd"))["stdout"]
        assert await call(safety, "file_read", path="/etc/passwd") == by_command

    async def test_defect_86_and_what_cannot_be_read(self, safety: SafetyLayer) -> None:
        root = safety.workspace_root()
        (root / "d").mkdir()
        os.mkfifo(root / "fifo")
        (root / "binary").write_bytes(b"\x7fELF\0\0")
        (root / "latin").write_bytes(b"caf\xe9")
        (root / "big").write_bytes(b"")
        os.truncate(root / "big", 40 << 20)
        (root / "error").write_text('{"error": "not one"}')
        for path in ("missing", "d", "fifo", "binary", "big", "a\0b", "x" * 5000, ""):
            assert "file_read" in error_of(await call(safety, "file_read", path=path))
        assert await call(safety, "file_read", path="latin") == "caf\N{REPLACEMENT CHARACTER}"
        # The text is the same; who needs to know is told apart from it.
        answer = await call_tool(ToolCall("", "file_read", {"path": "error"}), safety, root)
        assert answer == ('{"error": "not one"}', False)
        missing = await call_tool(ToolCall("", "file_read", {"path": "missing"}), safety, root)
        assert missing.is_error

    @pytest.mark.usefixtures("require_bubblewrap")
    async def test_secrets_of_the_machine_stay_there(self, tmp_path: Path) -> None:
        (tmp_path / "key").write_text("secret")
        async with SafetyLayer(SafetyConfig(tmp_path / "ws", backend="bubblewrap")) as safety:
            (tmp_path / "ws" / "link").symlink_to("../key")
            for path in (str(tmp_path / "key"), "../key", "link", "/proc/1/environ", "/etc/shadow"):
                error_of(await call(safety, "file_read", path=path))


class TestFileWrite:
    async def test_rows_c019_and_c020(self, safety: SafetyLayer, tmp_path: Path) -> None:
        root = safety.workspace_root()
        (tmp_path / "ws-evil").mkdir()
        (tmp_path / "victim").write_text("untouched")
        (root / "dir").symlink_to(tmp_path)
        (root / "file").symlink_to(tmp_path / "victim")
        for path in ("../x", "/etc/x", "dir/x", "file", str(tmp_path / "ws-evil" / "x"), "../new/a/f.txt", "d/../../x"):
            assert "outside the workspace" in error_of(await call(safety, "file_write", path=path, content="evil"))
        assert (tmp_path / "victim").read_text() == "untouched"
        assert not (tmp_path / "new").exists()
        assert os.listdir(tmp_path / "ws-evil") == []
        await call(safety, "file_write", path="sub/dir/f.txt", content="")
        await call(safety, "file_write", path=str(root / "sub/absolute"), content="1")
        assert sorted(os.listdir(root / "sub")) == ["absolute", "dir"]

    async def test_commands_see_what_was_written(self, safety: SafetyLayer) -> None:
        await call(safety, "file_write", path="run.sh", content="echo from a file")
        assert json.loads(await call(safety, "shell_exec", command="sh run.sh"))["stdout"] == "from a file\n"

    async def test_errors_are_answers(self, safety: SafetyLayer) -> None:
        (safety.workspace_root() / "d").mkdir()
        for path in ("d", ".", "", "a\0b", "x" * 300, ".git/hooks/pre-commit"):
            assert "file_write" in error_of(await call(safety, "file_write", path=path, content="x"))
        assert "content" in error_of(await call(safety, "file_write", path="ok"))
        assert "surrogate" in error_of(await call(safety, "file_write", path="ok", content="\ud800"))
        assert os.listdir(safety.workspace_root()) == ["d"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


class TestRowC015:
    @given(
        name=st.sampled_from(["shell_exec", "file_read", "file_write"]) | JSON,
        arguments=JSON | st.dictionaries(st.sampled_from(["command", "path", "content"]), JSON, max_size=3),
    )
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
    async def test_whatever_comes_there_is_an_answer(self, tmp_path: Path, name: Any, arguments: Any) -> None:
        async with SafetyLayer(SafetyConfig(tmp_path / "ws", backend="no-such-backend")) as safety:
            answer = await call(safety, name, arguments)
            answer.encode()
            json.loads(answer)

    async def test_what_is_no_call_at_all(self, safety: SafetyLayer) -> None:
        assert error_of(await dispatch_tool_call(None, safety, safety.workspace_root()))  # type: ignore[arg-type]

    def test_row_c025_only_the_safety_layer_runs_commands(self) -> None:
        names = {node.attr for node in ast.walk(ast.parse(inspect.getsource(tools))) if isinstance(node, ast.Attribute)}
        assert "execute" in names
        assert not names & {"exec", "spawn", "run", "Popen", "create_subprocess_shell", "system"}
