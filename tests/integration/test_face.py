"""The face of a process: what fails in one part of it leaves the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import insert, select

from operator_core import clock
from operator_core.announce.projection import CHANNELS
from operator_core.cli.face import Face, console_beside
from operator_core.config import LoadedSettings, Settings
from operator_core.db.engine import Database
from operator_core.db.schema import outbox, tokens
from operator_core.db.tokens import Tokens
from operator_core.http_server import listen
from operator_core.model.person import Role
from tests.support import wait_until_async


async def test_who_is_shown_things_does_not_depend_on_who_is_told(tmp_path: Path) -> None:
    lines: list[str] = []
    settings = Settings()
    async with Database.open(tmp_path / "operator.db") as database:
        # A letter that nobody can read: it ends the one who carries letters.
        letter = {"channel": f"{CHANNELS}chat", "dedupe_key": "k", "kind": "x", "body": "sk-ant-" + "x" * 40}
        async with database.begin() as connection:
            await connection.execute(insert(outbox).values(**letter, created_at=clock.iso()))
        stop = asyncio.Event()
        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        face = Face(LoadedSettings(settings, {}, None), database, say=lines.append)
        running = asyncio.create_task(face.run(stop, listener))
        async with httpx2.AsyncClient() as client:

            async def failed() -> bool:
                return bool((await client.get(f"{url}/readyz")).json()["courier"] == "failed")

            await wait_until_async(failed, 20)
            assert (await client.get(f"{url}/readyz")).status_code == 503
            assert (await client.get(f"{url}/livez")).status_code == 200
        assert [line for line in lines if line.startswith("[Notify] Nobody is told anything any more (JSONDecodeError")]
        stop.set()
        await running


async def test_without_a_socket_nothing_is_shown_and_no_token_made(tmp_path: Path) -> None:
    lines: list[str] = []
    async with Database.open(tmp_path / "operator.db") as database:
        stop = asyncio.Event()
        running = asyncio.create_task(
            Face(LoadedSettings(Settings(), {}, None), database, say=lines.append).run(stop, None)
        )
        await asyncio.sleep(0)
        stop.set()
        await running
        assert lines == []
        assert await database.fetch(select(tokens)) == []


@pytest.mark.parametrize("fresh", [True, False])
async def test_a_console_beside_something_else_knows_its_store_and_the_token_that_it_made(
    tmp_path: Path, fresh: bool
) -> None:
    lines: list[str] = []
    async with Database.open(tmp_path / "of-the-demo.db") as database:
        token = None if fresh else (await Tokens(database).create("mine", Role.ADMIN, by="test")).text
        async with (
            console_beside(Settings(), database, lines.append) as console,
            httpx2.AsyncClient(base_url=console.url) as client,
        ):
            await wait_until_async(lambda: any("Console and API at" in line for line in lines), 20)
            assert (console.token() in lines) if fresh else (console.token() is None)
            headers = {"Authorization": f"Bearer {token or console.token()}", "Accept": "text/html"}
            page = (await client.get("/settings", headers=headers)).text
    assert "of-the-demo.db" in page, "the store that it is, not that of the configuration"
    assert "this command" in page
