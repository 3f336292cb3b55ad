"""A PostgreSQL server that is frozen keeps its connections and is silent: whoever asks is told in time, work waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from operator_core import clock
from operator_core.db.tickets import TicketDB
from operator_core.mcp.http import PATH, StoreGate, http_app
from operator_core.model.person import Role
from operator_core.web.app import create_app
from tests.support import PostgresCluster
from tests.support.web import BASE, WebSite, open_web

STORE_S = 1.0
# An answer in its time, and two seconds in which the driver lets go of a connection.
SOON_S = STORE_S + 4.0
INCIDENT = {"name": "disk", "message": "The disk is full."}

pytestmark = pytest.mark.xdist_group("postgres-crash")


@pytest.fixture
async def web(fresh_postgres: str) -> AsyncIterator[WebSite]:
    async with open_web(fresh_postgres) as site:
        site.app = create_app(site.site, store_s=STORE_S)
        yield site


async def test_whoever_asks_is_told_in_time(web: WebSite, postgres_cluster: PostgresCluster) -> None:
    client, browser = web.client(Role.OPERATOR), await web.browser(Role.OPERATOR)
    assert (await client.get("/api/v1/tickets")).status_code == 200
    key = {"Idempotency-Key": "one"}

    async def ask(which: httpx2.AsyncClient, method: str, path: str, **more: object) -> tuple[float, httpx2.Response]:
        began = clock.monotonic()
        async with asyncio.timeout(10 * SOON_S):
            answer = await which.request(method, path, **more)  # type: ignore[arg-type]
        return clock.monotonic() - began, answer

    with postgres_cluster.frozen():
        # More at once than there are connections.
        found = await asyncio.gather(
            *(ask(client, "GET", "/api/v1/tickets") for _ in range(20)),
            ask(client, "POST", "/api/v1/incidents", json=INCIDENT, headers=key),
            ask(browser, "GET", "/"),
            ask(browser, "GET", "/nowhere"),
        )
        for took, answer in found[:-1]:
            assert answer.status_code == 503, answer.text
            assert "does not answer; look at it" in answer.text
            assert answer.headers["Retry-After"]
            assert took < SOON_S, f"{answer.request.url} took {took:.1f} s"
        took, nowhere = found[-1]
        assert (nowhere.status_code, took < SOON_S) == (404, True)
        assert (await client.get("/livez")).status_code == 200
    for _ in range(2):
        assert (await client.post("/api/v1/incidents", json=INCIDENT, headers=key)).status_code == 201
    assert len((await client.get(f"{BASE}/api/v1/tickets")).json()["items"]) == 1


async def test_a_program_that_asks_by_mcp_is_told_too(web: WebSite, postgres_cluster: PostgresCluster) -> None:
    headers = {"Authorization": f"Bearer {web.tokens[Role.VIEWER]}", "Accept": "application/json, text/event-stream"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list", "arguments": {}}}
    async with (
        http_app(StoreGate(web.site.api), 8643, write=False, most=10_000, store_s=STORE_S) as app,
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:8643", headers=headers
        ) as client,
    ):
        assert (await client.post(PATH, json=call)).status_code == 200
        with postgres_cluster.frozen():
            async with asyncio.timeout(SOON_S):
                answer = await client.post(PATH, json=call)
        assert (answer.status_code, "does not answer" in answer.text) == (503, True)
        assert (await client.post(PATH, json=call)).status_code == 200


async def test_work_waits(web: WebSite, postgres_cluster: PostgresCluster) -> None:
    tickets = TicketDB(web.database)
    await tickets.list_tickets()
    with postgres_cluster.frozen():
        writing = asyncio.create_task(tickets.open_ticket("disk", "full"))
        reading = asyncio.create_task(tickets.list_tickets())
        done, _ = await asyncio.wait({writing, reading}, timeout=2 * STORE_S)
        assert not done
    async with asyncio.timeout(20):
        assert (await writing).invariant_name == "disk"
        await reading
