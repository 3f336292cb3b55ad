"""Flows and the bot's topic on their way to Power Automate and Copilot Studio, over HTTP to the double."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operator_core.errors import ConfigError
from operator_core.notify.outbox import Delivered
from operator_dataverse.bot import topic_text
from operator_dataverse.bot.configure import configure_bot
from operator_dataverse.cli import main
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.errors import NotConfigured, Refused, Unauthorized
from operator_dataverse.flows import NAMES, Flow, flow_named, flow_problems
from operator_dataverse.flows.api import PowerAutomate
from operator_dataverse.flows.solution import create_in_dataverse
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.teams.webhook import TeamsWebhook
from tests.support.dataverse import double

__all__ = ["double"]

ENVIRONMENT = "Default-example"
BOTH = {"shared_commondataserviceforapps": "conn-1", "shared_teams": "conn-2"}
REFERENCES = {"shared_commondataserviceforapps": "new_dataverse", "shared_teams": "new_teams"}
FLOW_ID = "0b1c6c5e-9f5d-4d7e-8a65-0f6a0c0e1d2f"


@pytest.fixture
async def automate(double: Double) -> AsyncIterator[PowerAutomate]:
    async with PowerAutomate(double.flow_url, ENVIRONMENT, StaticToken(double.token)) as there:
        yield there


@pytest.fixture
async def dataverse(double: Double) -> AsyncIterator[Dataverse]:
    async with Dataverse(double.url, StaticToken(double.token)) as there:
        yield there


def _there(double: Double, flow_id: str | None) -> dict[str, Any]:
    assert flow_id is not None
    return double.flows.environments[ENVIRONMENT][flow_id]


def _changes(double: Double) -> list[str]:
    return [request.method for request in double.history.requests() if request.method not in ("GET", "HEAD")]


async def test_every_flow_can_be_made_and_comes_back_as_it_was(double: Double, automate: PowerAutomate) -> None:
    for name in NAMES:
        done = await automate.deploy(flow_named(name), connections=BOTH)
        assert (done.name, done.outcome) == (name, "created")
        properties = _there(double, done.id)
        assert properties["state"] == "Stopped"
        assert set(properties["connectionReferences"]) == set(flow_named(name).connections)
        exported = await automate.export(done.id or "")
        assert exported.definition == flow_named(name).definition
        assert flow_problems(exported) == []
    assert {flow.name async for flow in automate.flows()} == set(NAMES)


async def test_deployed_again_nothing_is_written(double: Double, automate: PowerAutomate) -> None:
    first = await automate.deploy(flow_named("CancelTask"), connections=BOTH)
    writes = _changes(double)
    assert await automate.deploy(flow_named("CancelTask")) == first._replace(outcome="unchanged")
    assert _changes(double) == writes == ["POST"]


async def test_what_the_environment_is_connected_with_stays(double: Double, automate: PowerAutomate) -> None:
    flow_id = double.flows.add("TaskRunner")
    theirs = {name: {"connectionName": f"theirs-{name}"} for name in BOTH}
    double.flows.environments[ENVIRONMENT][flow_id]["connectionReferences"] = theirs
    done = await automate.deploy(flow_named("TaskRunner"), start=True)
    assert (done.id, done.outcome) == (flow_id, "changed")
    properties = _there(double, flow_id)
    assert properties["connectionReferences"] == theirs
    assert properties["definition"] == flow_named("TaskRunner").definition
    assert properties["state"] == "Started"


async def test_a_missing_connection_is_named(double: Double, automate: PowerAutomate) -> None:
    with pytest.raises(Refused, match="--connection shared_teams=NAME"):
        await automate.deploy(flow_named("TaskRunner"), connections={"shared_commondataserviceforapps": "c"})
    assert _changes(double) == []


async def test_a_dry_run_changes_nothing(double: Double, automate: PowerAutomate) -> None:
    made = await automate.deploy(flow_named("CancelTask"), connections=BOTH, dry_run=True)
    assert (made.id, made.outcome) == (None, "created")
    double.flows.add("CancelTask")
    changed = await automate.deploy(flow_named("CancelTask"), connections=BOTH, dry_run=True)
    assert changed.outcome == "changed"
    assert _changes(double) == []


async def test_two_flows_of_one_name_are_told_apart_by_the_id(double: Double, automate: PowerAutomate) -> None:
    first = await automate.deploy(flow_named("CancelTask"), connections=BOTH)
    flows = double.flows.environments[ENVIRONMENT]
    flows["other"] = dict(flows[first.id or ""], definition=flow_named("SendMessage").definition)
    with pytest.raises(Refused, match="--id"):
        await automate.deploy(flow_named("CancelTask"))
    assert (await automate.deploy(flow_named("CancelTask"), flow_id="other")).outcome == "changed"
    assert flows["other"]["definition"] == flow_named("CancelTask").definition


async def test_more_flows_than_one_page_are_all_seen(double: Double, automate: PowerAutomate) -> None:
    for number in range(120):
        double.flows.add(f"other {number}")
    double.flows.add("CancelTask")
    assert len([flow async for flow in automate.flows()]) == 121
    found = await automate.named("CancelTask")
    assert found is not None
    assert found.state == "Started"


async def test_what_is_not_there_or_not_allowed_is_one_sentence(double: Double, automate: PowerAutomate) -> None:
    with pytest.raises(Refused, match="Could not find flow"):
        await automate.export("nothing/../x")
    async with PowerAutomate(double.flow_url, "Default-other", StaticToken(double.token)) as elsewhere:
        with pytest.raises(Refused, match="could not be found"):
            await elsewhere.named("CancelTask")
    async with PowerAutomate(double.flow_url, ENVIRONMENT, StaticToken("wrong"), retry_s=0) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.named("CancelTask")
    with pytest.raises(NotConfigured, match="flow_environment"):
        PowerAutomate.open(DataverseSettings())


async def test_the_relay_is_made_once_and_switched_on(double: Double, dataverse: Dataverse) -> None:
    flow = flow_named("SendMessage")
    dry = await create_in_dataverse(dataverse, flow, REFERENCES, dry_run=True)
    assert (dry.outcome, dry.active, _changes(double)) == ("created", False, [])
    made = await create_in_dataverse(dataverse, flow, REFERENCES)
    [row] = double.tables["workflows"].where(name="SendMessage")
    assert (made.id, made.outcome, made.active) == (row["workflowid"], "created", True)
    assert (row["category"], row["type"], row["statecode"], row["statuscode"]) == (5, 1, 1, 2)
    data = json.loads(row["clientdata"])
    assert data["properties"]["definition"] == flow.definition
    reference = data["properties"]["connectionReferences"]["shared_commondataserviceforapps"]["connection"]
    assert reference == {"connectionReferenceLogicalName": "new_dataverse"}
    writes = _changes(double)
    assert (await create_in_dataverse(dataverse, flow, REFERENCES)).outcome == "unchanged"
    assert _changes(double) == writes
    double.change("workflows", made.id or "", clientdata="{}", statecode=0)
    assert (await create_in_dataverse(dataverse, flow, REFERENCES)).outcome == "changed"
    [row] = double.tables["workflows"].where(name="SendMessage")
    assert (json.loads(row["clientdata"]), row["statecode"]) == (data, 1)


async def test_a_relay_that_was_made_and_not_switched_on_is_finished(double: Double, dataverse: Dataverse) -> None:
    flow = flow_named("SendMessage")
    made = await create_in_dataverse(dataverse, flow, REFERENCES)
    double.change("workflows", made.id or "", statecode=0, statuscode=1)
    again = await create_in_dataverse(dataverse, flow, REFERENCES)
    assert (again.id, again.active) == (made.id, True)
    assert double.tables["workflows"][made.id or ""]["statecode"] == 1


@pytest.mark.parametrize("reference", ["", "New Reference", "x'; y"])
async def test_a_connection_reference_is_a_logical_name(dataverse: Dataverse, reference: str) -> None:
    with pytest.raises(Refused, match="--connection shared_commondataserviceforapps=REFERENCE"):
        await create_in_dataverse(dataverse, flow_named("SendMessage"), {"shared_commondataserviceforapps": reference})


def _topic(double: Double, name: str, **values: Any) -> str:
    row = {"name": name, "schemaname": f"cr123_helper.topic.{name}", "componenttype": 9, "data": "kind: Old"}
    return double.seed("botcomponents", **{**row, **values})


async def test_the_bot_gets_its_topic(double: Double, dataverse: Dataverse) -> None:
    fallback, search = _topic(double, "Fallback"), _topic(double, "Search", statecode=0)
    other = _topic(double, "Fallback", schemaname="cr123_helper2.topic.Fallback")
    dry = await configure_bot(dataverse, "cr123_helper", FLOW_ID, dry_run=True)
    assert [step.outcome for step in dry] == ["changed", "changed"]
    assert _changes(double) == []
    done = await configure_bot(dataverse, "cr123_helper", FLOW_ID)
    assert [step.outcome for step in done] == ["changed", "changed"]
    rows = double.tables["botcomponents"]
    assert rows[fallback]["data"] == topic_text(FLOW_ID)
    assert rows[search]["statecode"] == 1
    assert rows[other]["data"] == "kind: Old"
    again = await configure_bot(dataverse, "cr123_helper", FLOW_ID)
    assert [step.outcome for step in again] == ["unchanged", "unchanged"]


async def test_a_bot_that_is_not_there_is_said(double: Double, dataverse: Dataverse) -> None:
    with pytest.raises(Refused, match=r"cr123_helper\.topic\.Fallback"):
        await configure_bot(dataverse, "cr123_helper", FLOW_ID)
    for bot in ("", "a b", "x' or '1' eq '1"):
        with pytest.raises(ConfigError, match="schema name"):
            await configure_bot(dataverse, bot, FLOW_ID)
    _topic(double, "Fallback")
    with pytest.raises(ConfigError, match="GUID"):
        await configure_bot(dataverse, "cr123_helper", "SendMessage")
    assert [step.outcome for step in await configure_bot(dataverse, "cr123_helper", FLOW_ID)] == ["changed", "missing"]


# --- the commands


class Done(NamedTuple):
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Done]:
    """Runs a command in this process, as one that was started in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(double: Double | None, *words: str, **environ: str) -> Done:
        if double is not None:
            environ |= {
                "DATAVERSE_URL": double.url,
                "DATAVERSE_TOKEN": double.token,
                "PA_TOKEN": double.token,
                "OPERATOR_DATAVERSE__FLOW_URL": double.flow_url,
                "OPERATOR_DATAVERSE__FLOW_ENVIRONMENT": ENVIRONMENT,
            }
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            code = main(words)
        return Done(code, *capsys.readouterr())

    return run


