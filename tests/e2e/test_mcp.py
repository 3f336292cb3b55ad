"""`operator mcp` as a process, asked by the official SDK: over standard input and output, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from operator_core.model.person import Role
from tests.support.processes import operator_environment
from tests.support.web import served

PROGRAM = [sys.executable, "-W", "error", "-m", "operator_core"]


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "operator.db")
    done = run("--db", path, "tickets", "open", "disk", "The disk is full.")
    assert done.returncode == 0, done.stderr
    return path


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words],
        env=operator_environment() | options.pop("env", {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **{"stdin": subprocess.DEVNULL, **options},
    )


def parameters(*words: str, **env: str) -> StdioServerParameters:
    return StdioServerParameters(command=PROGRAM[0], args=[*PROGRAM[1:], *words], env=operator_environment() | env)


async def facts(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def test_over_standard_input_and_output(store: str) -> None:
    async with Client(parameters("--db", store, "mcp")) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"list", "show", "report", "audit_verify"}
        (ticket,) = (await facts(client, "list"))["tickets"]
        assert (ticket["name"], ticket["status"]) == ("disk", "open")
        assert (await facts(client, "audit_verify"))["ok"] is True
    async with Client(parameters("--db", store, "mcp", "--write"), mode="legacy") as client:
        assert (await facts(client, "cancel", ticket_id=ticket["id"]))["status"] == "canceled"
    history = run("--db", store, "tickets", "show", str(ticket["id"]), "--json")
    assert "person (mcp)" in history.stdout


async def test_with_a_server_elsewhere(tmp_path: Path) -> None:
    with served(tmp_path / "operator.db") as there:
        words = ("--server", there.url, "mcp", "--write")
        async with Client(parameters(*words, OPERATOR_TOKEN=there.tokens[Role.OPERATOR])) as client:
            made = await facts(client, "submit", prompt="x", checks=["test -e x"])
            assert (await facts(client, "show", ticket_id=made["id"]))["check_hash"]
        async with Client(parameters(*words, OPERATOR_TOKEN=there.tokens[Role.VIEWER])) as client:
            result = await client.call_tool("submit", {"prompt": "x"})
            assert result.is_error
            assert "operator" in str(result.content)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, None])
async def test_it_ends_when_it_is_told_to(store: str, how: signal.Signals | None) -> None:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        "--db",
        store,
        "mcp",
        env=operator_environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}
    for message in (begin, request):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
        assert answer["id"] == message["id"]
        assert "result" in answer
    if how is None:
        process.stdin.close()
    else:
        process.send_signal(how)
    _, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, stderr) == (0, b"")


@asynccontextmanager
async def over_http(store: str, *words: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        "--db",
        store,
        "mcp",
        "--http",
        "--port",
        "0",
        *words,
        env=operator_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
        match = re.fullmatch(r"MCP at (http://127\.0\.0\.1:\d+/mcp)\n", line)
        assert match is not None, line
        yield match[1]
    finally:
        process.terminate()
        rest = await asyncio.wait_for(process.stderr.read(), 30)
        assert (await process.wait(), rest) == (0, b"")


async def test_over_http(store: str) -> None:
    token = run("--db", store, "token", "create", "robot", "--role", "operator", "--json")
    headers = {"Authorization": f"Bearer {json.loads(token.stdout)['token']}"}
    async with over_http(store, "--write") as url, httpx2.AsyncClient(headers=headers, timeout=30) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            assert "submit" in {tool.name for tool in (await client.list_tools()).tools}
            assert len((await facts(client, "list"))["tickets"]) == 1
        async with httpx2.AsyncClient() as stranger:
            assert (await stranger.post(url, json={})).status_code == 401


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mcp",), "speaks with the program that starts it"),
        (("mcp", "--port", "1"), "--port is for --http"),
        (("--server", "http://127.0.0.1:9", "mcp", "--db", "x"), "give one of them"),
    ],
)
def test_what_cannot_work_is_one_sentence(store: str, words: tuple[str, ...], said: str) -> None:
    done = run(*(("--db", store) if "--server" not in words else ()), *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_store_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(write)
    try:
        done = run("--db", str(tmp_path / "none.db"), "mcp", stdin=read)
    finally:
        os.close(read)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "none.db").exists()
