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
IMAGE = ROOT / "requirements" / "operator.txt"
"""The part of it that the product's image installs."""
PROGRAM = ROOT / "requirements" / "claude-code.txt"
"""A lock of its own: of this one package only the program is wanted, and none of its dependencies."""


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
        extras = project.get("optional-dependencies", {})
        lines += [line for name, extra in extras.items() if name != "claude-code" for line in extra]
    ours = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    return [need for need in map(Requirement, lines) if canonicalize_name(need.name) not in ours]


@pytest.mark.parametrize("lock", [LOCK, IMAGE, PROGRAM], ids=lambda lock: lock.name)
def test_the_lock_records_no_download_address(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "index" not in text
    assert "--find-links" not in text
    assert " @ " not in text


@pytest.mark.parametrize(
    ("lock", "least"), [(LOCK, 31), (IMAGE, 31), (PROGRAM, 1)], ids=lambda value: getattr(value, "name", None)
)
def test_every_line_pins_a_version_and_has_a_hash(lock: Path, least: int) -> None:
    entries = re.split(r"\n(?! )", lock.read_text().strip())
    assert len(entries) >= least
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


def test_the_image_has_what_the_product_needs_in_the_versions_that_are_tested() -> None:
    image, everything = pins(IMAGE.read_text()), pins(LOCK.read_text())
    assert image.items() <= everything.items(), "run `make lock`"
    project = tomllib.loads((ROOT / "packages" / "operator-core" / "pyproject.toml").read_text())["project"]
    needs = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["postgres"]])
    assert {canonicalize_name(need.name) for need in needs} <= image.keys(), "run `make lock`"
    assert "pytest" not in image


def test_the_program_is_one_package_for_every_platform_and_satisfies_the_extra() -> None:
    project = tomllib.loads((ROOT / "packages" / "operator-core" / "pyproject.toml").read_text())["project"]
    (need,) = map(Requirement, project["optional-dependencies"]["claude-code"])
    found = pins(PROGRAM.read_text())
    assert list(found) == [canonicalize_name(need.name)]
    assert found[canonicalize_name(need.name)] in need.specifier
    assert PROGRAM.read_text().count("--hash=") >= 5  # two processors on Linux and macOS, and Windows
