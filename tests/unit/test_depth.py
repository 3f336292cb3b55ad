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
BROAD = ("tests/redteam/test_scripts.py", "tests/crash/test_intake_kill.py", "tests/crash/test_context_kill.py")
NARROW = "tests/unit/test_together.py"


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


@pytest.fixture(scope="module")
def everything() -> list[str]:
    return collected(*BROAD, NARROW, deep=True)


def test_of_many_repetitions_some_are_tried(everything: list[str]) -> None:
    short = collected(*BROAD, NARROW)
    assert set(short) < set(everything)
    left = functions(everything) - functions(short)
    assert left == {"tests/crash/test_context_kill.py::test_killed_around_each_change_of_the_context"}, "it is deep"
    repeated = [name for name in everything if "test_it_is_never_verified[" in name]
    tried = [name for name in short if "test_it_is_never_verified[" in name]
    assert len(repeated) // 4 <= len(tried) <= len(repeated) // 4 + 1
    assert {name for name in everything if NARROW in name} <= set(short)


def test_what_is_asked_for_by_name_is_tried(everything: list[str]) -> None:
    family = [name for name in everything if "test_it_is_never_verified[" in name]
    assert collected("tests/redteam/test_scripts.py::test_it_is_never_verified") == family
    deep = "tests/crash/test_context_kill.py::test_killed_around_each_change_of_the_context"
    assert collected(deep) == [deep]
