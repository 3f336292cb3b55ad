"""The doors over HTTP: open to everybody, and closed to whoever does not know the secret."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from operator_core.config import Settings, WebSettings, load_settings
from operator_core.db.tickets import TicketDB
from operator_core.model.person import Role
from tests.support.web import WebSite, open_web
from tests.support.webhooks import SAMPLES, SECRETS, alerts, bearer, from_github, signed


@pytest.fixture
def settings() -> Settings:
    examples = load_settings(SAMPLES / "operator.toml", environ={}).settings
    return examples.model_copy(update={"web": WebSettings(max_body_bytes=100_000)})


@pytest.fixture
async def web(store_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebSite]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    async with open_web(store_url, settings) as site:
        yield site


async def test_alerts_come_in_without_a_token_and_are_seen_with_one(web: WebSite) -> None:
    body = (SAMPLES / "alertmanager-firing.json").read_bytes()
    answer = await web.client().post("/api/v1/intake/alerts", content=body, headers=bearer())
    assert answer.status_code == 200
    assert answer.json() == {
        "intake": "alerts",
        "items": [{"what": "opened", "ticket_id": n, "note": None} for n in (1, 2)],
        "replayed": False,
        "note": None,
    }
    (one, _) = sorted(await TicketDB(web.database).list_tickets(), key=lambda t: t.id or 0)
    assert one.labels["team"] == "shop"


async def test_signed_webhooks_and_those_of_github_come_in(web: WebSite) -> None:
    body = (SAMPLES / "build-failed.json").read_bytes()
    headers = signed(body)
    client = web.client()
    assert (await client.post("/api/v1/intake/builds", content=body, headers=headers)).status_code == 200
    again = await client.post("/api/v1/intake/builds", content=body, headers=headers)
    assert again.status_code == 409
    assert again.headers["content-type"] == "application/problem+json"
    ping = (SAMPLES / "github-ping.json").read_bytes()
    answer = await client.post("/api/v1/intake/github", content=ping, headers=from_github(ping, event="ping"))
    assert (answer.status_code, answer.json()["note"]) == (200, "pong")


@pytest.mark.parametrize(
    ("door", "status"), [("alerts", 401), ("builds", 401), ("github", 401), ("gone", 404), ("x" * 64, 422)]
)
async def test_who_knows_nothing_learns_nothing(web: WebSite, door: str, status: int) -> None:
    for client in (web.client(), web.client(Role.ADMIN)):
        answer = await client.post(f"/api/v1/intake/{door}", content=alerts())
        assert answer.status_code == status
        assert answer.json()["status"] == status
        assert (answer.headers.get("www-authenticate") is not None) == (status == 401)
        assert all(secret not in answer.text for secret in [*SECRETS, *SECRETS.values()])
    assert await TicketDB(web.database).list_tickets() == []


async def test_what_is_too_large_or_no_json_is_refused(web: WebSite) -> None:
    client = web.client()
    assert (await client.post("/api/v1/intake/alerts", content=b" " * 100_001, headers=bearer())).status_code == 413
    assert (await client.post("/api/v1/intake/alerts", content=b"{", headers=bearer())).status_code == 400
    assert (await client.post("/api/v1/intake/alerts", content=b"[" * 90_000, headers=bearer())).status_code == 400
    assert (await client.post("/api/v1/intake/alerts", headers=bearer())).status_code == 400
    assert (await client.get("/api/v1/intake/alerts", headers=bearer())).status_code == 405


async def test_a_browser_of_another_site_cannot_use_a_door(web: WebSite) -> None:
    headers = {**bearer(), "Origin": "https://evil.example.com", "Sec-Fetch-Site": "cross-site"}
    assert (await web.client().post("/api/v1/intake/alerts", content=alerts(), headers=headers)).status_code == 403


async def test_an_unset_secret_closes_only_its_own_door(web: WebSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALERTS_SECRET")
    answer = await web.client().post("/api/v1/intake/alerts", content=alerts(), headers=bearer())
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    body = (SAMPLES / "build-failed.json").read_bytes()
    assert (await web.client().post("/api/v1/intake/builds", content=body, headers=signed(body))).status_code == 200


async def test_a_secret_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("in-a-file-0123456789\n")
    door = {"name": "alerts", "kind": "alertmanager", "secret_file": str(tmp_path / "secret")}
    async with open_web(tmp_path / "operator.db", Settings.model_validate({"intake": [door]})) as web:
        good, bad = bearer("in-a-file-0123456789"), bearer()
        assert (await web.client().post("/api/v1/intake/alerts", content=alerts(), headers=bad)).status_code == 401
        assert (await web.client().post("/api/v1/intake/alerts", content=alerts(), headers=good)).status_code == 200
        # It may turn up in an alert as well; it is never stored.
        told = alerts({"startsAt": "2026-01-29T00:00:00Z", "annotations": {"summary": "in-a-file-0123456789"}})
        await web.client().post("/api/v1/intake/alerts", content=told, headers=good)
        (ticket,) = await TicketDB(web.database).list_tickets()
        assert ticket.message == "[REDACTED]"


async def test_the_door_is_in_the_description_of_the_api(web: WebSite) -> None:
    paths = (await web.client(Role.VIEWER).get("/api/v1/openapi.json")).json()["paths"]
    door = paths["/api/v1/intake/{name}"]["post"]
    assert "application/json" in door["requestBody"]["content"]
    assert {"200", "401", "404", "409", "413", "422", "503"} <= set(door["responses"])
    assert json.dumps(door)