def _json(done: Done) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_flows_are_deployed_and_exported_by_command(
    double: Double, tmp_path: Path, command: Callable[..., Done]
) -> None:
    given = [word for name, value in BOTH.items() for word in ("--connection", f"{name}={value}")]
    dry = _json(command(double, "flows", "deploy", "--all", *given, "--dry-run", "--json"))
    assert {one["outcome"] for one in dry} == {"created"}
    assert double.flows.environments[ENVIRONMENT] == {}
    done = _json(command(double, "flows", "deploy", "CancelTask", "SendMessage", *given, "--json"))
    assert [one["name"] for one in done] == ["CancelTask", "SendMessage"]
    listed = _json(command(double, "flows", "list", "--there", "--json"))
    assert {one["name"] for one in listed if one["there"]} == {"CancelTask", "SendMessage"}
    assert command(double, "flows", "export", "CancelTask", "-o", "mine.json").returncode == 0
    mine = Flow.parse((tmp_path / "mine.json").read_text())
    assert mine.definition == flow_named("CancelTask").definition
    assert command(double, "flows", "validate", "--file", "mine.json").returncode == 0
    spoiled = (tmp_path / "mine.json").read_text().replace('"item/cr_status": 9', '"item/cr_status": "9"')
    (tmp_path / "bad.json").write_text(spoiled)
    bad = command(double, "flows", "validate", "--file", "bad.json")
    assert bad.returncode == 1
    assert "never is '9'" in bad.stdout
    refused = command(double, "flows", "deploy", "--file", "bad.json")
    assert refused.returncode == 2
    assert "never is '9'" in refused.stderr


