"""``kill -9`` of the reporting at every instruction that matters, and storms: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from operator_core.model.entry import Draft, EntryKind
from operator_dataverse.double import Double
from operator_dataverse.double.faults import Fault
from tests.support.dataverse import double  # noqa: F401
from tests.support.reporting import Scene, open_scene

# One process of the reporting: it tells what is in the store, until nothing is left, or until it is killed.
REPORTER = """
import asyncio, os, sys
from operator_core.db.engine import Database
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.errors import DataverseError
from operator_dataverse.reporting import Reporter
from operator_dataverse.settings import DataverseSettings
from tests.support.reporting import BOX, PERSON, desk_of

async def main():
    store, url, token, forever = sys.argv[1:]
    mine = DataverseSettings(
        url=url, user=PERSON, box=BOX, message_s=0, messages_per_minute=60000, retry_s=2, onedrive=False
    )
    async with Database.open(store) as database, Dataverse(url, StaticToken(token), retry_s=2) as dataverse:
        while True:
            try:
                desk = await desk_of(database, dataverse, mine, [])
                break
            except DataverseError:
                pass  # a worker tries again, too
        reporter = Reporter(desk, lease_s=0.8)
        if forever == "1":
            await reporter.run(asyncio.Event())
        sys.exit(min(1, await reporter.drain(60)))

asyncio.run(main())
"""


async def start(scene: Scene, store_url: str, *, forever: bool = False, **env: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", REPORTER, store_url, scene.double.url, scene.double.token, str(int(forever))),
        env={**os.environ, **env},
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
    )


async def whole_task(scene: Scene, texts: int) -> None:
    await scene.task()
    await scene.begin()
    await scene.prepare()
    for n in range(texts):
        await scene.say(f"text {n}")
        if n % 3 == 2:
            verdict = {"kind": "refuted", "why": f"no {n}"}
            await scene.write(
                Draft(EntryKind.VERDICT, "refuted", f"no {n}", body=verdict, phase=f"verifier_{n % 9 + 1}")
            )


def judge(scene: Scene, texts: int) -> None:
    """Everything is there, in its order, and no row was written more often than it was meant to."""
    row = scene.row
    assert row["cr_status"] == 7
    assert row["cr_result"] == "It is mended."
    said = [line["message"] for line in map(json.loads, row["cr_transcript"].splitlines())]
    assert [line for line in said if line.startswith("text")] == [f"text {n}" for n in range(texts)]
    told = "\n".join(scene.messages).splitlines()
    assert [line for line in told if line.startswith("text")] == [f"text {n}" for n in range(texts)]
    assert told[-2:] == ["Task completed: Mend it", "It is mended."]
    assert not [text for text, count in Counter(scene.messages).items() if count > 1]
    history = scene.double.history
    changes = [effect.new for effect in history.effects("cr_shraga_tasks", scene.row_id, "updated")]
    written = [tuple(sorted(set(new) - {"modifiedon"})) for new in changes]
    assert len([new for new in changes if new.get("cr_status") == 7]) == 1
    assert len([names for names in written if "cr_transcript" in names]) == 1
    assert len([names for names in written if "cr_result" in names]) == 1
    assert len([names for names in written if "crb3b_shortdescription" in names]) == 1
    assert scene.wrote("cr_status") == [5, 7]
    made = history.effects("cr_shragamessages", None, "created")
    assert len({effect.row_id for effect in made}) == len(made)
    assert not history.effects("cr_shragamessages", None, "updated")


def wrote(scene: Scene) -> int:
    """How often the row was written."""
    return sum(
        request.method == "PATCH" and scene.row_id in request.path and bool(request.effects)
        for request in scene.double.history
    )


@pytest.mark.deep
async def test_killed_at_every_place_it_loses_and_repeats_nothing(
    double: Double,  # noqa: F811
    tmp_path: Path,
) -> None:
    store_url = str(tmp_path / "operator.db")
    log = tmp_path / "crashes"
    async with open_scene(double, store_url) as scene:
        await whole_task(scene, 4)
        await scene.end()
        for place in range(1, 200):
            process = await start(scene, store_url, OPERATOR_CRASH_AT=str(place), OPERATOR_CRASH_LOG=str(log))
            _, errors = await process.communicate()
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, errors.decode()
        crashes = log.read_text().split()
        print(f"{len(crashes)} deaths: {crashes}")
        # Of what the couriers do at once, it is left to chance which place is the n-th; the next test names them.
        assert {"projection.read", "projection.put"} <= set(crashes)
        assert any(place.startswith("outbox.") for place in crashes)
        judge(scene, 4)
        assert wrote(scene) == 1 + 5, "the claim, two on the way, and state, result and transcript"
        assert await scene.problems() == []


async def test_each_place_of_a_letter_can_be_the_last(double: Double, tmp_path: Path) -> None:  # noqa: F811
    """One letter after the other, each killed where it is most likely to be done twice: after its effect."""
    store_url = str(tmp_path / "operator.db")
    async with open_scene(double, store_url) as scene:
        await whole_task(scene, 3)
        await scene.end()
        for place in (
            *("projection.put", "projection.committed", "outbox.deliver.after:create", "delivery.patched"),
            *("outbox.deliver.after:create", "outbox.deliver.after:patch", "outbox.deliver.after:settle"),
        ):
            process = await start(scene, store_url, OPERATOR_CRASH_AT=place)
            _, errors = await process.communicate()
            assert process.returncode == -signal.SIGKILL, (place, errors.decode())
        process = await start(scene, store_url)
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        judge(scene, 3)
        assert wrote(scene) == 1 + 5


@pytest.mark.deep
async def test_in_a_storm_with_processes_that_die_nothing_is_lost_or_doubled(
    double: Double,  # noqa: F811
    store_url: str,
) -> None:
    rng = random.Random(11)
    texts, kills = 60, 0
    async with open_scene(double, store_url) as scene:
        await scene.task()
        double.faults.storm(0.3)
        double.faults.add(Fault("drop_answer", 0.1, None, "PATCH"))
        double.faults.add(Fault("drop_request", 0.05))
        await scene.begin()
        await scene.prepare()
        reporters = [await start(scene, store_url, forever=True) for _ in range(2)]
        for n in range(texts):
            await scene.say(f"text {n}")
            await asyncio.sleep(0.15)
            if n % 12 == 11:
                victim = reporters.pop(rng.randrange(2))
                victim.kill()
                await victim.communicate()
                kills += 1
                reporters.append(await start(scene, store_url, forever=True))
        await scene.end()
        for victim in reporters:
            victim.kill()
            await victim.communicate()
        process = await start(scene, store_url)
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        statuses = Counter(request.status for request in double.history)
        print(f"{kills + 2} deaths; answers: {dict(statuses)}")
        assert statuses[429] + statuses[503] > 0
        judge(scene, texts)
        assert await scene.problems() == []
