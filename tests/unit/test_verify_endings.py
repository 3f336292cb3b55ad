"""Where a Python script that is a check is made to fail: only where every run comes by that ends well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from operator_core.model.task import TaskCheck
from operator_core.verify.endings import Ending, endings
from operator_core.verify.frozen import Frozen

FROZEN = Frozen(explicit=("checks/accept.py",), named=("b.py",))


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python checks/accept.py", ["checks/accept.py"]),
        ("PYTHONPATH=src timeout 5 python3.11 -B ./checks/accept.py --all", ["checks/accept.py"]),
        ("python checks/accept.py && python b.py", ["checks/accept.py", "b.py"]),
        ("python -c 'import a'", [""]),
        ("python main.py", []),
        ("python -m checks.accept", []),
        ("python checks/accept.py | grep -q ok", []),
        ("test \"$(python checks/accept.py)\" = 5", []),
        ("python -c \"$(cat x)\"", []),
        ("node checks/accept.py", []),
        ("python 'unclosed", []),
    ],
)  # fmt: skip
def test_the_scripts_that_decide(command: str, found: list[str]) -> None:
    assert [place.path for place in endings(TaskCheck(command=command), FROZEN)] == found


@pytest.mark.parametrize(
    ("script", "reached"),
    [
        ("print(1)\nassert True\n", True),
        ("import sys\nsys.path.insert(0, '.')\n", True),
        ("import sys\n\ndef main():\n    return 0\n\nif __name__ == '__main__':\n    sys.exit(main())\n", True),
        ("import unittest\n\nclass T(unittest.TestCase):\n    def test(self): pass\n\nunittest.main()\n", True),
        ("import sys\nif 1:\n    sys.exit(0)\nimport os\n", None),
        ("raise SystemExit(0)\n", None),
        ("def broken(:\n", None),
        ("x = 1\n" * 3, True),
    ],
)
def test_honest_scripts_come_by_and_others_are_left_alone(tmp_path: Path, script: str, reached: bool | None) -> None:
    (tmp_path / "accept.py").write_text(script)
    marks = Ending("accept.py").put(tmp_path)
    if reached is None:
        assert marks == {}
        assert (tmp_path / "accept.py").read_text() == script
        return
    done = subprocess.run([sys.executable, tmp_path / "accept.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert next(iter(marks)) in done.stderr


@pytest.mark.parametrize("command", ["python3 -c 'a = \"x\"; assert a'", 'python3 -c "assert 1 == 1"'])
def test_a_program_in_the_command_is_changed_in_place(command: str) -> None:
    (place,) = endings(TaskCheck(command=f"{command} && true"), Frozen())
    for mode, status in (("end", 1), ("fails", 1), ("passes", 0)):
        changed = place._replace(mode=mode).of(TaskCheck(command=f"{command} && true")).command  # type: ignore[arg-type]
        assert changed.endswith(" && true")
        assert subprocess.run(["bash", "-c", changed], capture_output=True, check=False).returncode == status