def test_relay_and_bot_are_configured_by_command(double: Double, tmp_path: Path, command: Callable[..., Done]) -> None:
    reference = "shared_commondataserviceforapps=new_dataverse"
    made = _json(command(double, "relay", "create", "--connection", reference, "--json"))
    assert made["outcome"] == "created"
    _topic(double, "Fallback")
    words = ("bot", "configure", "--bot", "cr123_helper", "--flow", made["id"])
    steps = _json(command(double, *words, "--json"))
    assert [step["outcome"] for step in steps] == ["changed", "missing"]
    told = command(double, *words)
    assert "Publish the bot" in told.stdout
    shown = command(None, "bot", "show", "--flow", made["id"])
    assert shown.stdout == topic_text(made["id"])


def test_a_card_is_posted_by_command(double: Double, tmp_path: Path, command: Callable[..., Done]) -> None:
    missing = command(None, "cards", "post", "waiting")
    assert missing.returncode == 2
    assert "TEAMS_WEBHOOK_URL" in missing.stderr
    posted = command(double, "cards", "post", "waiting", TEAMS_WEBHOOK_URL=double.webhook_url)
    assert posted.returncode == 0, posted.stderr
    [card] = double.cards
    assert card == _json(command(None, "cards", "show", "waiting", "--json"))["waiting"]
    unknown = command(None, "cards", "show", "nothing")
    assert (unknown.returncode, "the cards are running" in unknown.stderr) == (2, True)


