"""``run_agent_loop``: the blocking entry point of seed 000, as a process (rows A-061, A-062)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Reply, ScriptBrain
from tests.support import wait_until_async
from tests.support.rig import PROPOSE, command, open_rig

LOOP = """
import sys
from pathlib import Path
from operator_core.agent_lab import run_agent_loop
run_agent_loop(sys.argv[1], Path(sys.argv[2]))
"""


def _start(folder: Path, audit: Path) -> subprocess.Popen[bytes]:
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", LOOP, str(folder / "operator.db"), str(audit)],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@pytest.mark.deep
async def test_it_blocks_works_and_ends_on_sigint(tmp_path: Path) -> None:
    steps = [Reply(text="I fix it.", calls=(command("touch fixed; echo done"),)), PROPOSE]
    async with open_rig(ScriptBrain(steps), tmp_path) as rig:
        audit = tmp_path / "audit"
        (tmp_path / "operator.toml").write_text(
            f"[model]\nengine = 'scripted'\nbase_url = '{rig.server.base_url}'\nsummaries = 'deterministic'\n"
            "[sandbox]\nbackend = 'none'\n"
        )
        process = _start(tmp_path, audit)
        try:
            said = tmp_path / "output"
            await wait_until_async(lambda: "Polling for tickets" in said.read_text(), 30)
            number = await rig.incident()

            async def resolved() -> bool:
                return (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED

            await wait_until_async(resolved)
            await wait_until_async(lambda: list(audit.glob("*.json")))
            assert process.poll() is None, "it goes on"
            process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(process.wait, 15) == 0, said.read_text()
            assert "Traceback" not in said.read_text()
        finally:
            process.kill()
            process.wait()

        # Row A-029: the file replays the conversation.
        (file,) = audit.glob("*.json")
        data = json.loads(file.read_text())
        (session,) = await rig.audit.sessions()
        assert data["session_id"] == session.session_id == file.stem
        told = [m["role"] for m in data["messages"] if "role" in m]
        assert told == ["user", "assistant", "assistant"]
        calls = [m for m in data["messages"] if m.get("type") == "tool_call"]
        assert [c["tool"] for c in calls] == ["shell", "propose_resolution"]
        assert calls[0]["parameters"] == {"command": "touch fixed; echo done", "reasoning": "because the test says so"}
        assert calls[0]["result"]["stdout"] == "done\n"
        assert data["message_count"] == len(data["messages"]) == 5
