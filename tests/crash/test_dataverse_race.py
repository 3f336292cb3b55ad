"""Many worker processes want the same rows over HTTP: each row is claimed once, by one of them (row B-068)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_dataverse.double import Double
from tests.support.dataverse import double
from tests.support.dataverse_worker import ALICE
from tests.support.depth import DEEP
from tests.support.processes import operator_environment

__all__ = ["double"]

TASKS = "cr_shraga_tasks"
RACERS, ROWS = (16, 200) if DEEP else (8, 60)

# Each looks until nothing is pending any more; what it prints is what it believes to have.
RACER = """
import asyncio, sys
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.intake.desk import open_desk
from operator_dataverse.intake.poll import poll_pending_tasks
from operator_dataverse.errors import Throttled, Unreachable
from operator_dataverse.intake.rounds import Rounds
from operator_dataverse.intake.state import SOURCE
from operator_dataverse.settings import DataverseSettings

url, token, store, box, user = sys.argv[1:]

async def race():
    settings = Settings(store={"url": store}, worker={"name": box, "concurrency": 1000})
    mine = DataverseSettings(url=url, user=user, box=box)
    async with Database.open(store) as database, Dataverse(url, StaticToken(token)) as client:
        desk = await open_desk(settings, mine, database, client, lambda line: None)
        rounds = Rounds(desk)
        print("ready", flush=True)
        sys.stdin.readline()
        while True:
            try:
                await rounds.look()
                waiting = [row async for row in poll_pending_tasks(desk)]
            except (Throttled, Unreachable):
                continue  # as a worker does: the next round makes good what this one left
            begun = await desk.links.list(SOURCE, owner=box, unsettled=True, without_ticket=True)
            if not waiting and not begun:
                print(len(await desk.tickets.list_tickets(limit=10_000)))
                return

asyncio.run(race())
"""


def race(server: Double, stores: list[str], boxes: list[str]) -> list[int]:
    """Let one process run for each of the boxes; how many tickets each has in its store at the end."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, server.url, server.token, store, box, ALICE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=operator_environment(),
        )
        for store, box in zip(stores, boxes, strict=True)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n", racer.communicate()[1]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        answers = [racer.communicate(timeout=300) for racer in racers]
        for racer, (_, err) in zip(racers, answers, strict=True):
            assert racer.returncode == 0, err
        return [int(out.split()[-1]) for out, _ in answers]
    finally:
        for racer in racers:
            if racer.poll() is None:
                racer.kill()
                racer.communicate()


def seed(server: Double, n: int) -> list[str]:
    return [
        server.seed(TASKS, cr_name=f"Task {i}", cr_prompt="Do it.", cr_status=1, crb3b_useremail=ALICE)
        for i in range(n)
    ]


def claims(server: Double, row_id: str) -> list[dict[str, Any]]:
    """Every successful claim of a row, from the history of the server."""
    return [
        dict(effect.new)
        for effect in server.history.effects(TASKS, row_id)
        if effect.kind == "updated" and effect.new.get("cr_status") == 5
    ]


async def tickets_in(store: str) -> int:
    async with Database.open(store) as database:
        return len(await TicketDB(database).list_tickets(limit=10_000))


@pytest.mark.parametrize("storm", [False, True], ids=["calm", "storm"])
def test_each_row_goes_to_one_of_many_boxes(double: Double, tmp_path: Path, storm: bool) -> None:
    rows = seed(double, ROWS if not storm else ROWS // 4)
    boxes = [f"box-{number}" for number in range(RACERS if not storm else RACERS // 2)]
    stores = [str(tmp_path / f"{box}.db") for box in boxes]
    if storm:
        double.faults.storm(0.3)
        double.faults.drop_answer(times=len(rows) // 4, method="PATCH", rate=0.2)
    taken = race(double, stores, boxes)
    print(f"rows taken by each process: {dict(zip(boxes, taken, strict=True))}")
    won = [claims(double, row_id) for row_id in rows]
    assert [len(each) for each in won] == [1] * len(rows)
    owners = Counter(str(each[0]["crb3b_devbox"]) for each in won)
    print(f"claims by box, as the server saw them: {json.dumps(owners)}")
    assert {box: owners[box] for box in boxes} == dict(zip(boxes, taken, strict=True))
    counts = [asyncio.run(tickets_in(store)) for store in stores]
    assert counts == taken


def test_processes_of_one_box_with_one_store_make_one_ticket_of_each_row(double: Double, store_url: str) -> None:
    rows = seed(double, ROWS // 2)
    processes = RACERS // 2
    taken = race(double, [store_url] * processes, ["box-1"] * processes)
    assert [len(claims(double, row_id)) for row_id in rows] == [1] * len(rows)
    assert asyncio.run(tickets_in(store_url)) == len(rows)
    assert sum(taken) >= len(rows)
