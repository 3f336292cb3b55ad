"""Tools of MCP servers in every sandbox: the server's process is really in it, and its death is a result."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from operator_core.model.entry import EntryKind
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Turn
from tests.crash.test_mcp_kill import kill_at
from tests.support import Unprivileged
from tests.support.mcp_plain import PLAIN
from tests.support.rig import PROPOSE, Rig, command, open_rig


@pytest.fixture(params=["bubblewrap", "docker"])
def sandbox(request: pytest.FixtureRequest) -> dict[str, Any]:
    """``[sandbox]`` for each backend in which something can listen."""
    if request.param == "docker":
        return {"backend": "docker", "docker_image": request.getfixturevalue("docker_image")}
    request.getfixturevalue("require_bubblewrap")
    return {"backend": request.param}


def server(sandbox: dict[str, Any], **values: Any) -> dict[str, Any]:
    python = "python3" if sandbox["backend"] == "docker" else sys.executable
    given = {"name": "desk", "command": python, "args": [PLAIN], "readable": [str(Path(PLAIN).parent)]}
    return {**given, "timeout_s": 20.0, "start_timeout_s": 60.0, **values}


def calling(*calls: Call) -> Brain:
    """Makes each call in a turn of its own, then repairs and ends."""

    def reply(turn: Turn) -> Reply:
        if turn.step < len(calls):
            return Reply(calls=(calls[turn.step],))
        return Reply(calls=(command("touch fixed"),)) if turn.step == len(calls) else PROPOSE

    return FunctionBrain(reply)


async def results(rig: Rig) -> list[dict[str, Any]]:
    entries = [e for e in await rig.journal() if e.entry_type == EntryKind.TOOL_RESULT]
    return [json.loads(e.raw_content or "{}") for e in entries if (e.tool_name or "").startswith("desk__")]


async def test_its_process_is_in_the_sandbox(
    sandbox: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOUSE_KEY", "sesame-open-1234567890")
    outside = tmp_path / "outside"
    outside.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        calls = [
            Call("desk__who", {}),
            Call("desk__note", {"file": "here"}),
            Call("desk__note", {"file": str(outside / "there")}),
            Call("desk__reach", {"host": "127.0.0.1", "port": port}),
        ]
        async with open_rig(calling(*calls), tmp_path, sandbox=sandbox, mcp_server=[server(sandbox)]) as rig:
            ticket = await rig.solve()
            assert ticket.status is TicketStatus.RESOLVED, (ticket.diagnosis, rig.lines)
            who, here, _, reach = await results(rig)
            assert json.loads(who["result"])["secret"] == "(not set)"
            assert here == {"result": "noted"}
            assert (rig.workspace / "here").read_text() == "x\n"
            assert list(outside.iterdir()) == [], "what it wrote elsewhere is nowhere"
            assert "error" in reach, "it reached this machine"
            assert "sesame" not in str(rig.sent())
            await rig.assert_faithful()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_its_death_and_its_silence_are_results_and_it_starts_anew(
    sandbox: dict[str, Any], tmp_path: Path
) -> None:
    note = Call("desk__note", {"file": "noted"})
    calls = [Call("desk__die", {}), note, Call("desk__hang", {"file": "hung"}), note]
    desk = server(sandbox, timeout_s=3.0)
    async with open_rig(calling(*calls), tmp_path, sandbox=sandbox, mcp_server=[desk]) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED, (ticket.diagnosis, rig.lines)
        died, first, hung, second = await results(rig)
        assert "ended during the call" in died["error"]
        assert "did not answer within 3 s" in hung["error"]
        assert first == second == {"result": "noted"}
        assert (rig.workspace / "noted").read_text() == "x\n" * 2
        assert (rig.workspace / "hung").read_text() == "x\n"
        await rig.assert_faithful()


@pytest.mark.broad
@pytest.mark.parametrize("place", ["gateway.started", "gateway.executed", "gateway.published"])
async def test_a_call_is_made_at_most_once_though_its_worker_is_killed(
    sandbox: dict[str, Any], place: str, tmp_path: Path
) -> None:
    """And the server, which hangs with its worker, is gone too: nothing of it goes on writing."""
    store = str(tmp_path / "operator.db")
    brain = calling(Call("desk__note", {"file": "noted"}))
    async with open_rig(brain, tmp_path, store=store, sandbox=sandbox, mcp_server=[server(sandbox)]) as rig:
        number = await rig.incident()
        await kill_at(rig, store, place, tmp_path)
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.status is TicketStatus.RESOLVED, (ticket.diagnosis, rig.lines)
        (result,) = await results(rig)
        noted = rig.workspace / "noted"
        times = noted.read_text().count("x") if noted.exists() else 0
        if place == "gateway.published":
            assert (times, result) == (1, {"result": "noted"})
        else:
            assert times == (place == "gateway.executed")
            assert "outcome unknown, check before repeating" in result["error"]
        await rig.assert_faithful()


@pytest.mark.skipif(os.geteuid() == 0, reason="landlock does not hold root; `test_as_somebody_else` runs it")
async def test_landlock_has_none_and_says_so(tmp_path: Path, require_landlock: None) -> None:
    """No socket may be made in it, so there is no way to a server; the session goes on, and both are told."""
    sandbox: dict[str, Any] = {"backend": "landlock"}
    brain = calling(Call("desk__note", {"file": "noted"}))
    async with open_rig(brain, tmp_path, sandbox=sandbox, mcp_server=[server(sandbox)]) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED, (ticket.diagnosis, rig.lines)
        (line,) = [line for line in rig.lines if line.startswith("[MCP]")]
        assert line.endswith("nothing can listen in it; use bubblewrap or docker")
        start = next(e for e in await rig.journal() if e.entry_type == EntryKind.SESSION_START)
        assert "The MCP server desk is not there" in start.body["system"]
        assert not (rig.workspace / "noted").exists()


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_as_somebody_else(unprivileged: Unprivileged, require_landlock: None) -> None:
    """As a user whom landlock holds."""
    words = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", "landlock", "tests/integration/test_mcp_sandboxes.py"]
    done = unprivileged.run(sys.executable, "-m", "pytest", *words, timeout=250)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "1 passed" in done.stdout
