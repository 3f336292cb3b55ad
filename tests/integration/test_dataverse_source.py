"""The source beside a worker: configured or not, with a service that answers or does not, and the whole round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_core.config import Settings, StoreSettings, load_settings
from operator_core.db.engine import Database
from operator_core.errors import ModelNotUsable
from operator_core.scripted import ScriptedProcess
from operator_dataverse.client import StaticToken
from operator_dataverse.double import Double
from operator_dataverse.errors import NotConfigured, Unauthorized
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.source import DataverseSource, attach
from tests.support.dataverse import double
from tests.support.dataverse_worker import ALICE, DataverseWorker
from tests.support.processes import run_operator
from tests.support.releases import World, world
from tests.support.waiting import free_port, wait_until, wait_until_async

__all__ = ["double", "world"]

TASKS, MESSAGES = "cr_shraga_tasks", "cr_shragamessages"
BRAIN = Path(__file__).parents[1] / "support" / "task_brain.py"


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProcess]:
    with ScriptedProcess(f"{BRAIN}:hello") as server:
        yield server


def settings(tmp_path: Path, **mine: object) -> Settings:
    base = Settings(store=StoreSettings(url=str(tmp_path / "a.db")))
    return base.extended("dataverse", DataverseSettings.model_validate({"onedrive": False, **mine}))


async def test_without_configuration_there_is_no_source(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "a.db") as database:
        assert attach(settings(tmp_path), database, print) is None


@pytest.mark.parametrize(
    ("mine", "missing"),
    [({"url": "https://example.crm.dynamics.com"}, "WEBHOOK_USER"), ({"user": ALICE}, "DATAVERSE_URL")],
)
async def test_half_a_configuration_names_the_other_half(tmp_path: Path, mine: dict[str, str], missing: str) -> None:
    async with Database.open(tmp_path / "a.db") as database:
        with pytest.raises(NotConfigured, match=missing):
            attach(settings(tmp_path, **mine), database, print)


def test_a_worker_that_is_half_configured_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "operator.toml").write_text(
        '[sandbox]\nbackend = "none"\n[model]\nengine = "scripted"\nbase_url = "http://127.0.0.1:9"\n'
    )
    done = run_operator(
        "worker",
        "run",
        "--until-idle",
        db=tmp_path / "a.db",
        cwd=tmp_path,
        env={"DATAVERSE_URL": "https://example.crm.dynamics.com"},
    )
    assert done.returncode == 2, done.stderr
    assert "WEBHOOK_USER" in done.stderr


def test_the_variables_of_the_seed_are_the_settings(tmp_path: Path) -> None:
    environ = {
        "DATAVERSE_URL": "https://example.crm.dynamics.com",
        "TABLE_NAME": "org_tasks",
        "WEBHOOK_USER": ALICE,
        "WORK_BASE_DIR": str(tmp_path),
    }
    mine = load_settings(environ=environ).settings.extension("dataverse", DataverseSettings)
    assert (mine.url, mine.table, mine.user, mine.work_dir) == (
        "https://example.crm.dynamics.com",
        "org_tasks",
        ALICE,
        tmp_path,
    )


async def test_the_session_folders_go_where_they_are_configured(tmp_path: Path) -> None:
    chosen = settings(tmp_path, url="https://example.crm.dynamics.com", user=ALICE, work_dir=tmp_path / "work")
    async with Database.open(tmp_path / "a.db") as database:
        attached = attach(chosen, database, print)
    assert attached is not None
    assert attached.settings.tasks.root == tmp_path / "work"


async def test_a_service_that_does_not_answer_is_waited_for(tmp_path: Path) -> None:
    port, said = free_port(), list[str]()
    own = settings(tmp_path, url=f"http://127.0.0.1:{port}", user=ALICE, box="box-1", poll_s=0.1, retry_s=0)
    async with Database.open(tmp_path / "a.db") as database:
        mine = own.extension("dataverse", DataverseSettings)
        source = DataverseSource(own, mine, database, said.append, credential=StaticToken("secret-token-1234"))
        await source.start()
        assert "tried again" in said[-1]
        stop = asyncio.Event()
        running = asyncio.create_task(source.run(stop))
        try:
            with Double(port=port, token="secret-token-1234") as double:
                row_id = double.seed(TASKS, cr_prompt="Do it.", cr_status=1, crb3b_useremail=ALICE)
                await wait_until_async(lambda: double.tables[TASKS][row_id]["cr_status"] == 5, 20)
                stop.set()
                await asyncio.wait_for(running, 60)
        finally:
            stop.set()
            await asyncio.gather(running, return_exceptions=True)
    assert "secret-token-1234" not in "\n".join(said)


async def test_an_account_that_is_refused_does_not_start(double: Double, tmp_path: Path) -> None:
    own = settings(tmp_path, url=double.url, user=ALICE, box="box-1")
    async with Database.open(tmp_path / "a.db") as database:
        mine = own.extension("dataverse", DataverseSettings)
        source = DataverseSource(own, mine, database, print, credential=StaticToken("another"))
        with pytest.raises(Unauthorized):
            await source.start()


async def test_a_model_that_refuses_the_worker_is_told_to_its_person(double: Double, tmp_path: Path) -> None:
    own = settings(tmp_path, url=double.url, user=ALICE, box="box-1", poll_s=0.1)
    async with Database.open(tmp_path / "a.db") as database:
        mine = own.extension("dataverse", DataverseSettings)
        source = DataverseSource(own, mine, database, print, credential=StaticToken(double.token))
        await source.start()
        stop = asyncio.Event()
        running = asyncio.create_task(source.run(stop))
        await source.trouble(ModelNotUsable())
        stop.set()
        await asyncio.wait_for(running, 60)
    names = [str(row["cr_name"]) for row in double.tables[MESSAGES].values()]
    assert any("Authentication required" in name for name in names)
    assert names[-1] == "Task worker stopped"


async def test_a_new_version_ends_an_idle_worker_and_no_busy_one(double: Double, tmp_path: Path, world: World) -> None:
    commit = world.release("1.1", signed=False)
    own = settings(
        tmp_path,
        url=double.url,
        user=ALICE,
        box="box-1",
        poll_s=0.1,
        update_branch="origin/main",
        update_s=0.001,
        update_allowed=(commit,),
    )
    row_id = double.seed(TASKS, cr_prompt="Do it.", cr_status=1, crb3b_useremail=ALICE)
    async with Database.open(tmp_path / "a.db") as database:
        mine = own.extension("dataverse", DataverseSettings)
        source = DataverseSource(own, mine, database, print, credential=StaticToken(double.token), checkout=world.here)
        await source.start()
        stop = asyncio.Event()
        running = asyncio.create_task(source.run(stop))
        try:
            await wait_until_async(lambda: len(double.history.requests(containing="cr_shraga_taskid eq")) > 3, 20)
            assert (world.version, running.done()) == ("1.0", False)
            double.change(TASKS, row_id, cr_status=9)
            await asyncio.wait_for(asyncio.shield(running), 60)
        finally:
            stop.set()
            await asyncio.gather(running, return_exceptions=True)
    assert world.version == "1.1"
    # What is said of the task goes another way.
    names = [str(row["cr_name"]) for row in double.tables[MESSAGES].values() if not row.get("crb3b_taskid")]
    assert names[-2:] == ["Updating worker to new version...", "Task worker stopped"]


def test_all_rows_of_a_box_are_done_one_after_the_other(double: Double, model: ScriptedProcess, tmp_path: Path) -> None:
    given = {"cr_prompt": "Make hello.", "cr_status": 1, "crb3b_useremail": ALICE, "crb3b_devbox": "box-1"}
    rows = [double.seed(TASKS, cr_name=f"T{n}", createdon=f"2026-01-0{n}T00:00:00Z", **given) for n in (1, 2, 3)]
    with DataverseWorker(tmp_path / "box", double, model.base_url) as worker:
        assert worker.finish() == 0, worker.text()
    assert [double.history.values(TASKS, row_id, "cr_status") for row_id in rows] == [
        [5, 7],
        [3, 1, 5, 7],
        [3, 1, 5, 7],
    ]
    for row_id in rows:
        row = double.tables[TASKS][row_id]
        assert Path(row["crb3b_workingdir"]).parent.name.endswith(row_id[:8])
        assert row["cr_result"]
        assert row["cr_transcript"]
    (user,) = double.tables["crb3b_shragausers"].values()
    assert (user["crb3b_devboxname"], bool(user["crb3b_workerseen"])) == ("box-1", True)


def test_a_worker_that_is_told_to_leave_hands_its_row_to_the_next(
    double: Double, model: ScriptedProcess, tmp_path: Path
) -> None:
    row_id = double.seed(TASKS, cr_prompt="Make hello.", cr_status=1, crb3b_useremail=ALICE)
    with DataverseWorker(tmp_path / "box", double, model.base_url) as worker:
        process = worker.start(until_idle=False)
        wait_until(lambda: double.tables[TASKS][row_id]["cr_status"] != 1, 60)
        process.terminate()
        assert process.wait(60) == 0, worker.text()
        assert worker.finish() == 0, worker.text()
    assert double.history.values(TASKS, row_id, "cr_status") == [5, 7]
