"""The short form of the suite leaves out repetitions, never a test without one; by name everything can be run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.warm import cold_processes

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/redteam", "tests/crash", "tests/seeds")
DEEP = "tests/crash/test_context_kill.py::test_killed_around_each_change_of_the_context"


def collected(*words: str, deep: bool = False) -> list[str]:
    """The names of the tests that would run."""
    with cold_processes():  # a pytest imports everything by itself
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *words],
            env={**os.environ, "OPERATOR_DEEP_TESTS": "1" if deep else ""},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def functions(names: list[str]) -> set[str]:
    return {name.partition("[")[0] for name in names}


def family(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("tests/redteam/test_scripts.py::test_it_is_never_verified[")]


@pytest.fixture(scope="module")
def everything() -> list[str]:
    return collected(*FOLDERS, deep=True)


def test_of_many_repetitions_some_are_tried_and_of_each_test_at_least_one(everything: list[str]) -> None:
    short = collected(*FOLDERS)
    assert set(short) < set(everything)
    left = functions(everything) - functions(short)
    assert DEEP in left
    assert len(left) < 25, "what is left out altogether is marked, and rare"
    many, some = len(family(everything)), len(family(short))
    assert many // 4 <= some <= many // 4 + 1


def test_what_is_asked_for_by_name_is_tried(everything: list[str]) -> None:
    assert family(collected("tests/redteam/test_scripts.py")) == family(everything)
    assert collected(DEEP) == [DEEP]
