"""The verify commands of seed 000 for the store, word for word (rows A-038, A-039)."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = {
    "from operator_core.db.schema import SCHEMA_SQL; "
    "assert 'agent_sessions' in SCHEMA_SQL; print('Schema OK')": "Schema OK",
    "from operator_core.db.schema import SCHEMA_SQL; "
    "print('agent_sessions' in SCHEMA_SQL and 'agent_log_entries' in SCHEMA_SQL)": "True",
    "from operator_core.db.audit_log import AuditLogDB; print('Import OK')": "Import OK",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_seeds_verify_command(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr, done.returncode) == (COMMANDS[command], "", 0)
