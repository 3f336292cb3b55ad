"""The HTTP API and its client: what is asked is done once, by whom it may be done, and said in one shape."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from operator_core.api.local import LocalApi
from operator_core.api.protocol import Api
from operator_core.client import Client
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.idempotency import Keys
from operator_core.db.ledger import ticket_history
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, NotFound, StoreError, StoreUnavailable, TransitionRefused
from operator_core.model.entry import Draft
from operator_core.model.person import Actor, Role
from operator_core.model.ticket import TicketStatus
from tests.support import free_port
from tests.support.processes import operator_environment
from tests.support.store import start_work
from tests.support.web import WebSite, open_web, served

API = "/api/v1"
JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def client_of(web: WebSite, role: Role) -> AsyncIterator[Client]:
    """The product's own client, to a server in this process."""
    async with Client("http://127.0.0.1:8642", web.tokens[role]) as client:
        await client._http._open.aclose()
        client._http._client = web.client(role)
        yield client


async def waiting_ticket(database: Database) -> int:
    """A ticket whose session waits for an answer."""
    work = await start_work(database, entries=1)
    await work.queue.park(work.claim, 0)
    return work.claim.ticket_id


def repository(path: Path) -> Path:
    """A git repository with one commit."""
    path.mkdir()
    (path / "a").write_text("a")
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    for words in (("init", "-q"), ("add", "a"), (*who, "commit", "-qm", "a")):
        subprocess.run(["git", *words], cwd=path, check=True, env=operator_environment())
    return path


def plain(value: Any) -> Any:
    return TypeAdapter(Any).dump_python(value, mode="json")


async def messages(database: Database, ticket: int) -> list[str]:
    return [row.kind for row in await ticket_history(database, ticket) if row.kind == "message"]


# ---- the client is the product


async def test_the_client_and_the_store_say_the_same(tmp_path: Path) -> None:
    async with open_web(tmp_path / "o.db") as web, client_of(web, Role.ADMIN) as client:
        work = await start_work(web.database, entries=5)
        local = web.site.api
        for _ in range(3):
            await client.open_incident("disk", "The disk is full.", labels={"team": "shop"}, severity="critical")
        for api in (local, client):
            assert (await api.board()).counts == {"open": 3, "running": 1}
        both: list[Api] = [local, client]
        asked: list[Any] = [
            lambda api: api.tickets(order="attention"),
            lambda api: api.tickets(status=["open"], label={"team": "shop"}, search="disk", severity="critical"),
            lambda api: api.tickets(needs_me=True, kind="task"),
            lambda api: api.ticket(1),
            lambda api: api.sessions(ticket_id=1, status="running"),
            lambda api: api.session(work.session_id),
            lambda api: api.entries(work.session_id, after=1, limit=2, kinds=["reasoning"], bodies=True, max_chars=3),
            lambda api: api.ticks(work.session_id),
            lambda api: api.invariants(samples=3),
            lambda api: api.costs("model", days=2, limit=3),
            lambda api: api.approvals(pending=False),
        ]
        for ask in asked:
            here, there = [await ask(api) for api in both]
            assert plain(here) == plain(there)
        assert (await client.workers())[0].name == (await local.workers())[0].name
        first = await client.tickets(limit=3)
        second = await client.tickets(limit=3, cursor=first.next)
        assert [t.id for t in first.items + second.items] == [4, 3, 2, 1]
        assert second.next is None
        found = await client.audit()
        assert found.ok
        assert found.head_hash == (await local.audit()).head_hash
        assert (await client.audit(session_id=work.session_id)).sessions == 1


async def test_a_ticket_s_life_over_http(tmp_path: Path) -> None:
    async with open_web(tmp_path / "o.db") as web, client_of(web, Role.OPERATOR) as client:
        ticket = await client.submit("Say hello.", checks=["test -f hello"], name="hello", priority=3)
        assert (ticket.kind, ticket.invariant_name, ticket.priority) == ("task", "hello", 3)
        assert (await client.hold(ticket.id, True)).held
        assert not (await client.hold(ticket.id, False)).held
        assert (await client.resolve(ticket.id, "I said it.")).status is TicketStatus.RESOLVED
        assert (await client.reopen(ticket.id)).status is TicketStatus.OPEN
        assert (await client.cancel(ticket.id, now=True)).status is TicketStatus.CANCELED
        actors = {row.body.get("actor") for row in await ticket_history(web.database, ticket.id)}
        assert actors == {"test operator (api)"}
        parked = await waiting_ticket(web.database)
        assert (await client.reply(parked, "Go on.")).status is TicketStatus.OPEN
        with pytest.raises(TransitionRefused, match="waits for no answer"):
            await client.reply(parked, "Again.")
        with pytest.raises(NotFound, match="no ticket #99"):
            await client.ticket(99)
        with pytest.raises(ConfigError):
            await client.submit(" ")
        with pytest.raises(NotFound):
            await client.report(parked)


