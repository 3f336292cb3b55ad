"""``kill -9`` of a server that tells people: whatever it dies of, everything is told, in order, and known by its id."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from tests.support.posts import http_sink
from tests.support.store import column_of

SERVER = """
import asyncio, sys
import httpx2  # not within the lease: this machine may be busy
from operator_core.announce.announcer import Announcer
from operator_core.config import Settings
from operator_core.db.engine import Database

async def main():
    async with Database.open(sys.argv[1]) as database:
        settings = Settings.model_validate_json(sys.argv[2])
        sys.exit(await Announcer(settings, database, lease_s=2.0).drain(20))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "place",
    ["announce.read", "announce.put", "announce.told", "outbox.deliver.after:ticket"],
)
async def test_the_next_server_goes_on_wherever_one_died(store_url: str, tmp_path: Path, place: str) -> None:
    async with http_sink() as sink, Database.open(store_url) as database:
        channels = [
            {"name": name, "kind": "webhook", "url": f"{sink.url}/{name}", "secret_env": "HOOK_SECRET"} for name in "ab"
        ]
        rules = [{"channels": ["a", "b"], "states": ["open"]}]
        settings = json.dumps({"notify": {"channel": channels, "rule": rules}})

        async def server(crash_at: str) -> int:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", SERVER, store_url, settings),
                env={**os.environ, "OPERATOR_CRASH_AT": crash_at, "HOOK_SECRET": "a-secret-for-webhooks"},
                stderr=subprocess.PIPE,
            )
            _, errors = await process.communicate()
            assert process.returncode in (0, -9), errors.decode()
            return process.returncode or 0

        assert await server("") == 0
        for n in range(3):
            await TicketDB(database).open_ticket(f"n{n}", "wrong")
        assert await server(place) == -9
        await TicketDB(database).open_ticket("n3", "wrong")
        assert await server("") == 0
        repeated = 0
        for name in "ab":
            posts = [post for post in sink.posts if post.path == f"/{name}"]
            numbers = [post.json()["ticket"]["ticket_id"] for post in posts]
            assert numbers == sorted(numbers), "nothing overtakes"
            assert set(numbers) == {1, 2, 3, 4}, "nothing is lost"
            ids = {post.headers["webhook-id"] for post in posts}
            assert len(ids) == 4, "a repetition has the id of the first"
            repeated += len(posts) - len(ids)
        # At most what was under way when it died: one letter of each channel.
        assert repeated <= (2 if place.startswith("outbox.") else 0)
        assert await column_of(store_url, "SELECT count(*) FROM outbox WHERE ended_at IS NULL") == [0]
