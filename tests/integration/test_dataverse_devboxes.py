"""Dev boxes against a DevCenter on the loopback interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_dataverse.client import Http, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.double.faults import Fault
from operator_dataverse.errors import DataverseError, NotConfigured, Refused, Throttled
from operator_dataverse.fleet.customizations import deploy_group, group_from, tools_group
from operator_dataverse.fleet.devboxes import DevBoxes, next_name
from operator_dataverse.fleet.operations import Operation
from operator_dataverse.settings import DataverseSettings
from tests.support.dataverse import double

__all__ = ["double"]


def open_boxes(double: Double, **more: object) -> DevBoxes:
    settings = DataverseSettings(
        devcenter_url=double.devcenter_url,
        devcenter_project="example",
        devcenter_pool="example-pool",
        retry_s=60,
        **more,  # type: ignore[arg-type]
    )
    return DevBoxes.open(settings, StaticToken(double.token), poll_s=0.05)


@pytest.fixture
async def boxes(double: Double) -> AsyncIterator[DevBoxes]:
    async with open_boxes(double) as opened:
        yield opened


async def test_a_box_from_nothing_to_nothing(double: Double, boxes: DevBoxes) -> None:
    heard: list[Operation] = []
    made = await boxes.provision()
    assert (made.name, made.existed, made.operation.done) == ("shraga-box-01", False, False)
    box = await boxes.wait(made, heard=heard.append)
    assert box.ready
    assert heard[-1].status == "Succeeded"
    assert (await boxes.connection(box.name)).web_url.startswith("https://")
    group = await boxes.customize(box.name, tools_group())
    assert group.status in ("NotStarted", "Running")
    assert (await boxes.wait_customization(box.name, group.name)).status == "Succeeded"
    assert (await boxes.customize(box.name, tools_group())).status == "Succeeded"
    removed = await boxes.delete(box.name)
    assert (await boxes.wait_operation(removed.url)).status == "Succeeded"
    assert await boxes.get(box.name) is None
    assert await boxes.list() == []
    assert (await boxes.delete(box.name)).done
    agents = {request.headers["user-agent"] for request in double.history}
    assert all(agent.startswith("OperatorDevBoxes/") for agent in agents)


async def test_a_box_that_is_there_already_is_no_error(double: Double, boxes: DevBoxes) -> None:
    first = await boxes.provision("my-box")
    again = await boxes.provision("my-box")
    assert (first.existed, again.existed) == (False, True)
    # Whoever asked again waits for the box itself, which is still on its way.
    assert (await boxes.wait(again)).ready
    puts = [request for request in double.history if request.method == "PUT"]
    assert [request.status for request in puts] == [201, 409]


async def test_a_lost_answer_makes_one_box(double: Double, boxes: DevBoxes) -> None:
    double.faults.drop_answer(method="PUT")
    made = await boxes.provision()
    assert (made.name, made.existed) == ("shraga-box-01", False)
    assert (await boxes.wait(made)).name == "shraga-box-01"
    assert [box.name for box in await boxes.list()] == ["shraga-box-01"]


async def test_several_at_once_get_boxes_of_their_own(double: Double) -> None:
    async def one() -> str:
        async with open_boxes(double) as boxes:
            return (await boxes.provision()).name

    names = await asyncio.gather(*(one() for _ in range(5)))
    assert sorted(names) == [f"shraga-box-{n:02d}" for n in range(1, 6)]


async def test_a_gap_is_filled(double: Double, boxes: DevBoxes) -> None:
    for name in ("shraga-box-01", "SHRAGA-BOX-02", "shraga-box-04"):
        await boxes.provision(name)
    assert (await boxes.provision()).name == "shraga-box-03"
    assert (await boxes.provision(prefix="team")).name == "team-01"


@given(st.sets(st.integers(1, 120), max_size=110))
def test_the_next_name_is_the_lowest_free_one(used: set[int]) -> None:
    name = next_name({f"shraga-box-{n:02d}" for n in used})
    number = int(name.rpartition("-")[2])
    assert number not in used
    assert set(range(1, number)) <= used


async def test_a_failure_says_why(double: Double, boxes: DevBoxes) -> None:
    double.devcenter.fail_next("No quota \x1b[31mleft")
    made = await boxes.provision("my-box")
    with pytest.raises(DataverseError, match=r"No quota left") as failed:
        await boxes.wait(made)
    assert "\x1b" not in str(failed.value)
    box = await boxes.get("my-box")
    assert box is not None
    assert box.failed
    with pytest.raises(DataverseError, match="Failed"):
        await boxes.wait(await boxes.provision("my-box"))


async def test_what_takes_long_can_be_waited_for_by_somebody_else(double: Double, boxes: DevBoxes) -> None:
    double.devcenter.takes_s = 3600
    made = await boxes.provision("my-box")
    with pytest.raises(Throttled, match=r"devbox wait http"):
        await boxes.wait(made, timeout_s=0.2)
    double.clock.advance(3600)
    async with open_boxes(double) as later:
        assert (await later.wait_operation(made.operation.url)).status == "Succeeded"


async def test_an_operation_elsewhere_gets_no_token(double: Double, boxes: DevBoxes) -> None:
    with Double() as other:
        with pytest.raises(Refused):
            await boxes.operation(f"{other.devcenter_url}/projects/example/operationstatuses/1?api-version=1")
        assert len(other.history) == 0


async def test_a_wait_does_not_hammer(double: Double) -> None:
    double.devcenter.takes_s = 0.5
    settings = DataverseSettings(
        devcenter_url=double.devcenter_url, devcenter_project="example", devcenter_pool="example-pool"
    )
    async with DevBoxes.open(settings, StaticToken(double.token), poll_s=0.3) as boxes:
        await boxes.wait(await boxes.provision("my-box"))
    # The service says `Retry-After: 0`, which is no invitation.
    assert sum("operationstatuses" in request.path for request in double.history) <= 3


async def test_a_storm_makes_no_second_box(double: Double, boxes: DevBoxes) -> None:
    double.faults.storm(0.3)
    double.faults.add(Fault("drop_answer", rate=0.2, times=6))
    made = await boxes.provision()
    await boxes.wait(made)
    await boxes.customize(made.name, tools_group())
    double.faults.clear()
    assert [box.name for box in await boxes.list()] == [made.name]


@pytest.mark.parametrize("name", ["", "x", "../../me", "a/b", "box:stop", "x" * 64, "box?x=1", "bóx", "-box", "box\n"])
async def test_a_name_is_no_path(double: Double, boxes: DevBoxes, name: str) -> None:
    for call in (boxes.get, boxes.delete, boxes.provision, boxes.connection):
        with pytest.raises(Refused):
            await call(name)
    assert len(double.history) == 0


async def test_a_user_is_me_or_an_id(double: Double) -> None:
    http = Http(double.devcenter_url, StaticToken(double.token))
    with pytest.raises(Refused):
        DevBoxes(http, "example", user="me/../../users/x")
    await http.close()


async def test_nothing_is_contacted_before_it_is_configured() -> None:
    with pytest.raises(NotConfigured, match=r"devcenter_url.*devcenter_project"):
        DevBoxes.open(DataverseSettings())
    without_pool = DataverseSettings(devcenter_url="http://127.0.0.1:9", devcenter_project="example")
    async with DevBoxes.open(without_pool, StaticToken("x")) as boxes:
        with pytest.raises(NotConfigured, match="devcenter_pool"):
            await boxes.provision("my-box")


@pytest.mark.parametrize(
    "source",
    [
        "http://example.com/x.zip",
        "x.zip",
        "https://example.com/a'; rm x",
        "https://example.com/$(x)",
        "https:///x",
        "https://[x",
        "https://me:secret@example.com/x.zip",
    ],
)
def test_a_source_cannot_become_a_command(source: str) -> None:
    with pytest.raises(Refused) as refused:
        deploy_group(source)
    assert "secret" not in str(refused.value)


def test_a_deployment_installs_and_starts() -> None:
    steps = deploy_group("https://example.com/operator.zip").body()["tasks"]
    assert isinstance(steps, list)
    assert "pip install --upgrade 'https://example.com/operator.zip'" in steps[0]["parameters"]["command"]
    assert "operator_dataverse service --install" in steps[1]["parameters"]["command"]
    # The worker needs the sign-ins of its person, and nothing of the system's rights.
    assert [step["runAs"] for step in steps] == ["System", "User"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"name": "my-group"}',
        '{"name": "../x", "tasks": [{"name": "winget"}]}',
        '{"name": "my-group", "tasks": []}',
    ],
)
def test_a_file_that_is_no_group_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "group.json"
    file.write_text(text)
    with pytest.raises(Refused):
        group_from(file)
    with pytest.raises(Refused, match="cannot be read"):
        group_from(tmp_path / "missing.json")


async def test_a_group_out_of_a_file_is_run(double: Double, boxes: DevBoxes, tmp_path: Path) -> None:
    file = tmp_path / "group.json"
    file.write_text(json.dumps({"name": "my-group", "tasks": [{"name": "winget", "parameters": {"package": "X.Y"}}]}))
    await boxes.wait(await boxes.provision("my-box"))
    double.devcenter.fail_next()
    await boxes.customize("my-box", group_from(file))
    ended = await boxes.wait_customization("my-box", "my-group")
    assert ended.status == "Failed"
    assert ended.error
    assert await boxes.customization("my-box", "other-group") is None
