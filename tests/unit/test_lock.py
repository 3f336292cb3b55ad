"""The lock works with whatever index a machine is set up for, and covers everything that is asked for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "dev.txt"


def pins(text: str) -> dict[str, Version]:
    """The pinned version of each package in a lock."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", text, re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def wanted() -> list[Requirement]:
    """What the packages and requirements/dev.in ask for."""
    lines = [line for line in (ROOT / "requirements" / "dev.in").read_text().splitlines() if line and line[0] != "#"]
    for path in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        lines += project.get("dependencies", [])
        lines += [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
    ours = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    return [need for need in map(Requirement, lines) if canonicalize_name(need.name) not in ours]


def test_the_lock_records_no_download_address() -> None:
    text = LOCK.read_text()
    assert "://" not in text
    assert "index" not in text
    assert "--find-links" not in text
    assert " @ " not in text


def test_every_line_pins_a_version_and_has_a_hash() -> None:
    entries = re.split(r"\n(?! )", LOCK.read_text().strip())
    assert len(entries) > 30
    for entry in entries:
        first, *hashes = [line.strip(" \\") for line in entry.splitlines()]
        assert "==" in first
        assert hashes, first
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), first


@pytest.mark.parametrize("need", wanted(), ids=str)
def test_the_lock_satisfies_what_is_asked_for(need: Requirement) -> None:
    version = pins(LOCK.read_text()).get(canonicalize_name(need.name))
    assert version is not None, "run `make lock`"
    assert version in need.specifier, "run `make lock`"
