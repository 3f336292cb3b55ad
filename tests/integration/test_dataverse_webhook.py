"""The Teams webhook: what it is sent, and what each of its answers means."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from operator_core import clock
from operator_core.errors import ConfigError
from operator_core.notify.outbox import Delivered, Later, Never
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.teams import TaskFacts, failed_card
from operator_dataverse.teams.webhook import TeamsWebhook, webhook_of

CARD = failed_card(TaskFacts("0b1c6c5e", "O'Brien & 日本"), reason="because")
SECRET = "sig=do-not-tell"


class Catcher:
    """A webhook that answers what it is told to."""

    def __init__(self) -> None:
        self.answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.silent = False
        self.drop_s: float | None = None
        self._served: list[asyncio.Task[None]] = []

    def says(self, status: str, *headers: str, body: str = "") -> None:
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body.encode())}", "", body]
        self.answer = "\r\n".join(lines).encode()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(line for line in head.lower().splitlines() if line.startswith("content-length:"))
            self.bodies.append(await reader.readexactly(int(length.split(":")[1])))
            self.heads.append(head)
            if self.drop_s is not None:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while not writer.is_closing():
                    writer.write(b".")
                    await writer.drain()
                    await asyncio.sleep(self.drop_s)
            elif not self.silent:
                writer.write(self.answer)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/workflows/x?{SECRET}"
            await asyncio.wait_for(asyncio.gather(*self._served), 10)


async def test_the_card_arrives_in_the_envelope_of_a_workflow() -> None:
    catcher = Catcher()
    async with catcher.running() as url:
        assert await TeamsWebhook(url).post(CARD) == Delivered()
    [body] = catcher.bodies
    message = json.loads(body)
    assert message["type"] == "message"
    [attachment] = message["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert attachment["content"] == CARD
    assert f"POST /workflows/x?{SECRET} HTTP/1.1" in catcher.heads[0]
    assert "content-type: application/json" in catcher.heads[0].lower()


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "after_s"),
    [
        ("200 OK", (), "1", Delivered, None),
        ("202 Accepted", (), "", Delivered, None),
        ("429 Too Many Requests", ("Retry-After: 7",), "", Later, 7.0),
        ("429 Too Many Requests", ("Retry-After: 999999",), "", Later, 3600.0),
        ("429 Too Many Requests", ("Retry-After: -5",), "", Later, 0.0),
        ("429 Too Many Requests", ("Retry-After: soon",), "", Later, None),
        ("429 Too Many Requests", ("Retry-After: nan",), "", Later, None),
        ("503 Service Unavailable", (), "", Later, None),
        ("408 Request Timeout", (), "", Later, None),
        ("200 OK", (), "Webhook message delivery failed with error: returned HTTP error 429 with", Later, None),
        ("200 OK", (), "Webhook message delivery failed with error: returned HTTP error 400 with", Never, None),
        ("200 OK", (), "x" * 200_000, Delivered, None),
        ("400 Bad Request", (), "{}", Never, None),
        ("404 Not Found", (), "", Never, None),
        ("413 Too Large", (), "", Never, None),
        ("302 Found", ("Location: http://127.0.0.1:1/elsewhere",), "", Never, None),
    ],
)
async def test_each_answer_means_something(
    status: str, headers: tuple[str, ...], body: str, kind: type[object], after_s: float | None
) -> None:
    catcher = Catcher()
    catcher.says(status, *headers, body=body)
    async with catcher.running() as url:
        outcome = await TeamsWebhook(url).post(CARD)
    assert type(outcome) is kind
    if isinstance(outcome, Later):
        assert outcome.after_s == after_s
    assert SECRET not in repr(outcome)
    assert len(catcher.bodies) == 1


async def test_a_pause_until_a_moment_is_understood() -> None:
    catcher = Catcher()
    moment = clock.now() + timedelta(seconds=60)
    catcher.says("429 Too Many Requests", f"Retry-After: {format_datetime(moment.astimezone(UTC), usegmt=True)}")
    async with catcher.running() as url:
        outcome = await TeamsWebhook(url).post(CARD)
    assert isinstance(outcome, Later)
    assert outcome.after_s is not None
    assert 50 < outcome.after_s <= 60
    past = format_datetime(datetime(2001, 1, 1, tzinfo=UTC), usegmt=True)
    catcher.says("503 Service Unavailable", f"Retry-After: {past}")
    async with catcher.running() as url:
        assert await TeamsWebhook(url).post(CARD) == Later("Teams answers with HTTP 503 for now.", 0.0)


async def test_who_does_not_answer_is_tried_later_and_its_address_is_not_told() -> None:
    catcher = Catcher()
    catcher.silent = True
    async with catcher.running() as url:
        lost = await TeamsWebhook(url).post(CARD)
    gone = await TeamsWebhook(url).post(CARD)
    for outcome in (lost, gone):
        assert isinstance(outcome, Later)
        assert SECRET not in repr(outcome)
        assert "workflows" not in repr(outcome)


async def test_an_answer_that_does_not_end_is_given_up() -> None:
    catcher = Catcher()
    catcher.drop_s = 0.02
    async with catcher.running() as url:
        outcome = await asyncio.wait_for(TeamsWebhook(url, timeout_s=0.2).post(CARD), 10)
    assert isinstance(outcome, Later)
    assert "TimeoutError" in outcome.why


async def test_a_bad_card_is_not_sent() -> None:
    catcher = Catcher()
    async with catcher.running() as url:
        outcome = await TeamsWebhook(url).post({"type": "AdaptiveCard"})
    assert isinstance(outcome, Never)
    assert catcher.bodies == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/x",
        "http://example.com/x",
        "https://",
        "https://alice:secret@example.com/",
        "https://example.com/a b",
        "https://[::1",
        "https://example.com:port/",
        "file:///etc/passwd",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TeamsWebhook(url)
    assert "secret" not in str(caught.value)


def test_the_address_comes_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert webhook_of(DataverseSettings()) is None
    monkeypatch.setenv("MY_WEBHOOK", f"https://example.com/x?{SECRET}")
    hook = webhook_of(DataverseSettings(teams_webhook_env="MY_WEBHOOK"))
    assert hook is not None
    assert SECRET not in repr(hook)
