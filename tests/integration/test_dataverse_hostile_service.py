"""The client on a service that is broken, misconfigured or malicious: one sentence, no token given away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from operator_core.clock import Clock
from operator_dataverse.cli.doctor import look_at_rights
from operator_dataverse.client import Dataverse, Row, StaticToken
from operator_dataverse.double.server import Served
from operator_dataverse.errors import DataverseError, Refused, SchemaProblem, Unreachable

TOKEN = "s3cret.token.of-nobody"
ROW = {"cr_thingid": "0b5e1f9e-0000-4000-8000-00000000000a", "cr_name": "x", "@odata.etag": 'W/"1"'}
DEFINITIONS = {
    "EntityDefinitions": [
        {
            "LogicalName": "cr_thing",
            "EntitySetName": "cr_things",
            "PrimaryIdAttribute": "cr_thingid",
            "PrimaryNameAttribute": "cr_name",
        }
    ],
    "Attributes": [
        {"LogicalName": "cr_thingid", "AttributeType": "Uniqueidentifier"},
        {"LogicalName": "cr_name", "AttributeType": "String", "MaxLength": 100},
        {"LogicalName": "cr_namename", "AttributeType": "Virtual", "AttributeOf": "cr_name"},
        {"LogicalName": "cr_odd", "AttributeType": None, "MaxLength": True, "RequiredLevel": "x"},
        {"AttributeType": "String"},
    ],
    "Microsoft.Dynamics.CRM.PicklistAttributeMetadata": [],
}


class Service:
    """Answers what a test puts into it; definitions of one table are there."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.answers: list[Response] = []
        self.always: Callable[[Request], Response] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.asked.append(request)
        last = request.url.path.rsplit("/", 1)[-1]
        if last in DEFINITIONS:
            answer: Response = JSONResponse({"value": DEFINITIONS[last]})
        elif self.answers:
            answer = self.answers.pop(0)
        else:
            answer = self.always(request) if self.always is not None else Response(status_code=404)
        await answer(scope, receive, send)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest_asyncio.fixture
async def client(service: Service) -> AsyncIterator[Dataverse]:
    with Served(service) as served:
        async with Dataverse(served.url, StaticToken(TOKEN), retry_s=20.0, clock=Clock(50.0)) as dataverse:
            yield dataverse


async def everything(client: Dataverse) -> list[Row]:
    return [row async for row in client.rows("cr_things")]


async def test_a_page_elsewhere_is_not_fetched(client: Dataverse, service: Service) -> None:
    other = Service()
    with Served(other) as elsewhere:
        for link in (f"{elsewhere.url}/api/data/v9.2/cr_things?x", client.url.replace("http:", "https:") + "/x"):
            service.answers = [JSONResponse({"value": [ROW], "@odata.nextLink": link})]
            with pytest.raises(Refused, match="does not go"):
                await everything(client)
    assert other.asked == []


async def test_a_page_that_comes_again_ends_the_reading(client: Dataverse, service: Service) -> None:
    link = f"{client.url}/api/data/v9.2/cr_things?$skiptoken=1"
    service.always = lambda _: JSONResponse({"value": [ROW], "@odata.nextLink": link})
    with pytest.raises(DataverseError, match="repeats a page"):
        await everything(client)


async def test_a_redirection_is_not_followed(client: Dataverse, service: Service) -> None:
    service.always = lambda _: RedirectResponse("https://login.example.com/")
    with pytest.raises(Refused, match="correct the configured address"):
        await client.whoami()
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    "body", [b"<html>Sign in</html>", b"\xff\xfe", b"[" * 200_000, b"[1]", b'"x"', b"", b'{"UserId": 5}']
)
async def test_an_answer_that_is_none(client: Dataverse, service: Service, body: bytes) -> None:
    service.always = lambda _: Response(body, media_type="application/json")
    with pytest.raises(DataverseError, match="check the configured address"):
        await client.whoami()


@pytest.mark.parametrize(
    "body",
    [{"error": {"message": f"bad Bearer {TOKEN}"}}, {"error": "x" + TOKEN}, [TOKEN], {"error": {"message": [TOKEN]}}],
)
async def test_a_refusal_that_repeats_the_token(client: Dataverse, service: Service, body: Any) -> None:
    service.always = lambda _: JSONResponse(body, 400)
    with pytest.raises(Refused) as told:
        await client.whoami()
    assert TOKEN not in str(told.value)
    service.always = lambda _: Response(f"no {TOKEN}\x1b[31m" * 10_000, 400)
    with pytest.raises(Refused) as told:
        await client.whoami()
    assert TOKEN not in str(told.value)
    assert "\x1b" not in str(told.value)
    assert len(str(told.value)) < 700


