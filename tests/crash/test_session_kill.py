"""A worker that dies, or comes too late, in the middle of a command."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from operator_core.agent_lab.gateway import ToolGateway
from operator_core.agent_lab.history import fold
from operator_core.agent_lab.toolbox.shell import SHELL
from operator_core.errors import Fenced
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Reply, ScriptBrain
from tests.support import processes_of, wait_until_async
from tests.support.rig import PROPOSE, command, open_rig
from tests.support.worker_process import start_worker


def _kept(folder: Path, text: str) -> bool:
    """Whether a worker has kept these words of a running command: it reads them when it has the time."""
    return any(text in path.read_text("utf-8", "replace") for path in folder.glob("state/sessions/*/calls/*.out"))


async def test_its_command_dies_with_it_and_the_next_one_says_unknown(
    tmp_path: Path, store_url: str, require_bubblewrap: None
) -> None:
    slow = Reply(
        calls=(command("echo begun; echo x >> effect; sleep 66.6; echo x >> effect"), command("echo y >> other"))
    )
    steps = [slow, Reply(calls=(command("touch fixed"),)), PROPOSE]
    settings = {"sandbox": {"backend": "bubblewrap"}, "worker": {"lease_s": 1.5}}
    async with open_rig(ScriptBrain(steps), tmp_path, store=store_url, **settings) as rig:
        number = await rig.incident()
        process = start_worker(store_url, rig.settings, tmp_path / "output", until_idle=False)
        await wait_until_async(lambda: (rig.workspace / "effect").exists() and _kept(tmp_path, "begun"), 30)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait, 10)
        # No orphan goes on in the world.
        await wait_until_async(lambda: not processes_of("sleep\00066.6"), 60)
        await rig.work()
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
        assert (rig.workspace / "effect").read_text() == "x\n"
        assert not (rig.workspace / "other").exists()
        results = [e for e in await rig.journal() if e.entry_type == "tool_result" and e.tool_name == "shell"]
        assert [(e.meta or {})["status"] for e in results] == ["unknown", "not_executed", "ok"]
        assert "begun" in (results[0].raw_content or "")
        assert [e.entry_type for e in await rig.journal()].count("resumed") == 1
        await rig.assert_faithful()


async def test_who_comes_too_late_starts_nothing(tmp_path: Path) -> None:
    """The intent is durable and its worker sleeps; another one finishes the session and cleans up; it wakes up."""
    ran: list[str] = []

    class Recorder:
        async def exec(self, command: str, **options: object) -> None:
            ran.append(command)
            raise AssertionError("started")

    brain = ScriptBrain([Reply(calls=(command("touch fixed"),)), PROPOSE])
    async with open_rig(brain, tmp_path) as rig:
        await rig.solve()
        entries = await rig.journal()
        (session,) = await rig.audit.sessions()
        calls = tmp_path / "state" / "sessions" / session.session_id / "calls"
        assert not calls.exists()
        journal = await rig.audit.journal(session.session_id)
        late = ToolGateway(
            journal,
            Recorder(),
            calls=calls,
            place="here",
            conversation=fold(entries, "worker_1"),  # type: ignore[arg-type]
        )
        calls.rmdir()
        calls.parent.rmdir()
        with pytest.raises(Fenced):
            await SHELL.run(late, "toolu_late", {"command": "echo too late", "reasoning": "r"})
        assert ran == []
