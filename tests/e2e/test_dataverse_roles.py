"""The whole way with the security roles of ``docs/dataverse.md``: a worker sees its person's rows and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_core.scripted import ScriptedProcess
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.fleet.tasks import Tasks
from operator_dataverse.flows import flow_named
from tests.support.dataverse_brain import ANSWER
from tests.support.dataverse_worker import ALICE, DataverseWorker
from tests.support.flows import Chat, run_flow

TASKS, MESSAGES = "cr_shraga_tasks", "cr_shragamessages"
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def model() -> Iterator[ScriptedProcess]:
    with ScriptedProcess(f"{SUPPORT / 'dataverse_brain.py'}:asks") as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("answered", ["by the global chat", "by the flow"])
def test_a_task_from_the_global_chat_and_back(model: ScriptedProcess, tmp_path: Path, answered: str) -> None:
    with Double() as double:
        alice = double.add_account(ALICE, reach="own")
        overall = double.add_account("global@example.com")
        mallory = double.add_account("mallory@example.com", reach="own")

        async def give() -> str:
            async with Dataverse(double.url, StaticToken(overall.token)) as client:
                return (await Tasks(client, user=ALICE).create("Make hello.")).id

        async def answer(task: str) -> None:
            async with Dataverse(double.url, StaticToken(overall.token)) as client:
                await Tasks(client, user=ALICE).answer(task, ANSWER)

        task = asyncio.run(give())
        with DataverseWorker(tmp_path / "box", double, model.base_url, token=alice.token) as worker:
            assert worker.finish() == 0, worker.text()
            assert double.tables[TASKS][task]["cr_status"] == 6, worker.text()
            said = {"cr_name": "x", "cr_content": "stop", "cr_from": ALICE, "cr_to": "box-1", "crb3b_taskid": task}
            double.seed(MESSAGES, account=mallory, **said)
            if answered == "by the flow":
                chat = Chat(answer=lambda card: ({"answer": ANSWER}, ALICE))
                run_flow(flow_named("AnswerTask"), double, chat, {"cr_shraga_taskid": task}, overall.token)
            else:
                asyncio.run(answer(task))
            assert worker.finish() == 0, worker.text()
        row = double.tables[TASKS][task]
        assert (row["cr_status"], row["_ownerid_value"]) == (7, alice.user_id), worker.text()
        assert "stop" not in str(row["cr_transcript"])
        assert {one["_ownerid_value"] for one in double.tables[MESSAGES].where(cr_from="Integrated Task Worker")} == {
            alice.user_id
        }
        print(double.history.text())
