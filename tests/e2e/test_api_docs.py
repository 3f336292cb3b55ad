"""`docs/api.md` is true: each of its requests is sent to a server, and each address of the API is in it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_core.db.engine import Database
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.person import Role
from operator_core.model.ticket import TicketStatus
from operator_core.web.access import ACCESS
from tests.support.processes import operator_environment
from tests.support.store import finish, start_work
from tests.support.web import served

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ELSEWHERE = ("/api/v1/approvals", "/api/v1/intake", "/api/v1/openapi.json", "/api/v1/tokens/", "/api/v1/mcp")
"""Described on other pages."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


def requests() -> list[str]:
    """Each request of the page, with the lines that belong to it."""
    text = "".join(blocks("bash"))
    return [found.strip() for found in re.split(r"^(?=curl )", text, flags=re.M) if found.strip()]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A server whose tickets are those of the page: #1 has ended, #2 waits for an answer, #3 is being worked on."""

    async def fill() -> tuple[str, str]:
        async with Database.open(tmp_path / "o.db") as database:
            ended = await start_work(database, entries=12)
            await ended.journal.append(
                Draft(EntryKind.BASELINE, "before", body={"snapshot": {}, "seen_red": True}),
                Draft(EntryKind.OUTCOME, "done", "done", meta={"outcome": "proposed"}),
            )
            await ended.journal.append(Draft(EntryKind.REPORT, "It was done.", "# Report", body={"headline": "Done"}))
            await finish(ended, TicketStatus.ESCALATED)
            waiting = await start_work(database, entries=1)
            await waiting.queue.park(waiting.claim, 0)
            running = await start_work(database, entries=1)
            return ended.session_id, running.claim.worker

    session, worker = asyncio.run(fill())
    with served(tmp_path / "o.db") as server:
        yield {
            **operator_environment(),
            "OPERATOR_SERVER": server.url,
            "OPERATOR_TOKEN": server.tokens[Role.ADMIN],
            "SESSION": session,
            "WORKER": worker,
        }


def test_every_request_is_answered(environment: dict[str, str]) -> None:
    found = requests()
    assert len(found) > 30
    for request in found:
        done = subprocess.run(
            ["bash", "-c", request], capture_output=True, text=True, timeout=60, check=False, env=environment
        )
        assert done.returncode == 0, f"{request}\n{done.stdout}\n{done.stderr}"
        if "stream" in request:
            assert "event: " in done.stdout
        else:
            assert json.loads(done.stdout) is not None, request


def test_the_program_runs(environment: dict[str, str]) -> None:
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "#4 is open"
    assert [int(line.split()[0]) for line in lines[1:]] == list(range(len(lines) - 1))


def test_every_address_is_described() -> None:
    used = {re.sub(r"[?].*", "", path) for path in re.findall(r"\$OPERATOR_SERVER(/[^\"]*)", PAGE.read_text("utf-8"))}
    for _, path in ACCESS:
        if path.startswith("/api/v1/") and not path.startswith(ELSEWHERE):
            shape = re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(path)))
            assert any(shape.fullmatch(address) for address in used), f"docs/api.md does not show {path}"
