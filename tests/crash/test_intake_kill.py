"""``kill -9`` while a delivery is taken: afterwards all of it is there or nothing, and its second try does the rest."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from tests.support.webhooks import SAMPLES, SECRETS, alerts, bearer, from_github

# The store, the configuration, the door, the headers and the body.
TAKE = """
import asyncio, json, os, sys
from pathlib import Path
from operator_core.config import load_settings
from operator_core.db.engine import Database
from operator_core.intake.reception import Reception

async def main():
    url, config, door, headers, body = sys.argv[1:]
    async with Database.open(url) as database:
        reception = Reception(database, load_settings(Path(config), environ={}).settings)
        receipt = await reception.receive(door, json.loads(headers), Path(body).read_bytes())
    print(receipt.model_dump_json())

asyncio.run(main())
"""
GITHUB = """
[[intake]]
name = "github"
kind = "github"
secret_env = "GITHUB_WEBHOOK_SECRET"
[intake.github]
label = "operator"
repository = [{name = "example-org/shop", url = "https://git.example.com/shop.git", ref = "%s"}]
"""


@pytest.mark.parametrize("door", ["alerts", "github"])
async def test_nothing_is_half_taken_and_nothing_twice(store_url: str, tmp_path: Path, door: str) -> None:
    body, log = tmp_path / "body", tmp_path / "crashes"
    if door == "alerts":
        config, wanted = SAMPLES / "operator.toml", 3
        body.write_bytes(alerts(*({"fingerprint": f"{n:016x}"} for n in range(wanted))))
        headers = bearer()
    else:
        config, wanted = tmp_path / "operator.toml", 1
        config.write_text(GITHUB % ("a" * 40))
        body.write_bytes((SAMPLES / "github-labeled.json").read_bytes())
        headers = from_github(body.read_bytes())
    deaths, out = 0, b""
    async with Database.open(store_url) as database:
        for place in range(1, 20):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", TAKE, store_url, str(config), door, json.dumps(headers), str(body)),
                env={**os.environ, **SECRETS, "OPERATOR_CRASH_AT": str(place), "OPERATOR_CRASH_LOG": str(log)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            out, errors = await process.communicate()
            there = await TicketDB(database).list_tickets()
            assert len(there) in (0, wanted), "half of it"
            if process.returncode == 0:
                break
            assert process.returncode == -9, errors.decode()
            deaths += 1
    # Once per message, once before the commit, once behind it.
    assert log.read_text().split() == [*["intake.item"] * wanted, "intake.written", "intake.taken"]
    assert deaths == wanted + 2
    receipt = json.loads(out)
    assert {item["what"] for item in receipt["items"]} == ({"seen"} if door == "alerts" else {"opened"})
    assert receipt["replayed"] is (door == "github")
    async with Database.open(store_url) as database:
        assert [t.occurrence_count for t in await TicketDB(database).list_tickets()] == [1] * wanted
        assert (await verify(database)).ok