# ---- once


@pytest.mark.parametrize("what", ["tasks", "incidents"])
async def test_the_same_request_twice_makes_one_ticket(tmp_path: Path, what: str) -> None:
    body = {"tasks": {"prompt": "Do it."}, "incidents": {"name": "disk", "message": "full"}}[what]
    async with open_web(tmp_path / "o.db") as web:
        client, key = web.client(Role.OPERATOR), {"Idempotency-Key": "k-1"}
        first = await client.post(f"{API}/{what}", json=body, headers=key)
        assert (first.status_code, first.headers["location"]) == (201, f"{API}/tickets/1")
        assert "idempotency-replayed" not in first.headers
        again = await client.post(f"{API}/{what}", content=json.dumps(body, indent=3), headers={**key, **JSON})
        assert again.headers["idempotency-replayed"] == "true"
        assert (again.status_code, again.content, again.headers["location"]) == (
            201,
            first.content,
            first.headers["location"],
        )
        other = await client.post(f"{API}/{what}", json={**body, "priority": 1}, headers=key)
        assert (other.status_code, other.headers["content-type"]) == (422, "application/problem+json")
        # A key belongs to its token; and without one everything is new.
        assert (await web.client(Role.ADMIN).post(f"{API}/{what}", json=body, headers=key)).json()["id"] == 2
        assert (await client.post(f"{API}/{what}", json=body)).json()["id"] == 3
        for wrong in ("", "x" * 256, "a b", "a\tb"):
            refused = await client.post(f"{API}/{what}", json=body, headers={"Idempotency-Key": wrong})
            assert refused.status_code == 422, wrong
        assert len(await TicketDB(web.database).list_tickets()) == 3


async def test_at_the_same_time(store_url: str) -> None:
    async with open_web(store_url) as web:
        client = web.client(Role.OPERATOR)
        parked = await waiting_ticket(web.database)
        for path, body, effects in (
            ("tasks", {"prompt": "Do it."}, lambda: TicketDB(web.database).list_tickets(kind="task")),
            ("incidents", {"name": "x", "message": "y"}, lambda: TicketDB(web.database).list_tickets("open")),
            (f"tickets/{parked}/reply", {"text": "yes"}, lambda: messages(web.database, parked)),
        ):
            before = len(await effects())
            sent = [
                client.post(f"{API}/{path}", json=body, headers={"Idempotency-Key": f"{path}-k"}) for _ in range(12)
            ]
            answers = await asyncio.gather(*sent)
            assert {answer.status_code for answer in answers} <= {200, 201}
            assert len({answer.content for answer in answers}) == 1, "all are told the same"
            assert len(await effects()) - before == 1


async def test_an_answer_that_was_lost_with_its_process(tmp_path: Path) -> None:
    """The effect was written, and nobody remembered what was said."""
    async with open_web(tmp_path / "o.db") as web:
        client = web.client(Role.OPERATOR)
        parked = await waiting_ticket(web.database)
        task, reply = {"Idempotency-Key": "t"}, {"Idempotency-Key": "r"}
        body = {"prompt": "Do it."}
        path = f"{API}/tickets/{parked}/reply"
        made = (await client.post(f"{API}/tasks", json=body, headers=task)).json()["id"]
        assert (await client.post(path, json={"text": "yes"}, headers=reply)).status_code == 200
        async with web.database.begin() as c:
            await c.exec_driver_sql("UPDATE idempotency_keys SET status = 0, body = '' WHERE key = 't'")
            await c.exec_driver_sql("UPDATE idempotency_keys SET status = 1, body = '' WHERE key = 'r'")
        assert (await client.post(f"{API}/tasks", json=body, headers=task)).json()["id"] == made
        assert (await client.post(path, json={"text": "yes"}, headers=reply)).status_code == 200
        assert await messages(web.database, parked) == ["message"]
        # Still: another body with that key is another request.
        assert (await client.post(path, json={"text": "no"}, headers=reply)).status_code == 422