async def test_every_card_is_taken_by_the_webhook(double: Double, tmp_path: Path, command: Callable[..., Done]) -> None:
    cards = _json(command(None, "cards", "show", "--json"))
    webhook = TeamsWebhook(double.webhook_url)
    assert [await webhook.post(card) for card in cards.values()] == [Delivered()] * 8
    assert (double.cards, double.webhook.refused) == (list(cards.values()), [])


def test_onedrive_is_found_and_used_by_command(tmp_path: Path, command: Callable[..., Done]) -> None:
    drive = tmp_path / "OneDrive - Example Org"
    drive.mkdir()
    address = "https://example-my.sharepoint.com/personal/alice_example_com/Documents"
    environ = {"ONEDRIVE_SESSIONS_DIR": str(drive), "OPERATOR_DATAVERSE__ONEDRIVE_URL": address}
    found = _json(command(None, "onedrive", "root", "--json", **environ))
    assert (found["onedrive"], found["sessions"]) == (str(drive), str(drive))
    words = ("onedrive", "create-session", "--title", "../Fix 'it'", "--id", FLOW_ID, "--json")
    dry = _json(command(None, *words, "--dry-run", **environ))
    assert list(drive.iterdir()) == []
    made = _json(command(None, *words, **environ))
    folder = Path(made["path"])
    assert folder.is_dir()
    assert folder.is_relative_to(drive)
    assert folder.relative_to(drive).parts == (
        "Operator Sessions",
        "__/Fix _it__0b1c6c5e".replace("/", "_"),
        "attempt-1",
    )
    assert dry == {**made, "created": False}
    assert made["url"].startswith(f"{address}/Operator%20Sessions/")
    shown = command(None, "onedrive", "url", "--path", str(folder / "result.md"), **environ)
    assert shown.stdout == f"{made['url']}/result.md?web=1\n"
    direct = command(None, "onedrive", "url", "--path", str(folder / "result.md"), "--direct", **environ)
    assert direct.stdout == f"{made['url']}/result.md\n"
    outside = command(None, "onedrive", "url", "--path", "/tmp", **environ)
    assert (outside.returncode, "no address" in outside.stderr) == (2, True)


def test_without_onedrive_the_command_says_what_to_do(tmp_path: Path, command: Callable[..., Done]) -> None:
    done = command(None, "onedrive", "root")
    assert done.returncode == 2
    assert "onedrive_dir" in done.stderr
    told = _json(command(None, "onedrive", "root", "--json"))
    assert (told["onedrive"], told["sessions"]) == (None, None)
    words = ("onedrive", "create-session", "--title", "x", "--id", "1")
    local = command(None, *words, WORK_BASE_DIR=str(tmp_path / "work"))
    assert local.returncode == 0, local.stderr
    assert (tmp_path / "work" / "Operator Sessions" / "x_1" / "attempt-1").is_dir()