async def test_rows_that_are_none(client: Dataverse, service: Service) -> None:
    for value in ([{"cr_name": "x"}], [5], [{"cr_thingid": None}]):
        service.answers = [JSONResponse({"value": value})]
        with pytest.raises(SchemaProblem, match="cr_thingid"):
            await everything(client)
    service.answers = [JSONResponse({"value": "x"}), JSONResponse({})]
    assert await everything(client) == await everything(client) == []


async def test_odd_definitions_are_read_as_far_as_they_go(client: Dataverse) -> None:
    info = await client.info("cr_things")
    assert set(info.columns) == {"cr_thingid", "cr_name", "cr_odd"}
    assert (info.columns["cr_odd"].type, info.columns["cr_odd"].max_length) == ("other", None)
    assert info.only(["cr_name", "cr_none", "_ownerid_value"]) == ("cr_name", "_ownerid_value")


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
async def test_a_failure_that_passes(client: Dataverse, service: Service, status: int) -> None:
    service.answers = [Response(status_code=status), Response("busy", status)]
    service.always = lambda _: JSONResponse({"UserId": "A"})
    assert await client.whoami() == "a"


async def test_a_failure_that_stays(client: Dataverse, service: Service) -> None:
    service.always = lambda _: JSONResponse({"error": {"code": "0x80040216", "message": "unexpected"}}, 500)
    with pytest.raises(Refused, match="unexpected") as told:
        await client.whoami()
    assert (told.value.status, told.value.code) == (500, "0x80040216")
    assert len(service.asked) > 3
    service.always = lambda _: Response(status_code=502)
    with pytest.raises(Unreachable, match="HTTP 502"):
        await client.whoami()


async def test_a_change_whose_failure_is_uncertain(client: Dataverse, service: Service) -> None:
    service.answers = [Response(status_code=504), Response(status_code=412), JSONResponse(ROW)]
    told = await client.update("cr_things", ROW["cr_thingid"], {"cr_name": "y"}, etag='W/"0"')
    assert not isinstance(told, Row)
    assert told.current is not None
    assert told.current.etag == 'W/"1"'


async def test_a_service_that_sends_no_row_back(client: Dataverse, service: Service) -> None:
    service.answers = [Response(status_code=204), JSONResponse(ROW)]
    made = await client.create("cr_things", {"cr_name": "x"}, row_id=ROW["cr_thingid"])
    assert isinstance(made, Row)
    assert made.etag == 'W/"1"'
    assert [r.method for r in service.asked[-2:]] == ["PATCH", "GET"]


@pytest.mark.parametrize(
    ("body", "state", "said"),
    [
        ({"RolePrivileges": [{"PrivilegeName": "prvReadcr_Thing"}]}, "wrong", "may not create, write rows"),
        ({"RolePrivileges": []}, "warning", "does not say"),
        ({"RolePrivileges": [5, {}]}, "warning", "does not say"),
        ({"RolePrivileges": "x"}, "warning", "does not say"),
        ([], "warning", "does not say"),
    ],
)
async def test_rights_that_are_lacking(client: Dataverse, service: Service, body: Any, state: str, said: str) -> None:
    info = await client.info("cr_things")
    service.answers = [JSONResponse(body), JSONResponse({"value": []})]
    (finding,) = await look_at_rights(client, "0b5e1f9e-0000-4000-8000-00000000000b", [info])
    assert finding.state == state
    assert said in finding.detail


async def test_what_every_request_carries(client: Dataverse, service: Service) -> None:
    service.answers = [JSONResponse(ROW)]
    await client.update("cr_things", ROW["cr_thingid"], {"cr_name": "ü"}, etag='W/"0"')
    for request in service.asked:
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        assert request.headers["accept"] == "application/json"
        assert request.headers["odata-version"] == request.headers["odata-maxversion"] == "4.0"
        assert request.headers["user-agent"].startswith("operator-dataverse/")
    last = service.asked[-1]
    assert last.headers["if-match"] == 'W/"0"'
    assert last.headers["content-type"] == "application/json"
    assert last.url.path == "/api/data/v9.2/cr_things(0b5e1f9e-0000-4000-8000-00000000000a)"