async def test_a_refused_message_uses_up_nothing(tmp_path: Path) -> None:
    async with open_web(tmp_path / "o.db") as web:
        client, key = web.client(Role.OPERATOR), {"Idempotency-Key": "k"}
        work = await start_work(web.database, entries=1)
        path = f"{API}/tickets/{work.claim.ticket_id}/reply"
        assert (await client.post(path, json={"text": "yes"}, headers=key)).status_code == 409
        await work.queue.park(work.claim, 0)
        done = await client.post(path, json={"text": "yes"}, headers=key)
        assert (done.status_code, done.json()["status"]) == (200, "open")


async def test_keys_are_forgotten(tmp_path: Path) -> None:
    async with open_web(tmp_path / "o.db") as web:
        client, key = web.client(Role.OPERATOR), {"Idempotency-Key": "k"}
        first = await client.post(f"{API}/tasks", json={"prompt": "One."}, headers=key)
        keys = Keys(web.database)
        assert await keys.forget() == 0
        assert await keys.forget(timedelta(seconds=-1)) == 1
        other = await client.post(f"{API}/tasks", json={"prompt": "Two."}, headers=key)
        assert (first.json()["id"], other.json()["id"]) == (1, 2)


# ---- what comes from elsewhere


@pytest.mark.parametrize(
    ("role", "body", "accepted"),
    [
        (Role.OPERATOR, {"repo": "{repo}"}, False),
        (Role.OPERATOR, {"repo": "file://{repo}"}, False),
        (Role.OPERATOR, {"repo": "FILE://{repo}"}, False),
        (Role.ADMIN, {"repo": "{repo}"}, True),
        (Role.ADMIN, {"repo": "file://{repo}"}, True),
        (Role.ADMIN, {"repo": "."}, False),
        (Role.ADMIN, {"repo": "~"}, False),
        (Role.OPERATOR, {"network": "host"}, False),
        (Role.ADMIN, {"network": "host"}, True),
        (Role.ADMIN, {"check_files": ["/etc/passwd"]}, False),
        (Role.OPERATOR, {"files": [{"path": "tests/t.sh", "content": "exit 1"}]}, True),
        (Role.OPERATOR, {"files": [{"path": "../t.sh", "content": ""}]}, False),
        (Role.OPERATOR, {"files": [{"path": "/etc/cron.d/x", "content": ""}]}, False),
        (Role.OPERATOR, {"files": [{"path": ".git/hooks/x", "content": ""}]}, False),
        (Role.OPERATOR, {"files": [{"path": "a", "content": ""}, {"path": "a/b", "content": ""}]}, False),
        (Role.OPERATOR, {"checks": ["true"]}, False),
        (Role.OPERATOR, {"prompt": "\x00"}, False),
        (Role.OPERATOR, {"prompt": "x" * 100_001}, False),
        (Role.OPERATOR, {"actor": "somebody else"}, False),
        (Role.OPERATOR, {"link": ["api:other", "k"]}, False),
        (Role.OPERATOR, {"budget_usd": -1}, False),
        (Role.VIEWER, {}, False),
    ],
)
async def test_what_a_task_over_http_may_be(tmp_path: Path, role: Role, body: dict[str, Any], accepted: bool) -> None:
    repo = repository(tmp_path / "repo")
    text = json.dumps({"prompt": "Do it.", **body}).replace("{repo}", str(repo))
    async with open_web(tmp_path / "o.db") as web:
        answer = await web.client(role).post(f"{API}/tasks", content=text, headers=JSON)
        assert (answer.status_code == 201) is accepted, answer.text
        if not accepted:
            assert answer.status_code in (403, 422)
            assert str(repo) not in answer.headers.get("location", "")
            assert await TicketDB(web.database).list_tickets() == []
        elif "files" in body:
            (file,) = answer.json()["check_spec"]["check_files"]
            assert file["path"] == "tests/t.sh"
            assert len(file["sha256"]) == 64


