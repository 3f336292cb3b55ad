"""The double over HTTP, as Dataverse documents itself: versions, conditions, limits, pages, faults, definitions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from operator_dataverse.double import Double, Fault

TASKS = "cr_shraga_tasks"
NOBODY = "00000000-0000-0000-0000-000000000001"
FORMATTED = "@OData.Community.Display.V1.FormattedValue"


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as double:
        yield double


@pytest.fixture
async def web(double: Double) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {double.token}"}
    async with httpx2.AsyncClient(base_url=f"{double.url}/api/data/v9.2/", headers=headers) as client:
        yield client


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def etag_of(web: httpx2.AsyncClient, row_id: str) -> str:
    return str((await web.get(f"{TASKS}({row_id})")).json()["@odata.etag"])


async def test_who(double: Double, web: httpx2.AsyncClient) -> None:
    assert (await web.get("WhoAmI")).json()["UserId"] == double.admin.user_id
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {double.token}"}):
        answer = await web.get("WhoAmI", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert double.token not in double.history.text()


async def test_create(double: Double, web: httpx2.AsyncClient) -> None:
    answer = await web.post(TASKS, json={"cr_name": "A", "cr_status": 1})
    assert answer.status_code == 204
    assert not answer.content
    row_id = re.fullmatch(rf"{re.escape(double.url)}/api/data/v9.2/{TASKS}\((.*)\)", answer.headers["OData-EntityId"])
    assert row_id is not None
    row = double.tables[TASKS][row_id[1]]
    assert (row["cr_name"], row["cr_status"], row["_ownerid_value"]) == ("A", 1, double.admin.user_id)
    answer = await web.post(TASKS, json={"cr_name": "B"}, headers={"Prefer": "return=representation"})
    assert answer.status_code == 201
    assert answer.headers["Preference-Applied"] == "return=representation"
    assert answer.json()["cr_name"] == "B"
    assert answer.json()["@odata.etag"].startswith('W/"')
    own = await web.post(TASKS, json={"cr_name": "C", "cr_shraga_taskid": NOBODY})
    assert own.status_code == 204
    assert NOBODY in own.headers["OData-EntityId"]
    assert code(await web.post(TASKS, json={"cr_shraga_taskid": NOBODY})) == (412, "0x80040237")


async def test_a_version_is_good_once(double: Double, web: httpx2.AsyncClient) -> None:
    row_id = double.seed(TASKS, cr_name="A", cr_status=1)
    etag = await etag_of(web, row_id)
    body = {"cr_status": 5}
    answers = await asyncio.gather(
        *(web.patch(f"{TASKS}({row_id})", json=body, headers={"If-Match": etag}) for _ in range(20))
    )
    assert sorted(answer.status_code for answer in answers) == [204] + [412] * 19
    assert {code(answer) for answer in answers if answer.status_code == 412} == {(412, "0x80060882")}
    assert len(double.history.effects(TASKS, row_id)) == 1
    assert await etag_of(web, row_id) != etag


async def test_a_version_rises_also_when_nothing_changes(double: Double, web: httpx2.AsyncClient) -> None:
    row_id = double.seed(TASKS, cr_name="A")
    etag = await etag_of(web, row_id)
    answer = await web.patch(
        f"{TASKS}({row_id})",
        json={"cr_name": "A"},
        headers={"If-Match": etag, "Prefer": "return=representation"},
    )
    assert answer.status_code == 200
    assert answer.json()["@odata.etag"] == await etag_of(web, row_id) != etag


async def test_patch_without_a_condition_is_an_upsert(double: Double, web: httpx2.AsyncClient) -> None:
    assert (await web.patch(f"{TASKS}({NOBODY})", json={"cr_name": "made"})).status_code == 204
    assert double.tables[TASKS][NOBODY]["cr_name"] == "made"
    assert [request.method for request in double.history.unconditional()] == ["PATCH"]


async def test_conditions(double: Double, web: httpx2.AsyncClient) -> None:
    only_create, only_update = {"If-None-Match": "*"}, {"If-Match": "*"}
    row = f"{TASKS}({NOBODY})"
    assert code(await web.patch(row, json={"cr_name": "A"}, headers=only_update)) == (404, "0x80040217")
    assert code(await web.patch(row, json={"cr_name": "A"}, headers={"If-Match": 'W/"1"'})) == (404, "0x80040217")
    assert (await web.patch(row, json={"cr_name": "A"}, headers=only_create)).status_code == 204
    assert code(await web.patch(row, json={"cr_name": "B"}, headers=only_create)) == (412, "0x80040237")
    assert double.tables[TASKS][NOBODY]["cr_name"] == "A"
    assert (await web.patch(row, json={"cr_name": "B"}, headers=only_update)).status_code == 204
    assert code(await web.delete(row, headers={"If-Match": 'W/"1"'})) == (412, "0x80060882")
    assert (await web.get(row, headers={"If-None-Match": double.tables[TASKS].etag(NOBODY)})).status_code == 304
    assert (await web.delete(row, headers={"If-Match": double.tables[TASKS].etag(NOBODY)})).status_code == 204
    assert code(await web.get(row)) == (404, "0x80040217")
    assert not double.history.unconditional()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"cr_name": "x" * 101}, "0x80044331"),
        ({"cr_name": "\U0001f600" * 51}, "0x80044331"),  # two code units each
        ({"cr_nmae": "x"}, "0x80048d19"),
        ({"cr_status": "5"}, "0x80048d19"),
        ({"cr_status": True}, "0x80048d19"),
        ({"cr_status": 2}, "0x8004431a"),
        ({"cr_name": 5}, "0x80048d19"),
        ({"cr_name": "a\x1b[31m"}, "0x80040278"),
        ({"cr_name": "a\x00"}, "0x80040278"),
        ({"cr_ismirror": "true"}, "0x80048d19"),
        ({"crb3b_heartbeat": "yesterday"}, "0x80048d19"),
        ({"ownerid@odata.bind": "/systemusers(x)"}, "0x80048d19"),
        (["cr_name"], "0x80048d19"),
    ],
)
async def test_values_that_a_column_does_not_take(
    double: Double, web: httpx2.AsyncClient, values: Any, expected: str
) -> None:
    row_id = double.seed(TASKS, cr_name="A", cr_status=1)
    before = double.tables[TASKS][row_id]
    assert code(await web.post(TASKS, json=values)) == (400, expected)
    answer = await web.patch(f"{TASKS}({row_id})", json=values, headers={"If-Match": "*"})
    assert code(answer) == (400, expected)
    assert double.tables[TASKS][row_id] == before
    assert len(double.tables[TASKS]) == 1


async def test_values_as_they_are_stored(double: Double, web: httpx2.AsyncClient) -> None:
    row_id = double.seed(TASKS, cr_name="A")
    body = {
        "cr_name": "\U0001f600" * 50,
        "cr_statusmessage": "",
        "crb3b_heartbeat": "2026-01-31T12:20:30.999+02:00",
        "createdon": "1999-01-01T00:00:00Z",
    }
    assert (await web.patch(f"{TASKS}({row_id})", json=body, headers={"If-Match": "*"})).status_code == 204
    row = (await web.get(f"{TASKS}({row_id})")).json()
    assert row["cr_name"] == "\U0001f600" * 50
    assert row["cr_statusmessage"] is None  # the database keeps no empty text
    assert row["crb3b_heartbeat"] == "2026-01-31T10:20:30Z"  # whole seconds, UTC
    assert row["createdon"] > "2020"  # clients do not write it


async def test_reading(double: Double, web: httpx2.AsyncClient) -> None:
    row_id = double.seed(TASKS, cr_name="A", cr_status=5, crb3b_heartbeat="2026-01-31T15:04:00Z")
    every = (await web.get(f"{TASKS}({row_id})")).json()
    assert every["cr_prompt"] is None
    assert not any(FORMATTED in name for name in every)
    prefer = {"Prefer": f'odata.include-annotations="{FORMATTED[1:]}"'}
    some = (await web.get(f"{TASKS}({row_id})", params={"$select": "cr_status"}, headers=prefer)).json()
    assert some.keys() == {"@odata.context", "@odata.etag", "cr_status", f"cr_status{FORMATTED}", "cr_shraga_taskid"}
    assert some[f"cr_status{FORMATTED}"] == "Running"
    every = (await web.get(f"{TASKS}({row_id})", headers={"Prefer": 'odata.include-annotations="*"'})).json()
    assert every[f"crb3b_heartbeat{FORMATTED}"] == "1/31/2026 3:04 PM"
    assert every[f"_ownerid_value{FORMATTED}"] == "admin@example.com"


@pytest.mark.parametrize(
    "options",
    [
        {"$select": "cr_nmae"},
        {"$filter": "cr_status eq '1'"},
        {"$orderby": "cr_nmae"},
        {"$top": "0"},
        {"$top": "-1"},
        {"$top": "x"},
        {"$skip": "1"},
        {"$search": "x"},
        {"$skiptoken": "x"},
    ],
)
async def test_questions_that_are_refused(web: httpx2.AsyncClient, options: dict[str, str]) -> None:
    assert code(await web.get(TASKS, params=options)) == (400, "0x80060888")


@pytest.mark.parametrize(
    ("path", "status"), [("cr_things", 404), (f"{TASKS}(1)", 400), (f"{TASKS}({NOBODY})/cr_name", 404), ("", 404)]
)
async def test_addresses_that_do_not_exist(web: httpx2.AsyncClient, path: str, status: int) -> None:
    assert (await web.get(path)).status_code == status


async def test_pages(double: Double, web: httpx2.AsyncClient) -> None:
    ids = [double.seed(TASKS, cr_name=f"{n % 3}", cr_status=1) for n in range(10)]
    double.seed(TASKS, cr_name="9", cr_status=5)
    seen, link, pages = [], f"{TASKS}?$filter=cr_status eq 1&$orderby=cr_name desc&$select=cr_name", 0
    while link:
        answer = (await web.get(link, headers={"Prefer": "odata.maxpagesize=4"})).json()
        seen += [(row["cr_name"], row["cr_shraga_taskid"]) for row in answer["value"]]
        pages += 1
        if pages == 1:
            # Pages hold although rows come, go and change between them.
            double.change(TASKS, seen[0][1], cr_status=7)
            double.seed(TASKS, cr_name="2", cr_status=7)
        link = answer.get("@odata.nextLink")
    assert pages == 3
    assert sorted(row_id for _, row_id in seen) == sorted(ids)
    assert [name for name, _ in seen] == ["2"] * 3 + ["1"] * 3 + ["0"] * 4
    answer = (
        await web.get(TASKS, params={"$top": "2", "$count": "true"}, headers={"Prefer": "odata.maxpagesize=1"})
    ).json()
    assert (len(answer["value"]), answer["@odata.count"], "@odata.nextLink" in answer) == (2, 12, False)


async def test_rows_of_others(double: Double, web: httpx2.AsyncClient) -> None:
    alice = double.add_account("alice@example.com", reach="own")
    mine, hers = double.seed(TASKS, cr_name="mine"), double.seed(TASKS, account=alice, cr_name="hers")
    headers = {"Authorization": f"Bearer {alice.token}"}
    seen = (await web.get(TASKS, headers=headers)).json()["value"]
    assert [row["cr_shraga_taskid"] for row in seen] == [hers]
    assert code(await web.get(f"{TASKS}({mine})", headers=headers)) == (403, "0x80040220")
    answer = await web.patch(f"{TASKS}({mine})", json={"cr_name": "x"}, headers={**headers, "If-Match": "*"})
    assert code(answer) == (403, "0x80040220")
    bind = {"ownerid@odata.bind": f"/systemusers({alice.user_id})"}
    assert (await web.patch(f"{TASKS}({mine})", json=bind, headers={"If-Match": "*"})).status_code == 204
    assert (await web.get(f"{TASKS}({mine})", headers=headers)).status_code == 200


async def test_privileges(double: Double, web: httpx2.AsyncClient) -> None:
    reader = double.add_account("bob@example.com", without=["prvWritecr_shraga_task", "prvCreatecr_shragamessage"])
    row_id = double.seed(TASKS, cr_name="A")
    headers = {"Authorization": f"Bearer {reader.token}"}
    assert (await web.get(f"{TASKS}({row_id})", headers=headers)).status_code == 200
    answer = await web.patch(f"{TASKS}({row_id})", json={"cr_name": "B"}, headers={**headers, "If-Match": "*"})
    assert code(answer) == (403, "0x80040220")
    assert code(await web.post("cr_shragamessages", json={"cr_name": "x"}, headers=headers)) == (403, "0x80040220")
    where = f"systemusers({reader.user_id})/Microsoft.Dynamics.CRM.RetrieveUserPrivileges"
    granted = {one["PrivilegeName"] for one in (await web.get(where)).json()["RolePrivileges"]}
    assert "prvReadcr_shraga_task" in granted
    assert not granted & reader.without
    assert double.tables[TASKS][row_id]["cr_name"] == "A"


async def test_a_token_that_ended(double: Double, web: httpx2.AsyncClient) -> None:
    assert (await web.get(TASKS)).status_code == 200
    double.store.expel(double.token)
    assert (await web.get(TASKS)).status_code == 401


async def test_throttling(double: Double, web: httpx2.AsyncClient) -> None:
    fault = double.faults.add(Fault("throttle", times=1, retry_after="7", path=TASKS))
    answer = await web.post(TASKS, json={"cr_name": "A"})
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] in ("0x80072321", "0x80072322", "0x80072326")
    assert answer.headers["Retry-After"] == "7"
    assert fault.hits == 1
    assert (await web.post(TASKS, json={"cr_name": "A"})).status_code == 204
    assert len(double.tables[TASKS]) == 1


async def test_lost_answers(double: Double, web: httpx2.AsyncClient) -> None:
    double.faults.drop_answer(method="POST")
    with pytest.raises(httpx2.TransportError):
        await web.post(TASKS, json={"cr_name": "A"})
    assert len(double.tables[TASKS]) == 1
    double.faults.add(Fault("drop_request", times=1))
    with pytest.raises(httpx2.TransportError):
        await web.post(TASKS, json={"cr_name": "B"})
    assert len(double.tables[TASKS]) == 1
    assert [request.status for request in double.history] == [0, 0]
    double.faults.add(Fault("unauthorized", times=1))
    assert (await web.get("WhoAmI")).status_code == 401
    assert (await web.get("WhoAmI")).status_code == 200


async def test_a_storm_can_be_repeated() -> None:
    async def weather() -> list[int]:
        with Double(seed=7) as double:
            double.faults.storm(0.3)
            headers = {"Authorization": f"Bearer {double.token}"}
            async with httpx2.AsyncClient(base_url=f"{double.url}/api/data/v9.2/", headers=headers) as web:
                return [(await web.get("WhoAmI")).status_code for _ in range(200)]

    first = await weather()
    assert await weather() == first
    assert {200, 429, 503} == set(first)
    assert 35 < len(first) - first.count(200) < 85


async def test_time(double: Double, web: httpx2.AsyncClient) -> None:
    old = double.seed(TASKS, cr_name="old", createdon="2020-01-01T00:00:00Z", modifiedon="2020-01-01T00:00:00Z")
    assert (await web.get(f"{TASKS}({old})")).json()["createdon"] == "2020-01-01T00:00:00Z"
    row_id = double.seed(TASKS, cr_name="new")
    double.clock.advance(3600)
    double.change(TASKS, row_id, cr_name="newer")
    row = double.tables[TASKS][row_id]
    assert row["modifiedon"][:16] != row["createdon"][:16]


async def test_definitions(double: Double, web: httpx2.AsyncClient) -> None:
    where = "EntityDefinitions(LogicalName='cr_shraga_task')"
    table = (await web.get(where, params={"$select": "EntitySetName,PrimaryIdAttribute"})).json()
    assert (table["EntitySetName"], table["PrimaryIdAttribute"]) == (TASKS, "cr_shraga_taskid")
    assert "LogicalName" not in table
    found = (await web.get("EntityDefinitions", params={"$filter": f"EntitySetName eq '{TASKS}'"})).json()["value"]
    assert [entity["LogicalName"] for entity in found] == ["cr_shraga_task"]
    attributes = {a["LogicalName"]: a for a in (await web.get(f"{where}/Attributes")).json()["value"]}
    assert attributes["cr_name"]["MaxLength"] == 100
    assert attributes["cr_status"]["AttributeType"] == "Picklist"
    cast = f"{where}/Attributes/Microsoft.Dynamics.CRM.PicklistAttributeMetadata"
    choices = (await web.get(cast, params={"$expand": "OptionSet", "$select": "LogicalName"})).json()["value"]
    status = next(choice for choice in choices if choice["LogicalName"] == "cr_status")
    assert [option["Value"] for option in status["OptionSet"]["Options"]] == [1, 3, 5, 6, 7, 8, 9]
    assert (await web.get("EntityDefinitions(LogicalName='cr_thing')")).status_code == 404


def _label(text: str) -> dict[str, Any]:
    return {"LocalizedLabels": [{"Label": text, "LanguageCode": 1033}]}


async def test_making_a_table(double: Double, web: httpx2.AsyncClient) -> None:
    name = {
        "@odata.type": "Microsoft.Dynamics.CRM.StringAttributeMetadata",
        "SchemaName": "cr_Name",
        "MaxLength": 10,
        "IsPrimaryName": True,
    }
    table = {"SchemaName": "cr_Thing", "OwnershipType": "UserOwned", "DisplayName": _label("T"), "Attributes": [name]}
    choice = {
        "@odata.type": "Microsoft.Dynamics.CRM.PicklistAttributeMetadata",
        "SchemaName": "cr_kind",
        "OptionSet": {"Options": [{"Value": 3, "Label": _label("Three")}]},
    }
    for wrong in (
        {**table, "SchemaName": "Thing"},
        {**table, "OwnershipType": None},
        {**table, "Attributes": []},
        {**table, "Attributes": [{**name, "MaxLength": 4001}]},
    ):
        assert (await web.post("EntityDefinitions", json=wrong)).status_code == 400
    assert (await web.post("EntityDefinitions", json=table)).status_code == 204
    assert (await web.post("EntityDefinitions", json=table)).status_code == 400
    where = "EntityDefinitions(LogicalName='cr_thing')/Attributes"
    assert (await web.post(where, json=choice)).status_code == 204
    assert (await web.post(where, json=choice)).status_code == 400
    assert (await web.post("PublishAllXml", json={})).status_code == 204
    assert (await web.post("cr_things", json={"cr_name": "A", "cr_kind": 3})).status_code == 204
    assert code(await web.post("cr_things", json={"cr_name": "A" * 11})) == (400, "0x80044331")
    assert code(await web.post("cr_things", json={"cr_kind": 4})) == (400, "0x8004431a")


async def test_only_what_must_be_there() -> None:
    with Double(optional_columns=False) as double:
        columns = double.store.table(TASKS).columns
        assert "crb3b_heartbeat" not in columns
        assert "cr_status" in columns


async def test_history(double: Double, web: httpx2.AsyncClient) -> None:
    row_id = double.seed(TASKS, cr_name="A", cr_status=1)
    for status in (5, 5, 7):
        await web.patch(f"{TASKS}({row_id})", json={"cr_status": status}, headers={"If-Match": "*"})
    await web.get(TASKS)
    assert double.history.values(TASKS, row_id, "cr_status") == [5, 7]
    assert len(double.history.requests("PATCH", TASKS)) == 3
    assert "cr_status: 5 -> 7" in double.history.text()
    assert "If-Match: *" in double.history.text()


DEVBOXES = "projects/example/users/me/devboxes"
VERSION = {"api-version": "2024-02-01"}


@pytest.fixture
async def center(double: Double) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {double.token}", "User-Agent": "test"}
    async with httpx2.AsyncClient(base_url=double.devcenter_url, headers=headers, params=VERSION) as client:
        yield client


async def test_a_box_takes_its_time(double: Double, center: httpx2.AsyncClient) -> None:
    double.devcenter.takes_s = 600
    made = await center.put(f"{DEVBOXES}/shraga-box-01", json={"poolName": "example-pool"})
    assert made.status_code == 201
    assert made.json()["provisioningState"] == "Creating"
    operation = made.headers["Operation-Location"]
    assert (await center.get(operation)).json()["status"] == "Running"
    assert (await center.get(f"{DEVBOXES}/shraga-box-01/remoteConnection")).status_code == 409
    again = await center.put(f"{DEVBOXES}/shraga-box-01", json={"poolName": "example-pool"})
    assert again.status_code == 409
    double.clock.advance(601)
    assert (await center.get(operation)).json()["status"] == "Succeeded"
    assert (await center.get(f"{DEVBOXES}/shraga-box-01")).json()["provisioningState"] == "Succeeded"
    link = (await center.get(f"{DEVBOXES}/shraga-box-01/remoteConnection")).json()["webUrl"]
    assert link.startswith("https://")
    tools = {"tasks": [{"name": "winget", "parameters": {"package": "Git.Git"}}]}
    group = f"{DEVBOXES}/shraga-box-01/customizationGroups/shraga-tools"
    assert (await center.put(group, json=tools)).status_code == 201
    assert (await center.put(group, json=tools)).status_code == 409
    assert (await center.get(group)).json()["status"] == "Running"
    double.clock.advance(601)
    assert (await center.get(group)).json()["tasks"] == [{"name": "winget", "status": "Succeeded"}]
    gone = await center.delete(f"{DEVBOXES}/shraga-box-01")
    assert gone.status_code == 202
    double.clock.advance(601)
    assert (await center.get(f"{DEVBOXES}/shraga-box-01")).status_code == 404
    assert (await center.get(DEVBOXES)).json()["value"] == []
    assert (await center.delete(f"{DEVBOXES}/shraga-box-01")).status_code == 204


async def test_what_dev_center_refuses(double: Double, center: httpx2.AsyncClient) -> None:
    box = f"{DEVBOXES}/shraga-box-01"
    assert (await center.put(box, json={"poolName": "no-pool"})).status_code == 400
    assert (await center.get("projects/other/pools")).status_code == 404
    blocked = await center.get(DEVBOXES, headers={"User-Agent": "python-requests/2.32"})
    assert (blocked.status_code, blocked.json()["error"]["code"]) == (403, "RequestBlocked")
    double.devcenter.fail_next("no quota")
    made = await center.put(box, json={"poolName": "example-pool"})
    double.clock.advance(1)
    failed = (await center.get(made.headers["Operation-Location"])).json()
    assert (failed["status"], failed["error"]["message"]) == ("Failed", "no quota")
    assert (await center.get(box)).json()["provisioningState"] == "Failed"


async def test_flows(double: Double) -> None:
    base = f"{double.flow_url}/providers/Microsoft.ProcessSimple/environments/Default-example/flows"
    flow_id = double.flows.add("TaskRunner")
    headers, params = {"Authorization": f"Bearer {double.token}"}, {"api-version": "2016-11-01"}
    async with httpx2.AsyncClient(headers=headers, params=params) as api:
        [listed] = (await api.get(base)).json()["value"]
        assert listed["properties"]["displayName"] == "TaskRunner"
        assert "definition" not in listed["properties"]
        flow = (await api.get(f"{base}/{flow_id}")).json()["properties"]
        definition = {**flow["definition"], "actions": {"a": {"type": "Compose", "runAfter": {}}}}
        changed = await api.patch(f"{base}/{flow_id}", json={"properties": {"definition": definition}})
        assert changed.status_code == 200
        assert (await api.get(f"{base}/{flow_id}")).json()["properties"]["definition"] == definition
        loose = {**definition, "actions": {"a": {"type": "Compose", "runAfter": {"b": ["Succeeded"]}}}}
        refused = await api.patch(f"{base}/{flow_id}", json={"properties": {"definition": loose}})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "InvalidTemplate")
        assert (await api.get(f"{base}/{NOBODY}")).status_code == 404
        assert (await api.post(f"{base}/{flow_id}/stop")).status_code == 200
        assert double.flows.environments["Default-example"][flow_id]["state"] == "Stopped"


def _message(*elements: dict[str, Any], **more: Any) -> dict[str, Any]:
    card = {"type": "AdaptiveCard", "version": "1.4", "body": list(elements), **more}
    return {
        "type": "message",
        "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
    }


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (_message({"type": "TextBlock", "text": "Hello"}), ""),
        (_message({"type": "TextBlok", "text": "Hello"}), "no element 'TextBlok'"),
        (_message({"type": "TextBlock"}), "TextBlock needs 'text'"),
        (_message(version="2.0"), "version '2.0'"),
        (_message({"type": "FactSet", "facts": [{"title": "x"}]}), "a fact needs"),
        (_message(actions=[{"type": "Action.OpenUrl", "title": "x", "url": "javascript:x"}]), "goes to"),
        (_message({"type": "Input.Text", "id": "a"}, {"type": "Input.Text", "id": "a"}), "twice"),
        ({"type": "message"}, "no message with attachments"),
        ({"type": "message", "attachments": [{"contentType": "text/html"}]}, "no adaptive card"),
    ],
)
async def test_cards(double: Double, message: dict[str, Any], problem: str) -> None:
    async with httpx2.AsyncClient() as teams:
        answer = await teams.post(double.webhook_url, json=message)
        too_long = await teams.post(double.webhook_url, json=_message({"type": "TextBlock", "text": "x" * 28_700}))
        assert (await teams.post(f"{double.url}/teams/x", json=message)).status_code == 404
    assert answer.status_code == (400 if problem else 202)
    assert too_long.status_code == 413
    assert len(double.cards) == (0 if problem else 1)
    assert problem in double.webhook.refused[0]


async def test_bodies_that_are_none(double: Double, web: httpx2.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    for content in ("{", '{"cr_name":', "[" * 100_000, '{"cr_name": "\\ud800"}'):
        answer = await web.post(TASKS, content=content, headers=headers)
        assert answer.status_code == 400
        assert json.loads(answer.content)["error"]["message"]
    assert (await web.post(TASKS, content="{}", headers={"Content-Type": "text/plain"})).status_code == 415
    assert (await web.get(TASKS, params={"$filter": f"cr_name eq '{'x' * 33_000}'"})).status_code == 414
    assert len(double.tables[TASKS]) == 0
