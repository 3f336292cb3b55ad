"""The client on an OData service by other people (odatapy): its addresses, versions and pages are OData, not ours."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from operator_core.clock import Clock
from operator_dataverse.client import Conflict, Dataverse, Row, StaticToken, field
from operator_dataverse.double import Double
from operator_dataverse.double.definitions import product_tables
from operator_dataverse.double.server import Served
from operator_dataverse.tables import MESSAGES, TASKS
from tests.support.odata import SecondOpinion

ID = "0b5e1f9e-0000-4000-8000-00000000000a"


class Opinion:
    """The service, and the client on it."""

    def __init__(self, service: SecondOpinion, client: Dataverse) -> None:
        self.service = service
        self.client = client


@pytest_asyncio.fixture
async def opinion() -> AsyncIterator[Opinion]:
    with Double() as double:
        service = SecondOpinion(product_tables(), definitions=double._app)
        with Served(service) as served:
            async with Dataverse(served.url, StaticToken(double.token), clock=Clock(100.0)) as client:
                yield Opinion(service, client)


async def test_versions(opinion: Opinion) -> None:
    opinion.service.seed(TASKS, ID, cr_name="Try", cr_status=1)
    client = opinion.client
    row = await client.row(TASKS, ID)
    assert row is not None
    assert row.etag == 'W/"1"'
    changed = await client.update(TASKS, ID, {"cr_status": 5}, etag=row.etag)
    assert isinstance(changed, Row)
    assert changed["cr_status"] == 5
    assert changed.etag == 'W/"2"'
    assert await client.update(TASKS, ID, {"cr_status": 9}, etag=row.etag) == Conflict("changed")
    assert await client.delete(TASKS, ID, etag=row.etag) == Conflict("changed")
    assert await client.delete(TASKS, ID, etag=changed.etag) is None
    assert await client.row(TASKS, ID) is None
    assert await client.update(TASKS, ID, {"cr_status": 9}, etag=changed.etag) == Conflict("missing")


async def test_new_rows(opinion: Opinion) -> None:
    made = await opinion.client.create(MESSAGES, {"cr_name": "it's"})
    assert isinstance(made, Row)
    assert made["cr_name"] == "it's"
    # It knows no creation by PATCH; that a row is there already it sees.
    opinion.service.seed(MESSAGES, ID, cr_name="there")
    assert (await opinion.client.create(MESSAGES, {"cr_name": "again"}, row_id=ID)) == Conflict("exists")
    assert sorted([row["cr_name"] async for row in opinion.client.rows(MESSAGES)]) == ["it's", "there"]


async def test_conditions_orders_and_pages(opinion: Opinion) -> None:
    hostile = "o'neil+1@example.com' or cr_status eq 9 & $top=0 #%27"
    for number in range(10):
        row_id = f"0b5e1f9e-0000-4000-8000-{number:012}"
        email = None if number == 9 else hostile if number % 2 else "bob@example.com"
        opinion.service.seed(TASKS, row_id, cr_name=f"m{number}", cr_status=1, crb3b_useremail=email)
    mine = (field("cr_status") == 1) & ((field("crb3b_useremail") == hostile) | field("crb3b_useremail").eq(None))
    found = opinion.client.rows(TASKS, mine, select=["cr_name"], orderby=["cr_name desc"], page_size=2)
    assert [row["cr_name"] async for row in found] == ["m9", "m7", "m5", "m3", "m1"]
    found = opinion.client.rows(TASKS, mine, orderby=["cr_name"], top=3)
    assert [row["cr_name"] async for row in found] == ["m1", "m3", "m5"]
