"""``docs/conformance.md`` is complete, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATUSES = {"met", "met differently"}
DEFECTS = (*range(1, 17), *range(18, 26), 27, *range(39, 66), 67, 68, *range(70, 88))
NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")


def table(heading: str, page: str = PAGE) -> list[list[str]]:
    """The rows of the one table under a heading, without its head; each a list of cells."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


REQUIREMENTS = [
    row for name in ("Requirements", "Requirements of tasks", "Requirements of guarded tools") for row in table(name)
]
ROWS = [f"{letter}-{number:03}" for letter, last in (("A", 76), ("B", 68), ("C", 29)) for number in range(1, last + 1)]
D_ROWS = table("Defects that must not come back")
PROMISES = table("Promises of the README")


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the tests of a file, those of a class as ``Class::name``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            functions = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            found.update(f"{node.name}::{n.name}" for n in functions)
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def missing(text: str) -> list[str]:
    """The tests named in a text that do not exist."""
    named = NAMED.findall(text)
    return [
        f"{file}::{name}" for file, name in named if not (ROOT / file).is_file() or name not in names_in(ROOT / file)
    ]


def test_every_requirement_has_one_row() -> None:
    assert [row[0] for row in REQUIREMENTS] == ROWS
    assert {len(row) for row in REQUIREMENTS} == {4}


@pytest.mark.parametrize("row", REQUIREMENTS, ids=lambda row: row[0])
def test_a_requirement_is_shown_or_its_difference_explained(row: list[str]) -> None:
    _, what, status, shown = row
    assert status in STATUSES
    assert what
    assert shown
    assert NAMED.search(shown), "no test"
    if status == "met differently":
        words = re.findall(r"\w+", NAMED.sub("", shown))
        assert len(words) >= 5, "no reason"


def test_every_defect_has_one_row_with_a_test() -> None:
    assert [row[0] for row in D_ROWS] == [f"D-{number:02}" for number in DEFECTS]
    assert [row[0] for row in D_ROWS if not NAMED.search(row[2])] == []


def test_every_promise_of_the_readme_has_a_test() -> None:
    readme = table("What you can rely on", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [row[0] for row in PROMISES] == [row[0] for row in readme] != []
    assert [row[0] for row in PROMISES if not NAMED.search(row[1])] == []


def test_every_named_test_exists() -> None:
    assert len(NAMED.findall(PAGE)) == len(re.findall(r"`tests/[^`]*::[^`]*`", PAGE)), "a name that cannot be read"
    assert missing(PAGE) == []


def test_a_name_that_does_not_exist_is_noticed() -> None:
    here = "tests/unit/test_conformance.py"
    assert missing(f"`{here}::test_every_named_test_exists`") == []
    for wrong in (f"{here}::test_no_such_thing", "tests/unit/test_gone.py::test_x", f"{here}::missing"):
        assert missing(f"see `{wrong}`") == [wrong]
