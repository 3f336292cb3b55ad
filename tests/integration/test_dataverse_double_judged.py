"""The double judged by a client of other people (odatapy): what it answers is OData to somebody who never saw it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import httpx2
import pytest
from odatapy.client import ODataClient
from odatapy.client.filters import Field
from odatapy.client.responses import ClientResponse, ODataClientError

from operator_dataverse.double import Double

TASKS = "cr_shraga_tasks"


class Transport:
    """Carries requests of odatapy over HTTP."""

    def __init__(self, double: Double) -> None:
        self._http = httpx2.Client(headers={"Authorization": f"Bearer {double.token}"})

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> ClientResponse:
        answer = self._http.request(method, url, headers=headers, content=body or None)
        return ClientResponse(answer.status_code, dict(answer.headers), answer.content)

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as double:
        yield double


@pytest.fixture
def client(double: Double) -> Iterator[ODataClient]:
    transport = Transport(double)
    yield ODataClient(f"{double.url}/api/data/v9.2/", transport)
    transport.close()


def test_a_row_from_its_beginning_to_its_end(double: Double, client: ODataClient) -> None:
    made = client.create_entity(TASKS, {"cr_name": "It's O'Brien", "cr_status": 1})
    assert made.etag
    row_id = made.get_value("cr_shraga_taskid")
    address = client.entity_uri(TASKS, UUID(row_id))
    read = client.get_entity(address)
    assert read.get_value("cr_name") == "It's O'Brien"
    assert read.etag == made.etag
    changed = client.update_entity(address, {"cr_status": 5}, etag=read.etag, return_representation=True)
    assert changed.entity is not None
    assert changed.entity.get_value("cr_status") == 5
    assert changed.entity.etag not in (None, read.etag)
    with pytest.raises(ODataClientError, match="doesn't match the RowVersion"):
        client.update_entity(address, {"cr_status": 7}, etag=read.etag)
    assert double.tables[TASKS][row_id]["cr_status"] == 5
    assert client.delete_entity(address, etag=changed.entity.etag).status_code == 204
    with pytest.raises(ODataClientError, match="Does Not Exist"):
        client.get_entity(address)
    assert not double.history.unconditional()


def test_pages_and_conditions(double: Double, client: ODataClient) -> None:
    for n in range(12):
        double.seed(TASKS, cr_name=f"O'Brien {n:02}", cr_status=1 if n % 2 else 5)
    wanted = client.entity_set_uri(TASKS).filter(Field("cr_status").eq(1) & Field("cr_name").startswith("O'Brien"))
    uri = wanted.orderby("cr_name desc").select("cr_name")
    found = [row.get_value("cr_name") for row in client.iter_entities(uri, prefer="odata.maxpagesize=2")]
    assert found == [f"O'Brien {n:02}" for n in (11, 9, 7, 5, 3, 1)]
    assert len(double.history.requests("GET", TASKS)) == 3
