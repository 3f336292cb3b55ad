"""The HTTP API does what its OpenAPI document says, whatever is sent: judged by schemathesis, a program of others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.model.person import Role
from tests.support.processes import operator_environment
from tests.support.store import finish, start_work
from tests.support.web import Served, served

BIN = Path(sys.executable).parent
LIVE = "stream$"
"""Streams do not end: `test_api_live.py` is about them."""

# What is right by its shape may still be refused for what it says: a branch that is not there, a page of another list.
BY_MEANING = (
    "/api/v1/tasks",
    "/api/v1/incidents",
    "/api/v1/tickets",
    "/api/v1/sessions",
    "/api/v1/approvals",
    "/api/v1/tokens",
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A server with tickets in several states and a session."""

    async def fill() -> None:
        async with Database.open(tmp_path / "o.db") as database:
            await finish(await start_work(database, entries=12))
            await start_work(database, entries=3)
            for n in range(4):
                await TicketDB(database).open_ticket(f"t{n}", "\x1b[31m<b>hostile</b>\u202e", labels={"team": "a"})

    asyncio.run(fill())
    with served(tmp_path / "o.db") as found:
        yield found


def judge(server: Served, folder: Path, token: str | None, *options: str, config: str = "", seconds: int = 60) -> str:
    """What schemathesis says; it fails the test when it finds something."""
    allowed = "\n".join(
        f"""
        [[operations]]
        include-path-regex = "^{path}"
        checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "409", "422"]
        """
        for path in BY_MEANING
    )
    # Who is nobody is told so, and nothing else.
    nobody = (
        "" if token else "[checks]\npositive_data_acceptance.enabled = false\nnegative_data_rejection.enabled = false"
    )
    (folder / "schemathesis.toml").write_text(f"{config}\n{nobody}\n{allowed}")
    words = [
        str(BIN / "schemathesis"),
        "--config-file",
        str(folder / "schemathesis.toml"),
        "run",
        f"{server.url}/api/v1/openapi.json" if token else str(folder / "openapi.json"),
        "--url",
        server.url,
        "--exclude-path-regex",
        LIVE,
        "--seed",
        "1",
        "--generation-database",
        "none",
        "--max-time",
        str(seconds),
        "--no-color",
        "--warnings",
        "off",
        *options,
    ]
    if token:
        words += ["-H", f"Authorization: Bearer {token}"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=240, check=False, cwd=folder, env=operator_environment()
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_everything_that_a_program_may_send(server: Served, tmp_path: Path) -> None:
    said = judge(server, tmp_path, server.tokens[Role.ADMIN], "--phases", "examples,coverage")
    assert "Tested: " in said


@pytest.mark.deep
def test_what_there_is_with_chance(server: Served, tmp_path: Path) -> None:
    async def session() -> str:
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {server.tokens[Role.VIEWER]}"}) as client:
            page = (await client.get(f"{server.url}/api/v1/sessions")).json()
            return str(page["items"][0]["session_id"])

    config = f'[parameters]\nticket_id = 3\nsession_id = "{asyncio.run(session())}"\n'
    options = ("--phases", "fuzzing", "--max-examples", "8", "--include-path-regex", "tickets|sessions|audit|costs")
    judge(server, tmp_path, server.tokens[Role.OPERATOR], *options, config=config, seconds=20)


@pytest.mark.deep
def test_nobody_is_told_nothing(server: Served, tmp_path: Path) -> None:
    async def document() -> str:
        async with httpx2.AsyncClient() as client:
            url = f"{server.url}/api/v1/openapi.json"
            assert (await client.get(url)).status_code == 401
            answer = await client.get(url, headers={"Authorization": f"Bearer {server.tokens[Role.VIEWER]}"})
            return answer.text

    text = asyncio.run(document())
    assert json.loads(text)["openapi"].startswith("3.1")
    (tmp_path / "openapi.json").write_text(text)
    judge(
        server,
        tmp_path,
        None,
        "--phases",
        "fuzzing",
        "--max-examples",
        "1",
        "--include-path-regex",
        "^/api/",
        seconds=20,
    )
