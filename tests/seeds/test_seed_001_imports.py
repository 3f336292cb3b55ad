"""The other verify commands and patterns of seed 001 (rows A-011, A-027, A-031)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import operator_environment

ROOT = Path(__file__).parents[2]
LAB = ROOT / "packages" / "operator-core" / "src" / "operator_core" / "agent_lab"


def test_imports(tmp_path: Path) -> None:
    done = subprocess.run(
        'python -c "from operator_core.agent_lab import shell, SessionAuditor"',
        shell=True,
        env=operator_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_exports() -> None:
    import operator_core.agent_lab as lab

    assert lab.__doc__ == "Agent Lab: v3.0 autonomous agent with shell access."
    assert {"shell", "SessionAuditor"} <= set(lab.__all__)
    assert all(getattr(lab, name) is not None for name in lab.__all__)


@pytest.mark.parametrize(
    ("file", "pattern"),
    [("tools.py", r"asyncio\.create_subprocess_shell"), ("audit.py", r"json\.dumps")],
)
def test_patterns(file: str, pattern: str) -> None:
    assert re.search(pattern, (LAB / file).read_text())
