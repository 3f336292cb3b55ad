"""The verify script of seed 001, task 3, word for word (row A-030)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.processes import operator_environment

SCRIPT = """\
import asyncio
from pathlib import Path
from operator_core.agent_lab import SessionAuditor, shell

async def test():
    # Create auditor with temp directory
    audit_dir = Path("/tmp/test_audit")
    auditor = SessionAuditor(audit_dir)

    # Log a message
    auditor.log_message("user", "Check system health")

    # Execute and log a tool call
    result = await shell("uptime", "checking system uptime")
    auditor.log_tool_call("shell", {"command": "uptime", "reasoning": "checking system uptime"}, result)

    # Log response
    auditor.log_message("assistant", "System is healthy")

    # Save and verify
    filepath = auditor.save_session()
    assert filepath.exists()
    print(f"Audit log saved to: {filepath}")

    # Check JSON content
    import json
    data = json.loads(filepath.read_text())
    assert data["message_count"] == 3
    assert data["session_id"] == auditor.session_id
    print(f"Session ID: {data['session_id']}")
    print("All tests passed!")

asyncio.run(test())
"""


def test_the_script_of_the_seed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=operator_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    saved, session, passed = done.stdout.splitlines()
    assert saved == f"Audit log saved to: /tmp/test_audit/{session.removeprefix('Session ID: ')}.json"
    assert passed == "All tests passed!"
    # The script leaves its file in /tmp; what it left is ours to remove.
    Path(saved.removeprefix("Audit log saved to: ")).unlink()
