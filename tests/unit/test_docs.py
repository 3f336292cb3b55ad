"""The documentation is true: its settings load, its commands exist, its links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from operator_core.config import load_settings
from operator_core.scripted import ScriptedServer
from tests.support import run_operator

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


TOML = [(page.name, block) for page in PAGES for block in blocks(page, "toml")]


@pytest.mark.parametrize(("page", "block"), TOML, ids=[f"{p}-{i}" for i, (p, _) in enumerate(TOML)])
def test_every_configuration_in_the_documentation_is_accepted(page: str, block: str, tmp_path: Path) -> None:
    example, nothing = tmp_path / "operator.toml", tmp_path / "empty.toml"
    example.write_text(block, "utf-8")
    nothing.touch()
    settings = load_settings(example, environ={}).settings
    assert settings != load_settings(nothing, environ={}).settings, f"{page}: the example configures nothing"


def test_every_command_in_the_documentation_exists() -> None:
    named: set[tuple[str, ...]] = set()
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                line = line.split("#")[0].strip()
                words = line.removeprefix("operator ").split()
                if line.startswith("operator "):
                    words = words[2:] if words[0] == "--db" else words
                    named.add(tuple(w for w in words[:2] if re.fullmatch(r"[a-z]+", w)))
    assert len(named) > 5, "the documentation shows hardly any command"
    for words in sorted(named):
        shown = run_operator(*words, "--help")
        assert shown.returncode == 0, f"operator {' '.join(words)}: {shown.stderr}"


async def test_the_brain_of_the_quickstart_works() -> None:
    source, _ = blocks(ROOT / "docs" / "quickstart.md", "python")
    names: dict[str, Any] = {}
    exec(source, names)  # our own documentation
    async with (
        ScriptedServer(names["brain"]) as server,
        AsyncAnthropic(api_key="k", base_url=server.base_url) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": "Ticket #1"}]
        commands = []
        for printed in ("nothing", "", ""):
            answer = await client.messages.create(model="m", max_tokens=100, messages=messages)
            (use,) = [block for block in answer.content if block.type == "tool_use"]
            commands.append(use.input.get("command", use.name))
            result = {"type": "tool_result", "tool_use_id": use.id, "content": json.dumps({"stdout": printed})}
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert commands == ["ls -la", "touch flag", "propose_resolution"]


def test_the_brain_of_a_task_in_the_quickstart_ends_it(tmp_path: Path) -> None:
    page = ROOT / "docs" / "quickstart.md"
    _, source = blocks(page, "python")
    names: dict[str, Any] = {}
    exec(source, names)  # our own documentation
    (line,) = [line for block in blocks(page, "sh") for line in block.splitlines() if '"grep -q hello' in line]
    with ScriptedServer(names["brain"]).start_in_thread() as server:
        env = {
            "HOME": str(tmp_path),
            "OPERATOR_MODEL__ENGINE": "scripted",
            "OPERATOR_MODEL__BASE_URL": server.base_url,
            "OPERATOR_SANDBOX__BACKEND": "none",
        }
        done = run_operator(*shlex.split(line)[1:], env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "Ticket #1 is resolved: verified." in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in t]
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert missing == []