async def test_hostile_texts_are_texts(tmp_path: Path) -> None:
    """Escapes, markup, half of a surrogate pair: all of it is JSON, and nothing is executed, lost or an error."""
    async with open_web(tmp_path / "o.db") as web:
        audit = AuditLogDB(web.database)
        work = await start_work(web.database)
        hostile = "\x1b]0;x\x07<script>\u202e\u2028\x85\ud83d"
        body = {"role": "assistant", "content": [{"type": "text", "text": hostile}]}
        await work.journal.append(Draft("reasoning", "x", "y", tool_params={"command": hostile}, body=body))
        client = web.client(Role.VIEWER)
        for path in ("entries?bodies=true", "stream?after=-1", "ticks", ""):
            if path.startswith("stream"):
                await audit.complete_session(work.session_id, "failed", "x")
            answer = await client.get(f"{API}/sessions/{work.session_id}/{path}".rstrip("/"))
            assert answer.status_code == 200, path
            assert answer.headers["x-content-type-options"] == "nosniff"
        entry = (await client.get(f"{API}/sessions/{work.session_id}/entries?bodies=true")).json()["items"][0]
        assert entry["body"]["content"][0]["text"] == hostile[:-1] + "?"


async def test_checks_and_the_head_of_the_ledger(tmp_path: Path) -> None:
    async with open_web(tmp_path / "o.db") as web:
        client = web.client(Role.OPERATOR)
        empty = (await client.get(f"{API}/audit")).json()
        assert empty["hash"]
        made = (await client.post(f"{API}/tasks", json={"prompt": "x", "checks": ["test -f x"]})).json()
        checks = (await client.get(f"{API}/tickets/{made['id']}/checks")).json()
        assert checks["check_spec"]["checks"][0]["command"] == "test -f x"
        assert (checks["check_hash"], checks["verdicts"]) == (made["check_hash"], [])
        head = (await client.get(f"{API}/audit")).json()
        assert head["seq"] > empty["seq"]
        assert head["hash"] == (await client.post(f"{API}/audit/verify")).json()["head_hash"]


async def test_filters_that_contradict_themselves(tmp_path: Path) -> None:
    async with open_web(tmp_path / "o.db") as web:
        client = web.client(Role.VIEWER)
        for query in (
            "label=a=1&label=a=2",
            "label=a",
            "status=done",
            "limit=0",
            "limit=201",
            "cursor=%00",
            "cursor=abc",
            "search=%00",
            "kind=x",
        ):
            answer = await client.get(f"{API}/tickets?{query}")
            assert answer.status_code == 422, query
            assert answer.headers["content-type"] == "application/problem+json"
        assert (await client.get(f"{API}/tickets?label=a=1=2&label=b=")).status_code == 200


# ---- the client by itself


