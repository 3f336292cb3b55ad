"""``docs/mcp.md`` is tried: its server runs, its client is answered, its tables name everything."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from operator_core.api.local import LocalApi
from operator_core.config import Settings, load_settings
from operator_core.db.engine import Database
from operator_core.http_server import listen
from operator_core.mcp.http import StoreGate, serve_http
from operator_core.mcp.tools import TOOLS
from operator_core.model.entry import EntryKind
from operator_core.model.mcp import McpServer
from operator_core.model.person import Actor, Role
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Call, FunctionBrain, Reply
from tests.support import run_operator
from tests.support.processes import operator_environment
from tests.support.rig import PROPOSE, command, open_rig
from tests.support.web import make_tokens

TEXT = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def test_the_tables_name_everything() -> None:
    named = re.findall(r"^\| `(\w+)` \|", TEXT, re.M)
    assert named == [*(tool.name for tool in TOOLS), *McpServer.model_fields]


async def test_its_server_is_a_tool_of_an_agent(tmp_path: Path) -> None:
    (source,) = blocks("python")
    (tmp_path / "rota.py").write_text(source)
    (configured,) = blocks("toml")
    (tmp_path / "operator.toml").write_text(configured)
    rota = load_settings(tmp_path / "operator.toml", environ={}).settings.mcp_server[0]
    there = rota.model_copy(update={"command": sys.executable, "args": (str(tmp_path / "rota.py"),)})

    def reply(turn: Any) -> Reply:
        if turn.step == 0:
            return Reply(calls=(Call("rota__on_call", {"team": "storage"}),))
        return Reply(calls=(command("touch fixed"),)) if turn.step == 1 else PROPOSE

    async with open_rig(FunctionBrain(reply), tmp_path, mcp_server=[there.model_dump()]) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED, rig.lines
        results = [e for e in await rig.journal() if e.entry_type == EntryKind.TOOL_RESULT]
        assert [e.raw_content for e in results if e.tool_name == "rota__on_call"] == ['{"result": "ann"}']


async def test_a_program_that_has_it_in_its_list_is_answered(tmp_path: Path) -> None:
    (block,) = blocks("json")
    named = json.loads(block)["mcpServers"]["operator"]
    assert named["command"] == "operator"
    made = await asyncio.to_thread(run_operator, "--db", "operator.db", "tickets", "open", "x", "y", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    words = ["-m", "operator_core", *named["args"]]
    server = StdioServerParameters(command=sys.executable, args=words, env=operator_environment(), cwd=tmp_path)
    async with Client(server) as client:
        result = await client.call_tool("list", {})
        assert result.structured_content is not None
        assert len(result.structured_content["tickets"]) == 1


async def test_curl_is_answered(tmp_path: Path) -> None:
    answers = []
    async with Database.open(tmp_path / "operator.db") as database:
        api = LocalApi(database, Settings(), Actor("test", Role.ADMIN))
        token = (await make_tokens(database))[Role.VIEWER]
        stop, listener = asyncio.Event(), listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        serving = asyncio.create_task(
            serve_http(StoreGate(api), listener, stop, lambda line: None, write=False, most=100_000)
        )
        try:
            for script in blocks("sh")[1:]:
                process = await asyncio.create_subprocess_exec(
                    "bash",
                    "-c",
                    script.replace("8643", str(port)),
                    env=operator_environment() | {"OPERATOR_TOKEN": token},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                )
                answers.append((await asyncio.wait_for(process.communicate(), 30))[0])
        finally:
            stop.set()
            await serving
    listed, begun = (json.loads(answer)["result"] for answer in answers)
    assert listed["structuredContent"] == {"tickets": [], "next": None}
    assert (begun["protocolVersion"], begun["serverInfo"]["name"]) == ("2025-06-18", "operator")
    assert "tools" in begun["capabilities"]
