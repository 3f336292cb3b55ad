"""The files of `schemas/` say what section 2.2.2 of the requirements says, and the typed rows what the files say."""

from __future__ import annotations

import json
import re
from enum import Enum
from importlib.resources import files
from typing import Any

import pytest
from pydantic import ValidationError

from operator_dataverse.tables import (
    CONVERSATIONS,
    MESSAGES,
    TASKS,
    USERS,
    TableSpec,
    conversation,
    load_schemas,
    message,
    schema_of,
    task,
    user,
)

LENGTHS = {
    TASKS: {
        "cr_name": 100,
        "cr_prompt": 100_000,
        "cr_statusmessage": 200,
        "cr_result": 100_000,
        "cr_transcript": 1_048_576,
        "cr_userid": 200,
        "crb3b_useremail": 200,
        "crb3b_devbox": 200,
        "crb3b_workingdir": 500,
        "crb3b_deeplink": 1000,
        "crb3b_runningchatid": 500,
        "crb3b_runningmessageid": 500,
        "crb3b_onedriveurl": 1000,
        "crb3b_sessionsummary": 1_048_576,
    },
    MESSAGES: {"cr_name": 450, "cr_content": 100_000, "cr_from": 200, "cr_to": 200, "crb3b_taskid": 200},
    CONVERSATIONS: {
        "cr_name": 100,
        "cr_useremail": 200,
        "cr_mcs_conversation_id": 500,
        "cr_message": 100_000,
        "cr_claimed_by": 200,
        "cr_in_reply_to": 100,
    },
    USERS: {"crb3b_useremail": 200},
}


@pytest.mark.parametrize("table", LENGTHS)
def test_lengths(table: str) -> None:
    found = {column.name: column.max_length for column in schema_of(table).columns}
    assert found.items() >= LENGTHS[table].items()


def test_keys_and_owners() -> None:
    assert {table.entity_set: table.key for table in load_schemas().values()} == {
        TASKS: "cr_shraga_taskid",
        MESSAGES: "cr_shragamessageid",
        CONVERSATIONS: "cr_shraga_conversationid",
        USERS: "crb3b_shragauserid",
    }
    assert {table.ownership for table in load_schemas().values()} == {"UserOwned"}


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        (CONVERSATIONS, "cr_direction", conversation.Direction),
        (CONVERSATIONS, "cr_status", conversation.ConversationStatus),
        (USERS, "crb3b_devboxstatus", user.DevBoxStatus),
        (USERS, "crb3b_claudeauthstatus", user.AuthStatus),
        (USERS, "crb3b_managerstatus", user.ManagerStatus),
        (USERS, "crb3b_onboardingstep", user.OnboardingStep),
    ],
)
def test_words_are_those_of_the_files_and_strings(table: str, column: str, words: type[Enum]) -> None:
    spec = schema_of(table).column(column)
    assert spec.type == "string"
    assert list(spec.values) == [word.value for word in words]
    assert max(map(len, spec.values)) <= (spec.max_length or 0)


def test_codes_are_those_of_the_files_and_integers() -> None:
    spec = schema_of(TASKS).column("cr_status")
    assert spec.type == "choice"
    assert list(spec.options) == [int(code) for code in task.TaskCode] == [1, 3, 5, 6, 7, 8, 9]
    assert {7, 8, 9} == task.ENDED
    assert {1, 3, 5, 6} == task.ACTIVE


@pytest.mark.parametrize(("table", "module"), [(TASKS, task), (MESSAGES, message), (CONVERSATIONS, conversation)])
def test_rows_are_read_from_columns_that_there_are(table: str, module: Any) -> None:
    """A name that is mistyped in a typed row would read as empty for ever."""
    named = set(re.findall(r'"((?:cr|crb3b)_\w+)"', (files("operator_dataverse.tables") / _file(module)).read_text()))
    assert named
    assert named <= set(schema_of(table).by_name)


def test_every_column_that_is_not_legacy_is_read() -> None:
    written_only = {"crb3b_runningchatid", "crb3b_runningmessageid"}
    for table, module in ((TASKS, task), (MESSAGES, message), (CONVERSATIONS, conversation), (USERS, user)):
        text = (files("operator_dataverse.tables") / _file(module)).read_text()
        wanted = {c.name for c in schema_of(table).columns if c.presence != "legacy"} - written_only
        assert {name for name in wanted if f'"{name}"' not in text} == set()


def _file(module: Any) -> str:
    return f"{module.__name__.rsplit('.', 1)[1]}.py"


@pytest.mark.parametrize(
    "change",
    [
        {"colums": []},
        {"primary_name": "cr_content_"},
        {"primary_name": "cr_content"},
        {"key": "cr_id"},
        {"ownership": "Nobody"},
        {"entity_set": "cr_x' or 1 eq 1"},
        {"columns": [{"name": "cr_name", "type": "string", "description": "x"}]},
        {"columns": [{"name": "cr_name", "type": "string", "max_length": 4001, "description": "x"}]},
        {"columns": [{"name": "cr_name", "type": "choice", "description": "x"}]},
        {"columns": [{"name": "cr_name", "type": "string", "max_length": 5, "description": "x"}] * 2},
    ],
)
def test_a_file_that_is_wrong_is_not_taken(change: dict[str, Any]) -> None:
    body = json.loads((files("operator_dataverse") / "schemas" / "messages.json").read_bytes())
    TableSpec.model_validate_json(json.dumps(body))
    with pytest.raises(ValidationError):
        TableSpec.model_validate_json(json.dumps(body | change))
