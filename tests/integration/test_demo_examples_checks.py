"""The checks of the examples: red before the work, green after it, and red for work that only looks like it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from operator_core.demo.tasks import ExampleTask, read_task
from tests.support.processes import operator_environment

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
SOLVED = ("add-cli-flag", "data-script", "refactor-guarded")
Change = Callable[[Path], object]


def lay_out(name: str, folder: Path, *, solved: bool) -> ExampleTask:
    """The workspace of a task with its check files, before or after the work."""
    task = read_task(EXAMPLES / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(task.repo, folder, ignore=ignored)
    for item in task.check_files:
        path, _, place = item.rpartition("=")
        shutil.copy(path, folder / place)
    if solved:
        shutil.copytree(task.folder / "solution", folder, dirs_exist_ok=True, ignore=ignored)
    return task


def codes(task: ExampleTask, folder: Path) -> list[int]:
    """The exit codes of the checks."""
    env = operator_environment({"PYTHONDONTWRITEBYTECODE": "1"})
    return [
        subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, timeout=60).returncode
        for command in task.checks
    ]


def edit(name: str, old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        text = (folder / name).read_text("utf-8")
        assert old in text, "the solution is not what this test knows"
        (folder / name).write_text(text.replace(old, new), "utf-8")

    return change


def write(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text, "utf-8")


@pytest.mark.parametrize("name", ["fix-failing-test", "impossible", *SOLVED])
def test_the_first_check_is_red_before_the_work(name: str, tmp_path: Path) -> None:
    task = lay_out(name, tmp_path / "w", solved=False)
    assert codes(task, tmp_path / "w")[0] == 1


@pytest.mark.parametrize("name", SOLVED)
def test_every_check_is_green_after_it(name: str, tmp_path: Path) -> None:
    task = lay_out(name, tmp_path / "w", solved=True)
    assert set(codes(task, tmp_path / "w")) == {0}


EXIT_CODE_ONLY = """
import unittest
from tests.test_levels import levels

class JsonTest(unittest.TestCase):
    def test_it_ends_well(self):
        self.assertEqual(levels("--json", "sample.log").returncode, 0)
"""

WRONG: dict[str, tuple[str, Change]] = {
    "no tests came with the option": ("add-cli-flag", lambda folder: (folder / "tests" / "test_json.py").unlink()),
    "its tests see nothing": ("add-cli-flag", write("tests/test_json.py", "import unittest\n")),
    "its tests look at the exit code only": ("add-cli-flag", write("tests/test_json.py", EXIT_CODE_ONLY)),
    "keys in any order": ("add-cli-flag", edit("levels.py", ", sort_keys=True", "")),
    "the output without the option": (
        "add-cli-flag",
        edit("levels.py", "print(level, number)", "print(number, level)"),
    ),
    "no word in the documentation": ("add-cli-flag", edit("README.md", "--json", "another option")),
    "the answer by heart": (
        "data-script",
        write("monthly.py", "print(open('expected.json').read())\n"),
    ),
    "the first line of an order counts": (
        "data-script",
        edit("monthly.py", "orders[number] = Order(", "orders[number] = orders.get(number) or Order("),
    ),
    "refunds count": ("data-script", edit("monthly.py", 'status == "paid"', 'status != "cancelled"')),
    "nobody is told of a broken line": ("data-script", edit("monthly.py", "raise NotUnderstood(", "print(")),
    "other prices": ("refactor-guarded", edit("shipping.py", "kilograms <= 2:", "kilograms < 2:")),
    "other words of an error": ("refactor-guarded", edit("shipping.py", "weighs something", "has a weight")),
    "another signature": ("refactor-guarded", edit("shipping.py", 'country: str = "FR"', 'country: str = "AT"')),
    "only one of them uses what they share": (
        "refactor-guarded",
        edit("shipping.py", "price = by_weight(kilograms)\n", "price = 390 if kilograms <= 2 else 690\n"),
    ),
    "nothing was taken apart": (
        "refactor-guarded",
        lambda folder: shutil.copy(EXAMPLES / "refactor-guarded" / "repo" / "shipping.py", folder),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_work_that_only_looks_like_it_is_red(wrong: str, tmp_path: Path) -> None:
    name, change = WRONG[wrong]
    task = lay_out(name, tmp_path / "w", solved=True)
    change(tmp_path / "w")
    assert codes(task, tmp_path / "w")[0] == 1


def test_without_its_expectation_a_check_could_not_look(tmp_path: Path) -> None:
    task = lay_out("data-script", tmp_path / "w", solved=True)
    (tmp_path / "w" / "expected.json").unlink()
    assert codes(task, tmp_path / "w") == [3]
