"""The four tables: their files, what the double makes of them, and `operator-dataverse schema|rows|doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.clock import Clock
from operator_dataverse.cli import main
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.client.making import make, plan
from operator_dataverse.double import Double
from operator_dataverse.double.definitions import Column, Table
from operator_dataverse.double.faults import Fault
from operator_dataverse.errors import Refused
from operator_dataverse.tables import CONVERSATIONS, MESSAGES, TASKS, USERS, load_schemas
from tests.support.dataverse import double, plain_double

__all__ = ["double", "plain_double"]

Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Told:
    """Run a command on an organisation: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def told(where: Double, *words: str, **environment: str) -> tuple[int, str, str]:
        monkeypatch.setenv("DATAVERSE_URL", where.url)
        monkeypatch.setenv("DATAVERSE_TOKEN", where.token)
        monkeypatch.setenv("WEBHOOK_USER", "alice@example.com")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = main(words)
        captured = capsys.readouterr()
        assert where.token not in captured.out + captured.err
        return code, captured.out, captured.err

    return told


@pytest.fixture
def bare() -> Any:
    """An organisation without the product's tables."""
    with Double(tables=[]) as empty:
        yield empty


# -- schema ------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_made_and_then_nothing_is(bare: Double, double: Double, tell: Told) -> None:
    code, out, _ = tell(bare, "schema", "check")
    assert code == 1
    assert all(table in out for table in (TASKS, MESSAGES, CONVERSATIONS, USERS))

    code, out, _ = tell(bare, "schema", "create", "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["made"] == []
    assert len(bare.tables) == 3
    assert len(json.loads(out)["steps"]) == sum(
        1 + sum(c.presence != "legacy" and c.name != t.primary_name for c in t.columns) for t in load_schemas().values()
    )

    assert tell(bare, "schema", "create")[0] == 0
    assert tell(bare, "schema", "diff", "--json")[:2] == (0, "[]\n")
    assert tell(bare, "schema", "create")[:2] == (0, "Nothing is missing.\n")
    for entity_set, spec in load_schemas().items():
        made, wanted = bare.store.table(entity_set), double.store.table(entity_set)
        legacy = {c.name for c in spec.columns if c.presence == "legacy"}
        assert made.key == spec.key
        assert made.primary_name == spec.primary_name
        assert set(made.columns) == set(wanted.columns) - legacy
        for name, column in made.columns.items():
            assert (column.type, column.max_length) == (wanted.columns[name].type, wanted.columns[name].max_length)
            assert dict(column.options) == dict(wanted.columns[name].options)
    assert bare.store.table(CONVERSATIONS).columns["cr_direction"].type == "string"


def test_a_run_that_breaks_off_is_run_again(bare: Double, tell: Told) -> None:
    bare.faults.add(Fault("forbidden", times=1, method="POST", path="cr_shragamessage'\\)/Attributes"))
    code, _, err = tell(bare, "schema", "create")
    assert code == 1
    assert "security role" in err
    bare.faults.drop_answer(times=5, method="POST", rate=0.3)
    assert tell(bare, "schema", "create")[0] == 0
    assert tell(bare, "schema", "check")[0] == 0


async def test_what_was_made_is_named_also_when_its_answer_was_lost_and_not_when_others_made_it(bare: Double) -> None:
    spec = load_schemas()[MESSAGES]
    steps = plan(spec, None)
    async with Dataverse(bare.url, StaticToken(bare.token), clock=Clock(100.0)) as client:
        lost = bare.faults.drop_answer(times=2, method="POST")
        assert await make(client, steps) == [step.what for step in steps]
        assert lost.hits == 2
        assert await make(client, steps) == []
        broken = [steps[0]._replace(body=steps[0].body | {"OwnershipType": "Nobody", "SchemaName": "cr_other"})]
        with pytest.raises(Refused, match="made before that: nothing"):
            await make(client, broken)
    headers = [r.headers.get("mscrm-solutionuniquename") for r in bare.history.requests() if r.method == "POST"]
    assert set(headers) == {None}


def test_a_solution_is_named_in_every_request(bare: Double, tell: Told) -> None:
    assert tell(bare, "schema", "create", "--solution", "Example")[0] == 0
    headers = [r.headers.get("mscrm-solutionuniquename") for r in bare.history.requests() if r.method == "POST"]
    assert set(headers) == {"Example"}


def test_without_the_optional_columns_it_works(plain_double: Double, tell: Told) -> None:
    assert tell(plain_double, "schema", "check")[:2] == (0, "The tables have what the product needs.\n")
    _, out, _ = tell(plain_double, "schema", "diff", "--json")
    found = json.loads(out)
    assert {d["column"] for d in found} == {
        c.name for t in load_schemas().values() for c in t.columns if c.presence == "optional"
    }
    assert not any(d["blocking"] for d in found)
    assert all(d["missing"] for d in found)
    assert tell(plain_double, "schema", "create")[0] == 0
    assert "crb3b_heartbeat" in plain_double.store.table(TASKS).columns


def test_what_stands_in_the_way_is_named(double: Double, tell: Told) -> None:
    double.store.drop_column(TASKS, "cr_result")
    double.store.drop_column(TASKS, "crb3b_messageid")  # legacy: nobody misses it
    tasks = double.store.table(TASKS)
    double.store.define(tasks.with_column(Column("cr_statusmessage", "string", 100)))
    double.store.define(double.store.table(TASKS).with_column(Column("cr_status", "choice", options={1: "Pending"})))
    talk = double.store.table(CONVERSATIONS)
    double.store.define(talk.with_column(Column("cr_direction", "choice", options={1: "In", 2: "Out"})))
    code, out, _ = tell(double, "schema", "check", "--json")
    assert code == 1
    found = {(d["table"], d["column"]): d for d in json.loads(out)["differences"]}
    assert set(found) == {
        (TASKS, "cr_result"),
        (TASKS, "cr_status"),
        (TASKS, "cr_statusmessage"),
        (CONVERSATIONS, "cr_direction"),
    }
    assert found[TASKS, "cr_result"]["missing"]
    assert "9 (Canceled)" in found[TASKS, "cr_status"]["detail"]
    assert not found[TASKS, "cr_statusmessage"]["blocking"]
    assert "should be a string" in found[CONVERSATIONS, "cr_direction"]["detail"]


def test_tasks_in_a_table_of_another_name(double: Double, tell: Told) -> None:
    columns = [c for c in double.store.table(TASKS).columns.values() if c.name.startswith(("cr_n", "cr_s", "cr_p"))]
    columns.sort(key=lambda column: column.name != "cr_name")
    double.store.define(Table.of("ex_job", "ex_jobs", columns))
    code, out, _ = tell(double, "schema", "diff", "--json", TABLE_NAME="ex_jobs")
    assert code == 0
    found = json.loads(out)
    assert {d["table"] for d in found} == {"ex_jobs"}
    assert "cr_result" in {d["column"] for d in found}
    assert tell(double, "schema", "create", TABLE_NAME="ex_jobs")[0] == 0
    assert "cr_result" in double.store.table("ex_jobs").columns
    assert "cr_taskid" not in double.store.table("ex_jobs").columns
    code, _, err = tell(double, "schema", "create", TABLE_NAME="ex_nothings")
    assert code == 1
    assert "ex_nothings" in err


# -- rows --------------------------------------------------------------------------------------------------------


def test_rows_by_hand(double: Double, tell: Told) -> None:
    hostile = "o'neil' or 1 eq 1 or '@example.com"
    code, out, _ = tell(
        double, "rows", "create", TASKS, "--set", "cr_name=Try", "--set", "cr_status=pending",
        "--set", f"crb3b_useremail={hostile}", "--json",
    )  # fmt: skip
    assert code == 0
    made = json.loads(out)
    assert made["cr_status"] == 1
    double.seed(TASKS, cr_name="Other", cr_status=7)

    _, out, _ = tell(double, "rows", "list", TASKS, "--where", f"crb3b_useremail={hostile}", "--json")
    assert [row["id"] for row in json.loads(out)] == [made["id"]]
    _, out, _ = tell(double, "rows", "list", TASKS, "--where", "cr_status!=Pending", "--select", "cr_name,cr_status")
    assert "Other" in out
    assert "Completed" in out
    assert "Try" not in out

    values = ("--set", "cr_status=9", "--set", "crb3b_useremail=")
    _, out, _ = tell(double, "rows", "update", TASKS, made["id"], *values, "--dry-run", "--json")
    assert json.loads(out) == {"dry_run": True, "values": {"cr_status": 9, "crb3b_useremail": None}}
    assert double.tables[TASKS][made["id"]]["cr_status"] == 1
    code, out, _ = tell(double, "rows", "update", TASKS, made["id"], *values, "--json")
    assert code == 0
    assert double.tables[TASKS][made["id"]]["cr_status"] == 9
    assert double.tables[TASKS][made["id"]]["crb3b_useremail"] is None

    code, _, err = tell(double, "rows", "update", TASKS, made["id"], "--set", "cr_status=1", "--etag", made["etag"])
    assert code == 1
    assert "Somebody else has changed" in err
    code, _, err = tell(double, "rows", "delete", TASKS, made["id"], "--etag", made["etag"])
    assert code == 1
    assert tell(double, "rows", "delete", TASKS, made["id"], "--dry-run")[0] == 0
    assert made["id"] in double.tables[TASKS]
    assert tell(double, "rows", "delete", TASKS, made["id"])[0] == 0
    assert made["id"] not in double.tables[TASKS]
    code, _, err = tell(double, "rows", "show", TASKS, made["id"])
    assert code == 1
    assert "There is no row" in err


def test_a_row_with_an_id_is_made_once(double: Double, tell: Told) -> None:
    words = ("rows", "create", MESSAGES, "--set", "cr_name=x", "--id", "0b5e1f9e-0000-4000-8000-00000000000c")
    assert tell(double, *words)[0] == 0
    code, _, err = tell(double, *words)
    assert code == 1
    assert "already" in err
    assert len(double.tables[MESSAGES]) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rows", "create", TASKS, "--set", "cr_nam=x"), "did you mean cr_name"),
        (("rows", "create", TASKS, "--set", "cr_status=done"), "Completed"),
        (("rows", "create", TASKS, "--set", "cr_name"), "COLUMN=VALUE"),
        (("rows", "list", TASKS, "--where", "cr_status eq 1"), "is no condition"),
        (("rows", "list", TASKS, "--where", "createdon<yesterday"), "takes a datetime"),
        (("rows", "list", TASKS, "--orderby", "cr_name sideways"), "no order"),
        (("rows", "list", TASKS, "--select", "cr_name,cr_x'"), "no column"),
    ],
)
def test_what_a_person_mistypes(double: Double, tell: Told, words: tuple[str, ...], said: str) -> None:
    code, out, err = tell(double, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(double.tables[TASKS]) == 0


def test_conditions_of_every_type(double: Double, tell: Told) -> None:
    row_id = double.seed(TASKS, cr_name="a=b", cr_ismirror=True, cr_status=5, createdon="2026-01-31T10:00:00Z")
    conditions = (
        "cr_name=a=b", "cr_name~=", "cr_ismirror=yes", "cr_status>=5", "createdon<2026-02-01", "cr_result=",
        f"_ownerid_value={double.admin.user_id}", f"cr_shraga_taskid={row_id}",
    )  # fmt: skip
    words = [word for condition in conditions for word in ("--where", condition)]
    _, out, _ = tell(double, "rows", "list", TASKS, *words, "--json")
    assert [row["id"] for row in json.loads(out)] == [row_id]


# -- doctor ------------------------------------------------------------------------------------------------------


def findings(out: str) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["state"], one["detail"]) for one in json.loads(out)["checks"]}


