"""The flows, run on the double: what people see of a task in Teams, and what the flows write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operator_dataverse.cli import main
from operator_dataverse.double import Double
from operator_dataverse.flows import flow_named
from operator_dataverse.teams.check import problems_of
from operator_dataverse.teams.plain import card_text
from tests.support.flows import Chat, FlowRun, run_flow

TASKS, MESSAGES, CONVERSATIONS = "cr_shraga_tasks", "cr_shragamessages", "cr_shraga_conversations"
ALICE, BOB = "o'alice@example.com", "bob@example.com"
FOLDER = "https://example.sharepoint.com/personal/alice/Documents/x"
HOSTILE = 'O\'Brien", "type": "Image" [x](https://evil.example.com) {{DATE(2026-01-01)}} <at>all</at>'


@pytest.fixture
def double() -> Any:
    """An organisation. Flows cannot name the version of a row, so this one does not insist on it."""
    with Double() as organisation:
        yield organisation
        print(organisation.history.text())


def _task(double: Double, **values: Any) -> str:
    return double.seed(TASKS, **{"cr_name": "Fix it", "cr_status": 1, "crb3b_useremail": ALICE} | values)


def _run(name: str, double: Double, chat: Chat, row_id: str) -> FlowRun:
    return run_flow(flow_named(name), double, chat, {"cr_shraga_taskid": row_id})


def _row(double: Double, row_id: str) -> dict[str, Any]:
    return dict(double.tables[TASKS][row_id])


def test_a_new_task_gets_one_card_and_the_row_remembers_it(double: Double) -> None:
    chat, task = Chat(), _task(double, cr_name=HOSTILE[:100])
    for _ in range(2):
        _run("TaskRunner", double, chat, task)
    assert chat.posted == [ALICE]
    assert problems_of(chat.only_card) == []
    assert "O'Brien" in card_text(chat.only_card)
    assert "{{DATE" not in card_text(chat.only_card)
    row = _row(double, task)
    assert row["crb3b_runningmessageid"] in chat.messages
    assert row["crb3b_runningchatid"] == f"chat of {ALICE}"
    assert row["cr_status"] == 1


def test_progress_shows_the_latest_twenty_messages(double: Double) -> None:
    chat, task = Chat(), _task(double)
    _run("TaskRunner", double, chat, task)
    double.change(TASKS, task, cr_status=5, crb3b_devbox="box-1")
    for number in range(30):
        moment = f"2026-01-31T10:20:{number:02d}Z"
        double.seed(MESSAGES, cr_name=f"step {number} of {task[:4]}", crb3b_taskid=task, createdon=moment)
    double.seed(MESSAGES, cr_name="step of another", crb3b_taskid="x' or 'a' eq 'a")
    run_flow(flow_named("TaskProgressUpdater"), double, chat, {"crb3b_taskid": task})
    lines = [line for line in card_text(chat.only_card).splitlines() if line.startswith("step")]
    assert lines == [f"step {number} of {task[:4]}" for number in range(10, 30)]
    assert problems_of(chat.only_card) == []


@pytest.mark.parametrize("status", [1, 6, 7, 9])
def test_progress_of_a_task_that_does_not_run_changes_nothing(double: Double, status: int) -> None:
    chat, task = Chat(), _task(double)
    _run("TaskRunner", double, chat, task)
    before = chat.only_card
    double.change(TASKS, task, cr_status=status)
    run_flow(flow_named("TaskProgressUpdater"), double, chat, {"crb3b_taskid": task})
    assert chat.only_card == before


def test_progress_for_what_is_no_task_fails_and_nothing_else(double: Double) -> None:
    chat = Chat()
    for task_id in ("nonsense", "0b1c6c5e-9f5d-4d7e-8a65-0f6a0c0e1d2f"):
        run = run_flow(flow_named("TaskProgressUpdater"), double, chat, {"crb3b_taskid": task_id})
        assert run.results["Get_task"] == "Failed"
    assert chat.posted == []


@pytest.mark.parametrize(
    ("name", "status", "title"),
    [
        ("TaskCompleted", 7, "Task completed and verified"),
        ("TaskFailed", 8, "Task failed"),
        ("TaskCanceled", 9, "Task canceled"),
    ],
)
@pytest.mark.parametrize("had_a_card", [True, False])
def test_the_end_of_a_task_is_on_one_card_however_often_it_is_told(
    double: Double, name: str, status: int, title: str, had_a_card: bool
) -> None:
    chat, task = Chat(), _task(double)
    if had_a_card:
        _run("TaskRunner", double, chat, task)
    double.change(TASKS, task, cr_status=status, cr_statusmessage="why", crb3b_onedriveurl=FOLDER)
    _run(name, double, chat, task)
    double.change(TASKS, task, cr_result=HOSTILE + "日" * 50_000)
    for _ in range(3):
        _run(name, double, chat, task)
    assert chat.posted == [ALICE]
    shown = card_text(chat.only_card)
    assert shown.startswith(title)
    assert ("why" in shown) is (status == 9)
    assert FOLDER in shown
    assert problems_of(chat.only_card) == []


@pytest.mark.parametrize("url", [None, "http://example.com/x", "javascript:alert(1)"])
def test_a_folder_without_a_good_address_has_no_button(double: Double, url: str | None) -> None:
    chat, task = Chat(), _task(double, cr_status=7, crb3b_onedriveurl=url)
    _run("TaskCompleted", double, chat, task)
    assert chat.only_card["actions"] == []


def test_an_end_that_is_over_again_is_not_shown(double: Double) -> None:
    chat, task = Chat(), _task(double, cr_status=1)
    for name in ("TaskCompleted", "TaskFailed", "TaskCanceled"):
        _run(name, double, chat, task)
    assert chat.posted == []


def _answering(text: str, who: str) -> Chat:
    return Chat(answer=lambda card: ({"answer": text, **card["actions"][0]["data"]}, who))


def _waiting(double: Double) -> str:
    task = _task(double, cr_status=6, cr_statusmessage="Waiting for input: Which port?", crb3b_devbox="box-1")
    question = "Worker blocked\nReason: Which port is meant?"
    double.seed(
        MESSAGES, cr_name="Worker blocked", cr_content=question, cr_from="Integrated Task Worker", crb3b_taskid=task
    )
    return task


def test_an_answer_is_written_before_the_task_goes_on(double: Double) -> None:
    task, chat = _waiting(double), _answering("8080, it's ours\nsecond line", ALICE.upper())
    _run("AnswerTask", double, chat, task)
    assert "Which port is meant?" in card_text(chat.only_card)
    assert problems_of(chat.only_card) == []
    [answer] = double.tables[MESSAGES].where(cr_to="box-1")
    assert answer["cr_content"] == "8080, it's ours\nsecond line"
    assert (answer["cr_from"], answer["crb3b_taskid"]) == (ALICE, task)
    row = _row(double, task)
    assert row["cr_status"] == 1
    assert answer["createdon"] <= row["modifiedon"]


@pytest.mark.parametrize("who", [BOB, "", "alice@example.com"])
def test_somebody_elses_answer_is_none(double: Double, who: str) -> None:
    task, chat = _waiting(double), _answering("8080", who)
    _run("AnswerTask", double, chat, task)
    assert double.tables[MESSAGES].where(cr_to="box-1") == []
    assert _row(double, task)["cr_status"] == 6


@pytest.mark.parametrize(
    "meanwhile", [{"cr_status": 9}, {"cr_status": 1}, {"cr_statusmessage": "Waiting for input: Which host?"}]
)
def test_an_answer_to_a_question_that_is_over_is_none(double: Double, meanwhile: dict[str, Any]) -> None:
    task = _waiting(double)

    def late(card: dict[str, Any]) -> tuple[dict[str, Any], str]:
        double.change(TASKS, task, **meanwhile)
        return {"answer": "8080"}, ALICE

    _run("AnswerTask", double, Chat(answer=late), task)
    assert double.tables[MESSAGES].where(cr_to="box-1") == []
    assert _row(double, task)["cr_status"] == meanwhile.get("cr_status", 6)


def test_a_task_that_was_answered_elsewhere_is_not_asked_about(double: Double) -> None:
    task = _waiting(double)
    double.change(TASKS, task, cr_status=1)
    chat = Chat()
    _run("AnswerTask", double, chat, task)
    assert chat.posted == []


def _cancel(double: Double, who: str, task_id: str) -> str:
    run = run_flow(flow_named("CancelTask"), double, Chat(), {"userEmail": who, "taskId": task_id})
    assert run.response is not None
    return str(run.response["responseText"])


@pytest.mark.parametrize("status", [1, 3, 5, 6])
def test_one_task_is_canceled_by_its_id_in_any_open_state(double: Double, status: int) -> None:
    other = _task(double, cr_status=5)
    task = _task(double, cr_status=status)
    newest = _task(double, cr_status=5)
    assert _cancel(double, ALICE, f" {task[:8].upper()}") == "Canceled: Fix it"
    assert [_row(double, one)["cr_status"] for one in (other, task, newest)] == [5, 9, 5]


@pytest.mark.parametrize("given", ["", "   ", "0", "not an id", "' or cr_status eq 5 or cr_name eq '"])
def test_what_names_no_task_cancels_none(double: Double, given: str) -> None:
    tasks = [_task(double, cr_status=5, row_id=f"0000000{n}-0000-4000-8000-000000000000") for n in range(3)]
    assert "nothing was canceled" in _cancel(double, ALICE, given)
    assert {_row(double, task)["cr_status"] for task in tasks} == {5}


@pytest.mark.parametrize("length", [0, 1, 7])
def test_the_beginning_of_an_id_is_not_too_short(double: Double, length: int) -> None:
    task = _task(double, cr_status=5)
    assert "nothing was canceled" in _cancel(double, ALICE, task[:length])
    assert _row(double, task)["cr_status"] == 5


@pytest.mark.parametrize("who", [BOB, "' or '1' eq '1", ""])
def test_another_persons_task_cannot_be_canceled(double: Double, who: str) -> None:
    task = _task(double, cr_status=5)
    assert "nothing was canceled" in _cancel(double, who, task)
    assert _row(double, task)["cr_status"] == 5


@pytest.mark.parametrize("status", [7, 8, 9])
def test_what_is_final_stays(double: Double, status: int) -> None:
    task = _task(double, cr_status=status)
    assert "nothing was canceled" in _cancel(double, ALICE, task)
    assert _row(double, task)["cr_status"] == status


def _send(double: Double, text: str | None, *, followup: str = "false", on_pause: Any = None) -> FlowRun:
    inputs = {"userEmail": ALICE, "conversationId": "conv'1", "isFollowup": followup}
    if text is not None:
        inputs["messageText"] = text
    return run_flow(flow_named("SendMessage"), double, Chat(), inputs, on_pause=on_pause)


def _reply(double: Double, text: str, *, more: str = "", to: str | None = None, **values: Any) -> str:
    inbound = double.tables[CONVERSATIONS].where(cr_direction="Inbound")
    row = {
        "cr_name": "reply",
        "cr_message": text,
        "cr_useremail": ALICE,
        "cr_mcs_conversation_id": "conv'1",
        "cr_direction": "Outbound",
        "cr_status": "Unclaimed",
        "cr_in_reply_to": to or (inbound[-1]["cr_shraga_conversationid"] if inbound else ""),
        "cr_followup_expected": more,
    }
    return double.seed(CONVERSATIONS, **{**row, **values})


def test_a_message_goes_out_and_its_answer_comes_back(double: Double) -> None:
    run = _send(double, "How's it? " + "x" * 200, on_pause=lambda n: n == 3 and _reply(double, HOSTILE))
    assert run.response == {"responseText": HOSTILE, "IsFollowupExpected": ""}
    assert run.pauses == 3
    [inbound] = double.tables[CONVERSATIONS].where(cr_direction="Inbound")
    assert (inbound["cr_useremail"], inbound["cr_status"]) == (ALICE, "Unclaimed")
    assert inbound["cr_message"] == "How's it? " + "x" * 200
    assert len(inbound["cr_name"]) == 100
    [outbound] = double.tables[CONVERSATIONS].where(cr_direction="Outbound")
    assert outbound["cr_status"] == "Delivered"


def test_without_an_answer_in_time_it_says_so_and_a_late_one_is_not_lost(double: Double) -> None:
    first = _send(double, "Hello")
    assert first.response == {"responseText": "I am still working on it.", "IsFollowupExpected": "true"}
    assert first.pauses * 3 < 90
    _reply(double, "Here I am")
    second = _send(double, None, followup="true")
    assert second.response == {"responseText": "Here I am", "IsFollowupExpected": ""}
    assert len(double.tables[CONVERSATIONS].where(cr_direction="Inbound")) == 1


def test_a_late_answer_to_an_earlier_message_comes_first(double: Double) -> None:
    _send(double, "First")
    _reply(double, "to the first", createdon="2026-01-31T10:20:30Z")
    run = _send(double, "Second", on_pause=lambda n: n == 1 and _reply(double, "to the second"))
    assert run.response == {"responseText": "to the first", "IsFollowupExpected": "true"}
    assert _send(double, None, followup="true").response == {
        "responseText": "to the second",
        "IsFollowupExpected": "",
    }


def test_when_more_is_to_come_the_bot_asks_again(double: Double) -> None:
    run = _send(double, "Hello", on_pause=lambda n: n == 1 and _reply(double, "A moment", more="true"))
    assert run.response == {"responseText": "A moment", "IsFollowupExpected": "true"}


@pytest.mark.parametrize(
    "values",
    [
        {"cr_useremail": BOB},
        {"cr_mcs_conversation_id": "conv'2"},
        {"cr_status": "Expired"},
        {"cr_direction": "Inbound"},
    ],
)
def test_what_is_not_for_this_conversation_is_not_brought(double: Double, values: dict[str, Any]) -> None:
    _reply(double, "not for you", **values)
    run = _send(double, None, followup="true")
    assert run.response == {"responseText": "I am still working on it.", "IsFollowupExpected": "true"}


def test_the_relay_reaches_the_manager_and_comes_back(
    double: Double, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    person = "alice@example.com"
    for name, value in (("URL", double.url), ("TOKEN", double.token)):
        monkeypatch.setenv(f"DATAVERSE_{name}", value)
    monkeypatch.setenv("WEBHOOK_USER", person)
    double.seed("crb3b_shragausers", crb3b_useremail=person, crb3b_onboardingstep="completed")
    task = _task(double, crb3b_useremail=person, cr_name="Mine")
    answered: list[int] = []

    def manager(pause: int) -> None:
        if pause == 1:
            answered.append(main(["--db", "operator.db", "chat", "personal", "run", "--once"]))

    inputs = {"userEmail": person, "conversationId": "c", "messageText": "tasks", "isFollowup": "false"}
    run = run_flow(flow_named("SendMessage"), double, Chat(), inputs, on_pause=manager)
    assert answered == [0]
    assert run.response is not None
    assert task[:8] in run.response["responseText"]
    assert run.response["IsFollowupExpected"] == ""


def test_the_answer_belongs_to_whom_the_task_belongs(double: Double) -> None:
    alice = double.add_account(ALICE, reach="own")
    task = _waiting(double)
    bound: dict[str, Any] = {"ownerid@odata.bind": f"/systemusers({alice.user_id})"}
    double.change(TASKS, task, **bound)
    _run("AnswerTask", double, _answering("8080", ALICE), task)
    [answer] = double.tables[MESSAGES].where(cr_to="box-1")
    assert answer["_ownerid_value"] == alice.user_id
    assert _row(double, task)["cr_status"] == 1


def test_an_answer_that_cannot_be_given_away_is_the_flows(double: Double) -> None:
    alice = double.add_account(ALICE, reach="own")
    task = _waiting(double)
    bound: dict[str, Any] = {"ownerid@odata.bind": f"/systemusers({alice.user_id})"}
    double.change(TASKS, task, **bound)
    flows = double.add_account("flows@example.com", without=["prvAssigncr_shragamessage"])
    run = run_flow(flow_named("AnswerTask"), double, _answering("8080", ALICE), {"cr_shraga_taskid": task}, flows.token)
    assert (run.results["Write_answer"], run.results["Write_answer_as_the_flow"]) == ("Failed", "Succeeded")
    [answer] = double.tables[MESSAGES].where(cr_to="box-1")
    assert answer["_ownerid_value"] == flows.user_id
    assert _row(double, task)["cr_status"] == 1


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_message_belongs_to_its_person_if_there_is_exactly_one(double: Double, known: int) -> None:
    alice = double.add_account(ALICE, reach="own")
    if known == 2:
        other = double.add_account(BOB)
        double.change("systemusers", other.user_id, internalemailaddress=ALICE)
    inputs = {"userEmail": ALICE if known else "x@example.com", "conversationId": "c", "messageText": "hello"}
    run_flow(flow_named("SendMessage"), double, Chat(), inputs)
    [row] = double.tables[CONVERSATIONS].where(cr_direction="Inbound")
    assert row["_ownerid_value"] == (alice if known == 1 else double.admin).user_id