@pytest.mark.parametrize(
    "url",
    [
        "",
        "operator.example.com",
        "ftp://x",
        "http://operator.example.com",
        "https://me:secret@x.example.com",
        "http://[::1",
    ],
)
def test_an_address_that_is_none_or_gives_the_token_away(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Client(url, "op_a_b")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("token", ["", " ", "two words", "op_ä", "op_a\nX-Evil: 1"])
def test_a_token_that_is_none(token: str) -> None:
    with pytest.raises(ConfigError):
        Client("https://operator.example.com", token)


async def test_nobody_is_there() -> None:
    async with Client(f"http://127.0.0.1:{free_port()}", "op_a_b") as client:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await client.hold(1, True)
        with pytest.raises(StoreUnavailable):
            await anext(client.stream("s"))


async def test_another_server_is_there(tmp_path: Path) -> None:
    """A page that answers 200, or sends elsewhere: the token does not go there, and nothing is believed."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head)
        if b"/board" in head:
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        elif b"/workers" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        elif b"/stream" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: entry\ndata: {}\n\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", "op_a_b") as client:
            with pytest.raises(ConfigError, match="elsewhere"):
                await client.board()
            with pytest.raises(Exception, match="not an Operator server"):
                await client.ticket(1)
            with pytest.raises(StoreError, match="another version"):
                await client.workers()
            with pytest.raises(StoreError, match="another version"):
                await anext(client.stream("s"))
    assert len(seen) == 4


async def test_a_server_that_says_something_twice(tmp_path: Path) -> None:
    """A proxy that repeats the beginning of a stream, say: each entry comes once all the same."""
    async with open_web(tmp_path / "o.db") as web:
        work = await start_work(web.database, entries=4)
        page = await web.site.api.entries(work.session_id)
    blocks = [f"id: {e.seq}\nevent: entry\ndata: {e.model_dump_json()}\n\n" for e in page.items]
    again = [blocks[2], *blocks[1:], "event: end\ndata: {}\n\n"]
    parts = ["".join(blocks[:2]), "".join(blocks[:3]), "".join(again)]
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        writer.write((head + parts[len(asked) - 1]).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "op_a_b") as client:
        seen = [event.number async for event in client.stream(work.session_id) if event.kind == "entry"]
    assert seen == [0, 1, 2, 3]
    assert [re.search(rb"after=(-?\d+)", head)[1] for head in asked] == [b"-1", b"1", b"2"]  # type: ignore[index]


async def test_an_act_whose_answer_is_lost_is_repeated_with_its_key(tmp_path: Path) -> None:
    store = tmp_path / "o.db"
    with served(store) as server:
        lost = 0

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """The server behind it gets the request; the answer to the first one is dropped."""
            nonlocal lost
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(next(line for line in head.lower().split(b"\r\n") if b"content-length" in line).split(b":")[1])
            rest = re.sub(rb"(?im)^(host|connection):[^\r]*\r\n", b"", head)[:-2]
            upstream_writer.write(rest + b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n")
            upstream_writer.write(await reader.readexactly(length))
            answer = await upstream_reader.read()
            if lost:
                writer.write(answer)
                await writer.drain()
            lost += 1
            writer.close()
            upstream_writer.close()

        proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
        async with (
            proxy,
            Client(f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}", server.tokens[Role.OPERATOR]) as c,
        ):
            ticket = await c.submit("Once.")
        async with Database.open(store) as database:
            assert [t.id for t in await TicketDB(database).list_tickets()] == [ticket.id]
    assert lost == 2


def test_a_store_and_a_server_are_one_interface() -> None:
    """The type checker holds both to the protocol; this keeps the names together also where it does not look."""
    names = {name for name in vars(Api) if not name.startswith("_")}
    for kind in (LocalApi, Client):
        assert names <= set(dir(kind)), kind
    _: list[Api] = []
    if False:
        _.append(LocalApi(None, Settings(), Actor("x", Role.VIEWER)))  # type: ignore[unreachable]
        _.append(Client("", ""))


async def test_what_a_probe_shows_to_its_system_is_not_shown_to_readers(tmp_path: Path) -> None:
    probe = {
        "type": "http",
        "url": "https://h.example.com/?access_token=hidden-1234",
        "headers": {"Authorization": "Basic hidden-1234", "X-Api-Key": "hidden-1234", "Cookie": "sid=hidden-1234"},
    }
    subject = {"name": "shop", "invariant": [{"name": "orders", "probe": probe, "expect": "== 200"}]}
    settings = Settings.model_validate({"subject": [subject], "web": {"port": 0}})
    async with open_web(tmp_path / "o.db", settings) as web:
        order = {"name": "orders", "message": "They fail.", "invariant": "orders"}
        made = await web.client(Role.OPERATOR).post(f"{API}/incidents", json=order)
        assert made.status_code == 201
        viewer = web.client(Role.VIEWER)
        for path in (f"{API}/tickets/1", f"{API}/tickets/1/checks", "/tickets/1", "/tickets/1/evidence", "/settings"):
            answer = await viewer.get(path)
            assert answer.status_code == 200
            assert "hidden-1234" not in answer.text, path
        frozen = (await TicketDB(web.database).get_ticket(1)).check_spec
        assert frozen is not None
        assert frozen["invariant"]["probe"]["headers"]["X-Api-Key"] == "hidden-1234", "checked as configured"


async def test_an_agent_that_nests_its_arguments_deeply_hides_nothing(tmp_path: Path) -> None:
    """No answer can hold such a value; it is there as a text, and what follows is not lost."""
    steps: Any = "rm -rf /"
    for _ in range(300):
        steps = [steps]
    block = {"type": "tool_use", "id": "c", "name": "shell", "input": {"steps": steps}}
    async with open_web(tmp_path / "o.db") as web:
        work = await start_work(web.database, entries=1)
        call = Draft("tool_call", "shell", "shell", "shell", {"steps": steps}, tool_use_id="c")
        message = Draft("message", "reply", body={"role": "assistant", "content": [block]})
        await work.journal.append(call, message, Draft("reasoning", "after it"))
        viewer = web.client(Role.VIEWER)
        path = f"{API}/sessions/{work.session_id}/entries"
        for query in ("", "?bodies=true", "?max_chars=10"):
            answer = await viewer.get(path + query)
            assert answer.status_code == 200, answer.text
            assert [entry["seq"] for entry in answer.json()["items"]] == [0, 1, 2, 3]
        assert "rm -rf /" in (await viewer.get(path)).json()["items"][1]["tool_params"]["input"]
