"""From the question to the proof, with real processes: a server, a worker, a webhook, and the link in it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import httpx2

from operator_core.model.ticket import TicketStatus
from operator_core.scripted import FunctionBrain, Reply
from tests.support import free_port, wait_until_async
from tests.support.posts import http_sink
from tests.support.processes import operator_environment
from tests.support.rig import PROPOSE, command, open_rig
from tests.support.worker_process import start_worker

CONFIG = """
[store]
url = "{db}"
[worker]
state_dir = "{state}"
[web]
port = {port}
[[notify.channel]]
name = "ops"
kind = "webhook"
url = "{sink}"
secret_env = "OPS_SECRET"
approval_links = true
[[notify.rule]]
channels = ["ops"]
"""


def start_server(config: Path, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "operator_core", "--config", str(config), "serve"],
            cwd=config.parent,
            env=operator_environment({"OPS_SECRET": "between-you-and-me"}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


async def test_a_link_in_a_message_lets_the_repair_go_on(tmp_path: Path) -> None:
    brain = FunctionBrain(lambda turn: Reply(calls=(command("touch fixed"),)) if turn.step == 0 else PROPOSE)
    rules = {"rule": [{"decision": "ask", "contains": {"command": "touch"}}]}
    async with open_rig(brain, tmp_path, approvals=rules) as rig, http_sink() as sink:
        config = tmp_path / "operator.toml"
        db, state = tmp_path / "operator.db", tmp_path / "state"
        config.write_text(CONFIG.format(db=db, state=state, port=free_port(), sink=sink.url))
        server = start_server(config, tmp_path / "served")
        worker = start_worker(str(db), rig.settings, tmp_path / "worked", until_idle=False)
        try:
            # What happened before its first look at the ledger is not told.
            await wait_until_async(lambda: "Console and API at" in (tmp_path / "served").read_text(), 60)
            await rig.incident()
            asked = await wait_until_async(lambda: [p for p in sink.posts if b"approval_url" in p.body], 60)
            url = asked[0].json()["ticket"]["approval_url"]
            assert not (rig.workspace / "fixed").exists()
            async with httpx2.AsyncClient() as anybody:
                assert "touch fixed" in (await anybody.get(url)).text
                assert (await anybody.post(url, data={"answer": "approve"})).status_code == 200

            async def resolved() -> bool:
                return (await rig.tickets.get_ticket(1)).status is TicketStatus.RESOLVED

            await wait_until_async(resolved, 60)
        finally:
            for child in (server, worker):
                child.send_signal(signal.SIGTERM)
            codes = [await asyncio.to_thread(child.wait, 30) for child in (server, worker)]
        assert codes == [0, 0], (tmp_path / "served").read_text()
        said = (tmp_path / "served").read_text() + (tmp_path / "worked").read_text()
        assert url.rpartition("/")[2] not in said
        await rig.assert_faithful()