def test_a_healthy_organisation(double: Double, tell: Told) -> None:
    code, out, _ = tell(double, "doctor", "--json")
    found = findings(out)
    assert code == 0, out
    assert found["configuration"][0] == "ok"
    assert double.admin.user_id in found["account"][1]
    assert found[f"table {TASKS}"][0] == "ok"
    assert found[f"rights {TASKS}"] == ("ok", "this account may create, read and write all rows")
    assert not [r for r in double.history.requests() if r.method != "GET"]


def test_an_unconfigured_machine_contacts_nothing(
    tell: Told, double: Double, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(double, "--version")
    for name in ("DATAVERSE_URL", "WEBHOOK_USER"):
        monkeypatch.delenv(name)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "DATAVERSE_URL" in out
    assert "WEBHOOK_USER" in out
    assert main(["schema", "check"]) == 2
    assert main(["rows", "list", TASKS]) == 2
    assert len(double.history) == 0


def test_what_is_wrong_is_said_with_what_to_do(double: Double, tell: Told) -> None:
    double.store.drop_column(TASKS, "cr_result")
    double.store.drop_column(USERS, "crb3b_lastseen")
    code, out, _ = tell(double, "doctor", "--json")
    found = findings(out)
    assert code == 1
    assert found[f"table {TASKS}"][0] == "wrong"
    assert "cr_result" in found[f"table {TASKS}"][1]
    assert "schema create" in found[f"table {TASKS}"][1]
    assert found[f"table {MESSAGES}"][0] == "ok"

    code, out, _ = tell(double, "doctor", DATAVERSE_TOKEN="wrong-token-of-nobody")
    assert code == 1
    assert "operator-dataverse authenticate" in out
    assert "wrong-token-of-nobody" not in out


def test_what_an_account_may_do(double: Double, tell: Told) -> None:
    bob = double.add_account("bob@example.com", reach="own")
    _, out, _ = tell(double, "doctor", "--json", DATAVERSE_TOKEN=bob.token)
    assert "rows of its own" in findings(out)[f"rights {TASKS}"][1]
    double.faults.add(Fault("forbidden", path="RetrieveUserPrivileges"))
    code, out, _ = tell(double, "doctor", "--json")
    assert code == 0
    assert findings(out)[f"rights {TASKS}"][0] == "warning"
    double.faults.add(Fault("forbidden", method="GET", path=f"{MESSAGES}\\?"))
    code, out, _ = tell(double, "doctor", "--json")
    assert code == 1
    assert findings(out)[f"rights {MESSAGES}"][0] == "wrong"
    assert "security role" in findings(out)[f"rights {MESSAGES}"][1]


def test_no_credential_at_all(double: Double, tell: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # none that looks for a service
    code, out, _ = tell(double, "doctor", DATAVERSE_TOKEN="")
    assert code == 1
    assert "az login" in out
    assert "DATAVERSE_TOKEN" in out
