"""The documentation is true: its settings load, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from operator_core.config import Settings
from tests.support import run_operator

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


TOML = [(page.name, block) for page in PAGES for block in blocks(page, "toml")]


@pytest.mark.parametrize(("page", "block"), TOML, ids=[f"{p}-{i}" for i, (p, _) in enumerate(TOML)])
def test_every_configuration_in_the_documentation_is_accepted(page: str, block: str) -> None:
    settings = Settings.model_validate(tomllib.loads(block))
    assert settings.subject, f"{page}: the example configures nothing"


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in t]
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert missing == []
