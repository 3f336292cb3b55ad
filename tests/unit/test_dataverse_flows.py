"""The flows and the bot's topic: all of ours are good, and each slip that the check is for is seen."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operator_core.errors import ConfigError
from operator_dataverse.bot import topic_problems, topic_text
from operator_dataverse.flows import NAMES, Flow, flow_named, flow_problems, load_flows
from operator_dataverse.flows.cards import card_problems
from operator_dataverse.flows.columns import filter_problems, order_problems, value_problem
from operator_dataverse.flows.expressions import expressions, problems
from operator_dataverse.tables.schema import CONVERSATIONS, TASKS, schema_of

Definition = dict[str, Any]


@pytest.mark.parametrize("name", NAMES)
def test_every_flow_of_ours_is_good(name: str) -> None:
    assert flow_problems(flow_named(name)) == []
    assert flow_named(name).name == name
    assert Flow.parse(flow_named(name).text()) == flow_named(name)


def test_there_are_the_seven_of_the_seed_and_the_answer() -> None:
    assert set(load_flows()) == {
        "TaskRunner",
        "TaskProgressUpdater",
        "TaskCompleted",
        "TaskFailed",
        "TaskCanceled",
        "SendMessage",
        "CancelTask",
        "AnswerTask",
    }
    with pytest.raises(ConfigError, match="There is no flow 'Nothing'"):
        flow_named("Nothing")


def _at(definition: Definition, *path: str) -> Any:
    node: Any = definition["actions"]
    for name in path:
        node = node[name] if name in node else node["actions"][name] if "actions" in node else node["inputs"][name]
    return node


def _trigger(definition: Definition) -> dict[str, Any]:
    [trigger] = definition["triggers"].values()
    return trigger["inputs"]["parameters"]


def _parameters(definition: Definition, *path: str) -> dict[str, Any]:
    return _at(definition, *path)["inputs"]["parameters"]


def _trigger_with(name: str, value: object) -> Callable[[Definition], object]:
    return lambda definition: _trigger(definition).update({f"subscriptionRequest/{name}": value})


def _with(name: str, value: object, *path: str) -> Callable[[Definition], object]:
    return lambda definition: _parameters(definition, *path).update({name: value})


def _name_as_heading(definition: Definition) -> None:
    heading = _at(definition, "Has_no_card", "Running_card")["inputs"]["body"][0]
    heading["text"] = "@outputs('Get_task')?['body/cr_name']"


CANCEL = ("Is_exactly_one", "Cancel")
POST = ("Has_no_card", "Post_card")
SLIPS: list[tuple[str, Callable[[Definition], object], str]] = [
    ("TaskCompleted", lambda d: _trigger(d).pop("subscriptionRequest/filteringattributes"), "D-60"),
    ("TaskCompleted", _trigger_with("filterexpression", "cr_status eq '7'"), "is an integer"),
    ("TaskCompleted", _trigger_with("filterexpression", "cr_status eq 4"), "never is 4"),
    ("TaskCompleted", _trigger_with("filteringattributes", "cr_state"), "no column 'cr_state'"),
    ("TaskCompleted", _trigger_with("entityname", "cr_shraga_tasks"), "no table"),
    ("TaskCompleted", _trigger_with("message", 2), "added (1) or"),
    ("TaskCompleted", lambda d: d["triggers"].clear(), "exactly one trigger"),
    ("TaskCompleted", lambda d: d.pop("$schema"), "no $schema"),
    ("TaskCompleted", lambda d: d["actions"].clear(), "and actions"),
    ("CancelTask", _with("item/cr_status", "9", *CANCEL), "never is '9'"),
    ("CancelTask", _with("item/cr_status", "@int('9')", *CANCEL), "needs a fixed one"),
    ("CancelTask", _with("item/cr_status", True, *CANCEL), "never is True"),
    ("CancelTask", _with("item/cr_state", 9, *CANCEL), "no column 'cr_state'"),
    ("CancelTask", _with("item/cr_statusmessage", "x" * 201, *CANCEL), "200 characters"),
    ("CancelTask", _with("item/crb3b_lastcardupdatetime", "@utcNow()", *CANCEL), "older flows"),
    ("CancelTask", lambda d: _parameters(d, *CANCEL).pop("recordId"), "needs 'recordId'"),
    (
        "CancelTask",
        lambda d: _at(d, *CANCEL)["inputs"]["host"].update(operationId="UpdateRecord"),
        "make a row that is not there",
    ),
    (
        "CancelTask",
        lambda d: _at(d, *CANCEL)["inputs"]["host"].update(connectionName="shared_sql"),
        "none of its connections",
    ),
    (
        "CancelTask",
        _with("$filter", "crb3b_useremail eq '@{triggerBody()?['userEmail']}'", "List_open_tasks"),
        "quotes doubled",
    ),
    ("CancelTask", _with("$filter", "cr_status eq 'Running'", "List_open_tasks"), "is an integer"),
    ("CancelTask", _with("$filter", "cr_status is 5", "List_open_tasks"), "not understood"),
    ("CancelTask", _with("$orderby", "createdon sideways", "List_open_tasks"), "no direction"),
    ("CancelTask", _with("$select", "cr_name,nothing", "List_open_tasks"), "'nothing'"),
    ("CancelTask", lambda d: _parameters(d, "List_open_tasks").pop("$top"), "needs '$top'"),
    ("CancelTask", lambda d: _at(d, "Matching")["inputs"].update(where="@startsWith(item(),'x'"), "not closed"),
    ("CancelTask", lambda d: _at(d, "Matching")["inputs"].update(where="@endswithX(item())"), "no function"),
    ("CancelTask", lambda d: _at(d, "Matching")["inputs"].update(where="@equals(item(),'x)"), "quote"),
    (
        "CancelTask",
        lambda d: _at(d, "Matching")["inputs"].update(where="@outputs('Nothing')"),
        "of nothing in this flow",
    ),
    ("CancelTask", lambda d: _at(d, "Matching")["inputs"].update(where="@triggerBody()?['who']"), "no input 'who'"),
    ("CancelTask", lambda d: _at(d, "Matching")["inputs"].update(where="@triggerOutputs()?['body/cr_name']"), "no row"),
    ("CancelTask", lambda d: _at(d, "Matching").update(runAfter={"Nothing": ["Succeeded"]}), "not beside it"),
    ("CancelTask", lambda d: _at(d, "Matching").update(runAfter={"List_open_tasks": ["Done"]}), "no known result"),
    ("CancelTask", lambda d: _at(d, "Matching").update(runAfter={"Respond": ["Succeeded"]}), "waits for itself"),
    ("CancelTask", lambda d: _at(d, "Is_exactly_one", "Say_so")["inputs"].update(name="other"), "no variable 'other'"),
    ("CancelTask", lambda d: _at(d, "Matching").update(type="Http"), "no known type"),
    ("CancelTask", _with("item/cr_statusmessage", "Canceled by bob@example.org", *CANCEL), "belongs to somebody"),
    ("CancelTask", _with("recordId", "0b1c6c5e-9f5d-4d7e-8a65-0f6a0c0e1d2f", *CANCEL), "belongs to somebody"),
    (
        "CancelTask",
        lambda d: d["actions"].update(Cancel=copy.deepcopy(_at(d, "Matching")) | {"runAfter": {}}),
        "two of that name",
    ),
    ("TaskRunner", _with("body/messageBody", '{"text":"@{outputs(\'Running_card\')}"}', *POST), "made by a Compose"),
    ("TaskRunner", lambda d: _at(d, *POST)["inputs"].pop("retryPolicy"), "do it twice"),
    (
        "TaskRunner",
        _name_as_heading,
        "belongs into a TextRun",
    ),
    ("TaskRunner", lambda d: _at(d, "Has_no_card", "Running_card")["inputs"]["body"].append({"type": "Image"}), "body"),
    ("TaskRunner", _trigger_with("filterexpression", "(cr_status eq 1"), "brackets"),
    ("SendMessage", lambda d: _at(d, "Wait_for_reply").pop("limit"), "for ever"),
    ("SendMessage", _with("item/cr_direction", 1, "Is_a_new_message", "Add_message"), "is a text"),
    ("SendMessage", _with("item/cr_status", "New", "Is_a_new_message", "Add_message"), "never is 'New'"),
    ("SendMessage", _with("$filter", "cr_direction eq 2", "Wait_for_reply", "List_replies"), "is a text"),
]


@pytest.mark.parametrize(("name", "spoil", "said"), SLIPS, ids=[f"{name}-{said}" for name, _, said in SLIPS])
def test_each_slip_is_seen(name: str, spoil: Callable[[Definition], object], said: str) -> None:
    good = flow_named(name)
    definition = json.loads(json.dumps(good.definition))
    spoil(definition)
    found = flow_problems(Flow(good.name, good.description, good.connections, definition))
    assert any(said in problem for problem in found), found
    assert all(problem.startswith(f"{name}: ") for problem in found)


def test_connections_that_are_not_used_are_seen() -> None:
    good = flow_named("CancelTask")
    more = Flow(good.name, good.description, (*good.connections, "shared_teams"), good.definition)
    assert any("connections" in problem for problem in flow_problems(more))


NO_DEFINITION = '{"name": "x", "description": "", "connections": [], "definition": []}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}', "[" * 5000, NO_DEFINITION])
def test_what_is_no_definition_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="no definition of a flow"):
        Flow.parse(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@a()", ["a()"]),
        ("x @{a()} y @{b('}')} z", ["a()", "b('}')"]),
        ("@{a({'x': 1})}", ["a({'x': 1})"]),
        ("@@{a()}", []),
        ("@@a()", []),
        ("plain", []),
        ("mail@example", []),
        ("@{open", ["open"]),
    ],
)
def test_expressions_are_found(text: str, found: list[str]) -> None:
    assert expressions(text) == found


def test_an_expression_is_read_as_it_is_written() -> None:
    assert problems("concat('it''s (', outputs('x')?['body/y'])") == []
    assert problems("concat('(')") == []
    assert problems("concat(")
    assert problems("concat(]")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("cr_status eq 1 and (crb3b_useremail ne null or not (crb3b_devbox eq 'o''brien'))", True),
        ("crb3b_taskid eq '@{replace(triggerBody()?['x'],'''','''''')}'", False),
        ("createdon gt 1", True),
        ("startswith(cr_name,'Worker blocked')", True),
        ("startswith(cr_nothing,'x')", False),
        ("cr_ismirror eq true", True),
        ("cr_ismirror eq 'true'", False),
        ("cr_shraga_taskid eq 'x'", True),
        ("cr_status eq @{x}", False),
        ("cr_status eq 1; drop", False),
    ],
)
def test_a_filter_fits_its_table(text: str, good: bool) -> None:
    assert (list(filter_problems(schema_of(TASKS), text)) == []) is good


def test_order_and_values_fit_their_table() -> None:
    assert list(order_problems(schema_of(TASKS), "createdon desc,cr_name")) == []
    assert list(order_problems(schema_of(TASKS), "nothing"))
    assert value_problem(schema_of(CONVERSATIONS), "cr_followup_expected", "") is None
    assert value_problem(schema_of(CONVERSATIONS), "cr_followup_expected", "maybe") is not None
    assert value_problem(schema_of(TASKS), "cr_ismirror", True) is None
    assert value_problem(schema_of(TASKS), "cr_ismirror", 1) is not None
    assert value_problem(schema_of(TASKS), "cr_shraga_taskid", "x") is not None


def test_only_cards_are_judged_as_cards() -> None:
    assert list(card_problems({"type": "TextBlock"})) == []
    assert list(card_problems("@x")) == []
    assert list(card_problems({"type": "AdaptiveCard"}))


def test_progress_shows_the_latest_messages_in_their_order() -> None:
    parameters = _parameters(
        dict(flow_named("TaskProgressUpdater").definition), "Runs_and_has_a_card", "List_latest_messages"
    )
    assert (parameters["$orderby"], parameters["$top"]) == ("createdon desc", 20)


SENDER = flow_named("SendMessage")


def test_the_topic_fits_the_flow_that_it_calls() -> None:
    assert topic_problems(topic_text(), SENDER) == []
    named = topic_text("0B1C6C5E-9F5D-4D7E-8A65-0F6A0C0E1D2F")
    assert "flowId: 0b1c6c5e-9f5d-4d7e-8a65-0f6a0c0e1d2f\n" in named
    assert topic_problems(named, SENDER) == []
    for bad in ("", "x", "0b1c6c5e\nkind: x"):
        with pytest.raises(ConfigError, match="GUID"):
            topic_text(bad)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("isFollowup: =Topic.IsFollowup", "followup: =Topic.IsFollowup", "wants"),
        ("responseText: Topic.ResponseText", "response: Topic.ResponseText", "no output response"),
        ("kind: OnUnknownIntent", "kind: OnRecognizedIntent", "OnUnknownIntent"),
        ("kind: AdaptiveDialog", "kind: Dialog", "no AdaptiveDialog"),
        ("actionId: askManager", "actionId: nobody", "'nobody'"),
        ("id: sayAnswer", "id: askManager", "'askManager'"),
        ("kind: InvokeFlowAction", "kind: InvokeHttpAction", "exactly once"),
        ("userEmail: =System.User.Email", "userEmail: =Topic.MessageText", "System.User"),
        ("kind: AdaptiveDialog", "kind: [", "no YAML"),
    ],
)
def test_each_slip_of_the_topic_is_seen(old: str, new: str, said: str) -> None:
    text = topic_text()
    assert old in text
    assert any(said in problem for problem in topic_problems(text.replace(old, new, 1), SENDER))


STRANGE = st.sampled_from([None, 7, "", "@", "@{", "x", [], {}, [1], {"a": 1}, {"actions": []}, {"type": "If"}, True])


def _places(node: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in _places(value, (*path, key)))]


@given(data=st.data(), name=st.sampled_from(NAMES), strange=STRANGE)
@settings(max_examples=100, deadline=None)
def test_whatever_a_definition_is_the_check_ends_with_sentences(data: st.DataObject, name: str, strange: Any) -> None:
    good = flow_named(name)
    definition = json.loads(json.dumps(good.definition))
    *path, last = data.draw(st.sampled_from([place for place in _places(definition) if place]))
    node = definition
    for key in path:
        node = node[key]
    node[last] = strange
    found = flow_problems(Flow(good.name, good.description, good.connections, definition))
    assert all(isinstance(problem, str) for problem in found)
