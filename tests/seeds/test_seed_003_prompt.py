"""Seed 003, task 1: the system prompt (rows C-002 to C-007)."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

from operator_core.agent_lab.ouroboros.system_prompt import build_system_prompt
from operator_core.errors import ConfigError, OperatorError, SystemPromptNotFound

WHOLE = """\
You are an autonomous AI agent running in the Ouroboros research harness.

## Environment
- Model: llama3.2
- Workspace: {workspace} (you own this directory)
- Shell commands execute in the workspace directory

## Available Tools
A {{tool}} that
does {{model}} things

## Constraints
- File writes are restricted to the workspace directory
- Shell commands are filtered against a security blocklist
- Shell commands have a configurable timeout
- Read access is unrestricted

## Your System Prompt
The following is your system prompt, provided by your operator:

---

Be curious about {{workspace}} and 100% careful.
"""


async def test_the_whole_text(tmp_path: Path) -> None:
    (tmp_path / "SYSTEM_PROMPT.md").write_text("Be curious about {workspace} and 100% careful.\n")
    found = await build_system_prompt(tmp_path, "llama3.2", "A {tool} that\ndoes {model} things")
    assert found == WHOLE.format(workspace=tmp_path)


async def test_the_seeds_two_tests(tmp_path: Path) -> None:
    with pytest.raises(SystemPromptNotFound) as caught:
        await build_system_prompt(tmp_path, "m", "tools")
    assert caught.value.path == str(tmp_path / "SYSTEM_PROMPT.md")
    assert caught.value.path in str(caught.value)
    assert isinstance(caught.value, OperatorError)
    (tmp_path / "SYSTEM_PROMPT.md").write_text("You are a test agent.")
    found = await build_system_prompt(tmp_path, "test-model", "my tools")
    for part in ("Ouroboros research harness", "test-model", str(tmp_path), "my tools", "You are a test agent."):
        assert part in found


async def test_it_is_read_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "SYSTEM_PROMPT.md").write_text("first")
    assert (await build_system_prompt(tmp_path, "m", "")).endswith("---\n\nfirst")
    (tmp_path / "SYSTEM_PROMPT.md").write_text("second, by the agent itself")
    assert (await build_system_prompt(tmp_path, "m", "")).endswith("---\n\nsecond, by the agent itself")


async def test_a_workspace_that_is_missing_is_a_prompt_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SystemPromptNotFound):
        await build_system_prompt(tmp_path / "nowhere", "m", "")
    assert not (tmp_path / "nowhere").exists()


async def test_what_an_agent_may_put_there(tmp_path: Path) -> None:
    """The agent owns the workspace, and this is read by the worker, outside of every sandbox."""
    (tmp_path / "key").write_text("sk-of-the-worker")
    workspace = tmp_path / "ws"
    workspace.mkdir()
    prompt = workspace / "SYSTEM_PROMPT.md"
    for make in (
        lambda: prompt.symlink_to(tmp_path / "key"),
        lambda: prompt.symlink_to("../key"),
        lambda: os.mkfifo(prompt),
        prompt.mkdir,
        lambda: prompt.write_bytes(b"x" * (256 * 1024 + 1)),
    ):
        make()
        with pytest.raises(ConfigError, match=r"SYSTEM_PROMPT\.md"):
            await build_system_prompt(workspace, "m", "")
        prompt.rmdir() if prompt.is_dir() else prompt.unlink()
    (workspace / "notes").mkdir()
    (workspace / "notes" / "real.md").write_bytes(b"one wrong byte: \xff")
    prompt.symlink_to("notes/real.md")
    assert (await build_system_prompt(workspace, "m", "")).endswith("one wrong byte: \N{REPLACEMENT CHARACTER}")


def test_the_signature() -> None:
    assert inspect.iscoroutinefunction(build_system_prompt)
    assert list(inspect.signature(build_system_prompt).parameters) == ["workspace", "model", "tool_descriptions"]
