"""The verify commands of seed 000 that concern prompts and loop, word for word (rows A-045 to A-050, A-070)."""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import operator_environment

ROOT = Path(__file__).parents[2]
CORE = ROOT / "packages" / "operator-core"

PROMPTS = (
    'python -c "from operator_core.agent_lab.prompts import SYSTEM_PROMPT, HAIKU_SUMMARIZE_PROMPT; '
    "print(f'System prompt: {len(SYSTEM_PROMPT)} chars'); print(f'Haiku prompt: {len(HAIKU_SUMMARIZE_PROMPT)} chars')\""
)
LOOP = "python -c \"from operator_core.agent_lab import run_agent_loop, SYSTEM_PROMPT; print('Import OK')\""
IMPORTS = 'python -c "from operator_core.agent_lab import run_agent_loop, shell, SYSTEM_PROMPT"'
LENGTH = "wc -l packages/operator-core/src/operator_core/agent_lab/loop.py"
PATTERNS = (
    "for p in tool_runner @beta_tool AuditLogDB TicketDB claude-haiku; do "
    'grep -q "$p" packages/operator-core/src/operator_core/agent_lab/loop.py || exit 1; done'
)

SENTENCES = (
    "You are an SRE operator responsible for diagnosing and fixing infrastructure issues.",
    "You will receive a ticket describing an issue. Your job is to investigate and resolve it.",
    "You have shell access to the environment. You can run any command needed to diagnose and fix issues.",
    "When you've resolved the issue or determined you cannot fix it, clearly state your conclusion and what was done.",
    "Trust your judgment. Query metrics, check logs, restart services - do what an experienced SRE would do.",
)


def _run(command: str, folder: Path) -> str:
    done = subprocess.run(
        command,
        shell=True,
        env=operator_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_prompts() -> None:
    system, haiku = _run(PROMPTS, ROOT).splitlines()
    assert int(system.split()[2]) > 500
    assert haiku == "Haiku prompt: 87 chars"


def test_imports() -> None:
    assert _run(LOOP, ROOT) == "Import OK\n"
    assert _run(IMPORTS, CORE) == ""


def test_length_of_the_loop() -> None:
    assert 100 <= int(_run(LENGTH, ROOT).split()[0]) < 200


def test_patterns_of_the_loop() -> None:
    _run(PATTERNS, ROOT)


def test_system_prompt() -> None:
    from operator_core.agent_lab.prompts import HAIKU_SUMMARIZE_PROMPT, SYSTEM_PROMPT

    flat = " ".join(SYSTEM_PROMPT.split())
    places = [flat.find(sentence) for sentence in SENTENCES]
    assert -1 not in places
    assert places == sorted(places)
    assert len(SYSTEM_PROMPT.split()) < 500
    wanted = "Summarize this in 1-2 concise sentences, capturing the key action or finding. Be brief."
    assert wanted == HAIKU_SUMMARIZE_PROMPT


@pytest.mark.parametrize("name", ["db_path", "audit_dir"])
def test_the_blocking_entry_point(name: str) -> None:
    """Row A-061; a process that runs it is in ``tests/integration/test_loop_entry.py``."""
    from operator_core.agent_lab import run_agent_loop

    signature = inspect.signature(run_agent_loop)
    assert list(signature.parameters) == ["db_path", "audit_dir"]
    assert not inspect.iscoroutinefunction(run_agent_loop)
    assert (signature.parameters[name].default is None) == (name == "audit_dir")
