"""A manager that is killed at any place, and the next one: one answer, one task, nothing left undone (D-57)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from operator_core import clock
from operator_core.scripted import Call, FunctionBrain, Reply
from operator_core.scripted.turn import Turn
from operator_dataverse.double import Double
from tests.support.dataverse import double
from tests.support.dataverse_chat import ALICE, CHAT, TASKS, Chat, open_chat, said

__all__ = ["double"]

PLACES = ("chat:claimed", "chat:found", "chat:saved", "chat:replied", "chat:ended")


def creating(turn: Turn) -> Reply:
    if turn.results:
        return Reply(text=f"Done. {turn.results[-1].text}")
    return Reply(calls=(Call("create_task", {"text": said(turn)}),))


@pytest.mark.parametrize("place", PLACES)
async def test_killed_anywhere_it_is_answered_once(double: Double, tmp_path: Path, place: str) -> None:
    async with open_chat(double, FunctionBrain(creating), tmp_path) as chat:
        inbound = chat.write("Paint the fence")
        killed = await manager(chat, tmp_path, OPERATOR_CRASH_AT=place)
        assert killed.returncode == -signal.SIGKILL, killed.stdout
        assert chat.row(inbound)["cr_status"] == ("Processed" if place == "chat:ended" else "Claimed")
        await grow_old(double, inbound)
        done = await manager(chat, tmp_path)
        assert done.returncode == 0, done.stdout
        assert "Done. Created task" in chat.answer(inbound)
        assert len(double.tables[TASKS]) == 1
        asked = 4 if place in ("chat:found",) else 2
        assert len(chat.server.model_calls()) == asked


async def test_killed_while_the_model_works(double: Double, tmp_path: Path) -> None:
    """The task was made already; the next manager makes no second one, whatever its model says this time."""
    asked = 0

    def brain(turn: Turn) -> Reply:
        nonlocal asked
        asked += 1
        if not turn.results:
            return Reply(calls=(Call("create_task", {"text": f"request {asked}"}),))
        return Reply(text="ok", delay_s=60.0 if asked == 2 else 0.0)

    async with open_chat(double, FunctionBrain(brain), tmp_path) as chat:
        inbound = chat.write("Paint the fence")
        process = start(chat, tmp_path)
        for _ in range(600):
            if len(chat.server.model_calls()) == 2:
                break
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.communicate)
        assert asked == 2
        await grow_old(double, inbound)
        done = await manager(chat, tmp_path)
        assert done.returncode == 0, done.stdout
        assert chat.answer(inbound) == "ok"
        (task,) = double.tables[TASKS].where()
        assert task["cr_prompt"] == "request 1"


async def grow_old(double: Double, row_id: str) -> None:
    moment = clock.now() - timedelta(seconds=400)
    double.store.backdate(CHAT, row_id, {"modifiedon": moment.strftime("%Y-%m-%dT%H:%M:%SZ")})


def start(chat: Chat, folder: Path, **env: str) -> subprocess.Popen[str]:
    """``operator-dataverse chat personal run --once`` as a process of its own."""
    config = folder / "operator.toml"
    config.write_text(
        f'[model]\nengine = "scripted"\nbase_url = "{chat.server.base_url}"\n'
        f'[dataverse]\nurl = "{chat.double.url}"\nuser = "{ALICE}"\nbox = "box-1"\n'
    )
    words = ["--db", str(folder / "chat.db"), "--config", str(config), "chat", "personal", "run", "--once"]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "operator_dataverse", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "DATAVERSE_TOKEN": chat.double.token, **env},
    )


async def manager(chat: Chat, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    process = start(chat, folder, **env)
    out, _ = await asyncio.to_thread(process.communicate, timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out)
